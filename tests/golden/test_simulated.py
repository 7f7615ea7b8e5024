"""Simulated jobs give the golden values of real federations: every version, its weights and its steps."""

from pathlib import Path
from typing import Any

import pytest

from hansa.common.torch.threads import threads
from tests.golden import files, jobs
from tests.golden.fleet import FIXED, LIGHT, TORCH, finished, run, running, usual_job
from tests.golden_simulated import golden, simulate

GROUPS = {"portable": jobs.PORTABLE, "machine": jobs.MACHINE}
FAMILIES = [
    (group, name)
    for group, families in GROUPS.items()
    for name, (app, _) in families.items()
    if app != LIGHT  # its sites are no apps
]


@pytest.mark.parametrize(("group", "family"), FAMILIES)
async def test_every_version_is_that_of_a_deployment(group: str, family: str, tmp_path: Path) -> None:
    app, members = GROUPS[group][family]
    # Where bits depend on the machine, a federation on this one is the measure.
    with threads(1):
        real = (
            await run(tmp_path, members, app) if group == "machine" else files.read("portable.json")[family]
        )
    now = {}
    for number, (name, job) in enumerate(members.items()):
        now[name] = files.plain(golden(simulate(tmp_path / str(number), job, app)))
    assert not files.differences(files.plain(real), now)


@pytest.mark.parametrize("kind", ["none", "int8"])
def test_updates_have_the_bytes_that_they_would_be_sent_in(tmp_path: Path, kind: str) -> None:
    app = next(app for app, _ in jobs.PORTABLE.values() if app != LIGHT)
    job = {"rule": "fedavg", "pace": {"rounds": 3}, "transfer": {"kind": kind}}
    history = simulate(tmp_path, job, app).history
    assert len(history) == 4
    for entry in history[2:]:  # with version 1 came version 0
        assert sum(update.bytes_up for update in entry.updates) == entry.bytes_up > 0


# Reports are not awaited, so evaluators might fetch a version before or after the next merge.
UNEVALUATED = {"evaluate": {"every": 1000}}
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a sample": (TORCH, {"pace": {"rounds": 3}, "sample": {"kind": "uniform", "fraction": 0.6}}),
    "tensors beside the model": (TORCH, {"rule": "scaffold", "pace": {"rounds": 3}}),
    "partial updates": (TORCH, {"rule": "divide", "pace": {"rounds": 4}, "layers": {"prepass": 1}}),
    "travelling models": (
        TORCH,
        {"rule": "radfed", "pace": {"rounds": 2, "hops": 3}, "sample": {"fraction": 0.6}},
    ),
    "encoded updates": (TORCH, {"pace": {"rounds": 2}, "transfer": {"kind": "int8"}}),
    "evaluated updates": (TORCH, {"rule": "sync-dvw", "pace": {"rounds": 2}}),
    "personal layers": (FIXED, {"rule": "fedper", "pace": {"rounds": 3}}),
}


@pytest.mark.parametrize("name", COUNTED)
async def test_every_version_has_the_bytes_of_a_deployment(name: str, tmp_path: Path) -> None:
    app, job = COUNTED[name]
    with threads(1):
        async with running(tmp_path, app) as client:  # one for each job: sites keep tensors from job to job
            real = await finished(client, usual_job(app, job | UNEVALUATED))
    virtual = simulate(tmp_path / "virtual", job | UNEVALUATED, app)
    counted = [(entry.bytes_up, entry.bytes_down) for entry in virtual.history]
    assert counted == [(entry.bytes_up, entry.bytes_down) for entry in real.history]
    assert all(up and down for up, down in counted[1:])


async def test_what_each_site_finds_and_what_is_kept_are_as_in_a_deployment(tmp_path: Path) -> None:
    """The last version of a job, here the only one, is evaluated by all, however long that takes."""
    job = {"pace": {"rounds": 1}, "keep": {"best": {"metric": "loss"}}, "validation": {"fraction": 0.4}}
    with threads(1):
        async with running(tmp_path, TORCH) as client:
            real = await finished(client, usual_job(TORCH, job))
    virtual = simulate(tmp_path / "virtual", job, TORCH)
    found = [(view.best, view.kept, view.history[1].evaluations) for view in (real, virtual)]
    assert found[0] == found[1]
    assert virtual.best == 1
    assert len(virtual.history[1].evaluations) == len(virtual.history[1].updates)
    assert virtual.history[1].confusion == real.history[1].confusion
    assert virtual.history[1].coverage == 1
