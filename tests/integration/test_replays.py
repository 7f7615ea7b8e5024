"""Replays: a deployed job's events in their order, with all models computed anew, give the same models."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hansa.common.torch.threads import threads
from hansa.common.values.errors import Broken, HansaError, InvalidInput, NotFound, Refused
from hansa.common.values.views import JobView
from hansa.simulation.options import Options
from hansa.simulation.run import Simulation
from tests.golden.fleet import PLAIN, SITES, TORCH, finished, running, usual_job, version_of
from tests.simulated import simulation

TRAIN = {"batch_size": 4, "optimizer": {"lr": 0.03125, "momentum": 0.5}, "keep_optimizer": True}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedasync": (TORCH, {"rule": "fedasync", "pace": {"updates": 15}, "train": TRAIN}),
    "fedbuff": (TORCH, {"rule": "fedbuff", "pace": {"updates": 12, "buffer": 3}}),
    "async-dvw": (TORCH, {"rule": "async-dvw", "pace": {"updates": 8}, "train": {"epochs": 1}}),
    "semisync": (TORCH, {"rule": "semisync-fedavg", "pace": {"rounds": 4, "lambda": 2}, "train": TRAIN}),
    "arrays": (PLAIN, {"rule": "async-fedavg", "pace": {"updates": 10}}),
}
UNTIL = {
    "name": "until",
    "rule": "async-dvw-adaptive",
    "pace": {"updates": 3},
    "train": {"until": {"max_epochs": 2}},
}


async def deployed(folder: Path, app: str, *jobs: dict[str, Any]) -> list[JobView]:
    """Run jobs with real sites; the controller's state is in `controller`."""
    with threads(1):
        async with running(folder, app) as client:
            return [await finished(client, usual_job(app, job)) for job in jobs]


def replayed(folder: Path, app: str, job: dict[str, Any], name: str = "", journal: str = "") -> Simulation:
    """Return the replay of a job, which has a name if the journal has several."""
    usual = {"validation": {"fraction": 0.25}}
    options = Options(replay=folder / (journal or "controller"), job=name or None)
    return simulation(folder / "replayed", usual | job, app, SITES, options)


@pytest.mark.parametrize("name", JOBS)
async def test_a_replay_gives_every_version_of_the_deployed_job(name: str, tmp_path: Path) -> None:
    app, job = JOBS[name]
    (real,) = await deployed(tmp_path, app, job)
    assert real.status == "completed"
    replay = await asyncio.to_thread(replayed, tmp_path, app, job)
    view = await asyncio.to_thread(replay.run)
    assert (view.status, view.reason, replay.difference) == ("completed", real.reason, "")
    assert [version_of(entry) for entry in view.history] == [version_of(entry) for entry in real.history]
    assert [entry.metrics for entry in view.history] == [entry.metrics for entry in real.history]
    assert [entry.receipt for entry in view.history] == [entry.receipt for entry in real.history]


async def test_what_cannot_be_replayed_is_refused_in_a_sentence(tmp_path: Path) -> None:
    app, job = JOBS["fedasync"]
    job = job | {"name": "plain", "pace": {"updates": 4}}
    await deployed(tmp_path, app, job, UNTIL)

    def refused(error: type[Exception], words: str, which: dict[str, Any] = job, **more: Any) -> None:
        with pytest.raises(error, match=words):
            replayed(tmp_path, app, which, **more)

    refused(InvalidInput, "say which job with --job; known jobs: j.*, j")
    refused(NotFound, "no job matches 'other'", name="other")
    refused(NotFound, "there is no journal.sqlite; name the state directory", journal="s1")
    refused(Refused, "sites of job j.* listened to what others committed", UNTIL, name="until")
    changed = job | {"train": TRAIN | {"epochs": 3}, "seed": 12}
    refused(InvalidInput, "the job file is not that of job j.*: seed, train differ", changed, name="plain")
    replay = await asyncio.to_thread(replayed, tmp_path, app, job, "plain")
    await asyncio.to_thread(replay.run)
    replay.keep_results("0")
    begun = job | {"init": str(tmp_path / "replayed" / "simulated" / "model.safetensors")}
    refused(InvalidInput, "init: the job did not begin with the model of the job file", begun, name="plain")


async def test_a_replay_with_other_data_says_what_differs_first(tmp_path: Path) -> None:
    app, job = JOBS["arrays"]
    await deployed(tmp_path, app, job)
    usual = {"validation": {"fraction": 0.25}}
    options = Options(replay=tmp_path / "controller" / "journal.sqlite")
    other = simulation(tmp_path / "other", usual | job, app, SITES[::-1], options)
    assert (await asyncio.to_thread(other.run)).status == "completed"
    with pytest.raises(
        HansaError, match=r"the replay is not job j.*: the update of site s. .*is another one"
    ):
        other.require_same()
    with pytest.raises(InvalidInput, match="had sites that the job file does not have: s4, s5"):
        simulation(tmp_path / "fewer", usual | job, app, SITES[:3], options)
    with sqlite3.connect(tmp_path / "controller" / "journal.sqlite") as journal:
        journal.execute("update entries set event = '{}' where sequence = 7")
    with pytest.raises(Broken, match=r"journal entry 7 of job j.* is damaged: its checksum is wrong"):
        simulation(tmp_path / "damaged", usual | job, app, SITES, options)
