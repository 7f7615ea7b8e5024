"""kill -9 of a learner whose plugins remember: memory counts if and only if its update does."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hansa.common.models.checkpoints import load_checkpoint
from hansa.common.models.tensor_files import read_tensors
from hansa.common.process.state import read_note
from tests.e2e.conftest import APP_TEXT, ROOT
from tests.faults.conftest import Federation
from tests.faults.test_kills import digest
from tests.redis_server import free_port
from tests.support import install

# Both sides of a method: what a site returns depends on all its updates that were accepted so far.
PACKAGE = '''
"""Momentum at the sites."""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import JsonValue

from hansa.plugin import Contribution, LocalPlugin, LocalPluginSpec, LocalRun, Nothing, Policy, Returned
from hansa.plugin import SiteName, Train, View, register


@register("learner", "local-momentum")
class LocalMomentum(LocalPlugin):
    """Adds half of the sum of earlier updates."""

    noise: bool = False

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Add it, and remember the new sum."""
        for name, array in update.tensors.items():
            moved = array - run.anchor[name]
            total = run.arrays.get(f"momentum/{name}", np.zeros_like(moved)) / 2 + moved
            run.arrays[f"momentum/{name}"] = total
            array[...] = run.anchor[name] + total
            if self.noise:
                array += run.secret(name).normal(scale=1e-3, size=array.shape).astype(array.dtype)
        count = run.memory.get("momentum", 0) + 1
        run.memory["momentum"] = count
        update.metrics |= {"tasks": float(count), "lost": float(run.lost)}


@register("local", "momentum")
class Momentum(Policy):
    """Sites keep a momentum."""

    noise: bool = False

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Name the plugin."""
        plugin = LocalPluginSpec(name="local-momentum", args={"noise": self.noise})
        return work.model_copy(update={"plugins": (*work.plugins, plugin)})

    def diagnostics(
        self, state: Nothing, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Show what sites report."""
        return {c.site: dict(c.facts.metrics) for c in contributions}
