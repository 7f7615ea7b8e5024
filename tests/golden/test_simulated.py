"""Simulated jobs give the golden values of real federations: every version, its weights and its steps."""

from pathlib import Path

import pytest

from hansa.common.torch.threads import threads
from tests.golden import files, jobs
from tests.golden.fleet import LIGHT, run
from tests.simulated import golden, simulate

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
