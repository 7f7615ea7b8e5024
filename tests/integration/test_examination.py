"""Rules that look at the numbers of updates, in whole jobs over real gRPC, with light sites."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hansa.controller.engine.orders import Examine
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.plugin.evidence import Findings
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.support import LightSite, Served, ended, job, nothing, serving
from tests.unit.engine.examined import Measured


async def submit(served: Served, **changes: Any) -> JobRunner:
    base = {"weigh": {"kind": "measured"}, "sites": {"min": 2}, "pace": {"rounds": 3}}
    return await served.submit(job(**(base | changes)), None, nothing())


async def attend(served: Served, sites: AsyncExitStack) -> None:
    for name, value in (("a", 1.0), ("b", 3.0)):
        await sites.enter_async_context(LightSite(served.address, name, value=value).attending())


def sizes(runner: JobRunner) -> list[Any]:
    return [entry.diagnostics["weigh"]["sizes"] for entry in runner.view().history[1:]]


def under_way(runner: JobRunner) -> dict[int, str]:
    orders = runner.machine.state.orders
    return {n: repr(order) for n, order in orders.items() if isinstance(order, Examine)}


async def test_weights_follow_from_this_update_and_from_the_kept_numbers_of_the_last_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await submit(served))
    first = {"a": 12.0, "b": 36.0}  # 12 numbers; the community model is then 2.5
    second = {"a": 12 * 3.5 + first["a"], "b": 12 * 5.5 + first["b"]}
    assert sizes(runner)[:2] == [first, second]
    assert dict(runner.view().history[2].contributions) == second
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        assert verify(backends, record)[2] == []
        assert not [key for key in backends.store.keys(f"{runner.id}/") if "/x" in key]


async def test_an_examination_that_a_crash_interrupts_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, killed = threading.Event(), threading.Event()
    honest = Measured.examine

    def interrupted(self: Measured, question: Any, contributions: Any, models: Any) -> Findings:
        if models.kept("a") is not None:  # in the second merge
            begun.set()
            killed.wait(20)
            raise OSError("the controller is gone")
        return honest(self, question, contributions, models)

    monkeypatch.setattr(Measured, "examine", interrupted)
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await submit(served)
        assert await asyncio.to_thread(begun.wait, 20)
        held = under_way(runner)
        served.federation.launcher.stop()  # nothing that happens from here on reaches the journal
        killed.set()
    monkeypatch.setattr(Measured, "examine", honest)
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        again = served.jobs.runner(runner.id)
        assert under_way(again) == held
        await attend(served, sites)
        assert (await ended(again)).view().status == "completed"
    assert sizes(again)[1] == {"a": 12 * 3.5 + 12, "b": 12 * 5.5 + 36}


@pytest.mark.parametrize("trouble", ["raises", "slow"])
async def test_a_part_that_finds_nothing_does_not_stop_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    late = threading.Event()

    def examine(self: Measured, question: Any, contributions: Any, models: Any) -> Findings:
        if trouble == "raises":
            raise ArithmeticError("no inverse")
        late.wait(20)
        return Findings({}, {"a": None})

    monkeypatch.setattr(Measured, "examine", examine)
    monkeypatch.setattr(Measured, "examination_seconds", 0.05)
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await submit(served, pace={"rounds": 1}))
        late.set()
    told = (
        "weigh 'measured': ArithmeticError: no inverse"
        if trouble == "raises"
        else "the examination of updates by weigh 'measured' took longer than 0.05 s"
    )
    assert told in runner.machine.memories["weigh"].model_dump()["troubles"][0]
    assert dict(runner.view().history[1].contributions) == {"a": 1.0, "b": 1.0}


async def test_the_time_that_a_part_needs_to_load_does_not_count_as_examining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = threading.Event()

    def warm_up(self: Measured) -> None:
        loaded.wait(1.0)  # nobody sets it: a second, which is longer than an examination may take
        loaded.set()

    monkeypatch.setattr(Measured, "warm_up", warm_up)
    monkeypatch.setattr(Measured, "examination_seconds", 0.5)
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites)
        runner = await ended(await submit(served, pace={"rounds": 1}))
    assert sizes(runner) == [{"a": 12.0, "b": 36.0}]
