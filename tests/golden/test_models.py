"""The community models of one seeded job for every rule with rounds match the golden files."""

from pathlib import Path

import pytest

from hansa.common.plugins.registry import rules
from tests.golden import files, jobs
from tests.golden.fleet import run
from tests.golden.stories import STORIES

WITHOUT_ROUNDS = {
    "async-fedavg",
    "async-dvw",
    "async-dvw-adaptive",
    "fedasync",
    "fedasync-constant",
    "fedasync-hinge",
    "fedbuff",
}


@pytest.mark.parametrize("family", jobs.PORTABLE)
async def test_every_version_is_the_same_bit_for_bit(family: str, tmp_path: Path) -> None:
    app, members = jobs.PORTABLE[family]
    now = files.plain(await run(tmp_path, members, app))
    assert not files.differences(files.read("portable.json")[family], now)


@pytest.mark.parametrize("family", jobs.MACHINE)
async def test_numbers_that_depend_on_the_machine_are_close(family: str, tmp_path: Path) -> None:
    app, members = jobs.MACHINE[family]
    golden = files.read("machine.json")[family]
    now = files.plain(await run(tmp_path, members, app, numbers=True))
    for outcomes in (golden, now):
        for outcome in outcomes.values():
            for version in outcome["versions"]:
                del version["digest"]
    assert not files.differences(golden, now, close=True)


def test_every_rule_is_covered() -> None:
    families = [family for _, family in (*jobs.PORTABLE.values(), *jobs.MACHINE.values())]
    run_whole = {job["rule"] for family in families for job in family.values()}
    played = {story.job["rule"] for story in STORIES.values()}
    depends_on_time = WITHOUT_ROUNDS | {"semisync-fedavg"}
    assert set(rules()) - run_whole == depends_on_time
    assert set(rules()) - run_whole <= played