'''
APP = 'import sys\nsys.path.insert(0, "packages")\nimport momentum_rule\n' + APP_TEXT
ROUNDS = 9
WORDS = ("--set", "sites={min: 3, wait: 120}", "--set", f"pace.rounds={ROUNDS}")
# From the beginning of a task to the moment after its receipt: the next life does the task again or goes on.
POINTS = ("task-taken", "state-kept", "task-trained", "task-offered", "task-uploading", "task-uploaded")


@pytest.fixture
def remembering(federation: Federation) -> Iterator[Federation]:
    """A federation whose learners and controller have the package; the controller is a process of its own."""
    install(federation.folder / "packages", "momentum_rule", PACKAGE)
    (federation.folder / "app.py").write_text(APP)
    federation.address = f"127.0.0.1:{free_port()}"
    start_controller(federation)
    try:
        yield federation
    finally:
        assert federation.cli("controller", "stop", "--state", state_of(federation)).returncode == 0


def state_of(federation: Federation) -> str:
    return str(federation.folder / "state" / "controller")


def start_controller(federation: Federation) -> None:
    path = os.pathsep.join((str(ROOT), str(federation.folder / "packages")))
    words = ("--daemon", "--listen", federation.address, "--state", state_of(federation), "--grace", "60")
    started = federation.cli("controller", "start", *words, PYTHONPATH=path)
    assert started.returncode == 0, started.stderr


def submit(federation: Federation, name: str, *words: str) -> str:
    job: str = federation.json("job", "submit", "job.yaml", *WORDS, "--set", f"name={name}", *words)["job"]
    return job


def die(federation: Federation, site: str, point: str) -> None:
    """Start the next life of a learner, which ends at a point."""
    federation.bring_up(f"learner-{site}", f"{point}:1")
    federation.until(lambda: not federation.alive(f"learner-{site}"), 60, f"never reached {point}")


def reports(federation: Federation, job: str) -> list[Any]:
    """Return what sites reported with each version."""
    history = federation.json("job", "show", job)["history"]
    return [entry["diagnostics"]["local"] for entry in history if entry["version"]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_whatever_is_killed_a_site_remembers_what_was_accepted(
    remembering: Federation,
) -> None:
    for site in "ac":
        remembering.bring_up(f"learner-{site}")
    job = submit(remembering, "storm", "--set", "local={kind: momentum}")
    for point in POINTS:
        die(remembering, "b", point)
    os.kill(read_note(Path(state_of(remembering)), "controller")["pid"], signal.SIGKILL)
    start_controller(remembering)
    remembering.bring_up("learner-b")
    watched = remembering.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    expected = [{site: {"tasks": n, "lost": 0.0} for site in "abc"} for n in range(1, ROUNDS + 1)]
    assert reports(remembering, job) == expected
    states = remembering.folder / "state" / "learner-b" / "memory" / job
    newest = max(states.iterdir(), key=lambda path: int(path.stem.rpartition("-")[2]))
    arrays, texts = read_tensors(newest)
    assert texts["hansa.memory"] == f'{{"memory":{{"momentum":{ROUNDS}}}}}'
    assert arrays["momentum/0.weight"].shape == (8, 2)

    calm = submit(remembering, "calm", "--set", "local={kind: momentum}", "--wait")
    assert reports(remembering, calm) == expected
    assert digest(remembering, "storm") == digest(remembering, "calm")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_a_site_that_has_lost_its_disk_says_so_and_starts_anew(remembering: Federation) -> None:
    for site in "ac":
        remembering.bring_up(f"learner-{site}")
    job = submit(remembering, "loss", "--set", "local={kind: momentum}")
    for point in ("task-uploaded", "task-taken"):
        die(remembering, "b", point)
    shutil.rmtree(remembering.folder / "state" / "learner-b")
    die(remembering, "b", "task-trained")  # and it is still lost when the task is done again
    remembering.bring_up("learner-b")
    assert remembering.cli("job", "watch", job).returncode == 0
    told = [(entry["b"]["tasks"], entry["b"]["lost"]) for entry in reports(remembering, job)]
    assert told == [(1, 0), (1, 1), *((n, 0) for n in range(2, ROUNDS))]
    assert [entry["a"]["tasks"] for entry in reports(remembering, job)] == list(range(1, ROUNDS + 1))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_an_update_with_secret_noise_is_sent_as_it_was_finished_whenever_the_learner_dies(
    remembering: Federation,
) -> None:
    for site in "ac":
        remembering.bring_up(f"learner-{site}")
    job = submit(remembering, "noise", "--set", "local={kind: momentum, noise: true}", "--set", "seed=1")
    kept = remembering.folder / "state" / "learner-b" / "finished" / f"{job}.safetensors"
    die(remembering, "b", "state-kept")  # of the first task: nothing is finished
    assert not kept.exists()
    seen = []
    app = remembering.folder / "app.py"
    for point in ("update-kept", "task-trained", "task-offered"):
        die(remembering, "b", point)
        manifest, _ = load_checkpoint(kept)
        seen.append((read_tensors(kept)[1]["hansa.task"], manifest.digest.hex()))
        if point == "update-kept":  # training differently, as a GPU may, does not matter any more
            app.write_text(re.sub(r"return x\n", "return x * 1.001\n", app.read_text()))
    assert len(set(seen)) == 1, "the update was computed twice"
    app.write_text(APP)
    die(remembering, "b", "task-uploaded")  # its receipt is there, and it is not written down
    remembering.bring_up("learner-b")
    assert remembering.cli("job", "watch", job).returncode == 0
    sent = {str(receipt.task): receipt.digest for receipt in remembering.receipts(job)}
    task, first = seen[0]
    assert sent[task] == first
    assert not kept.exists()
    assert [entry["b"]["tasks"] for entry in reports(remembering, job)] == list(range(1, ROUNDS + 1))
