"""`hansa site list` shows since when and why a daemon is away."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.ids import SiteName
from hansa.common.values.views import DaemonView
from tests.cutting_proxy import CuttingProxy
from tests.support import LightSite, Served, job, nothing, serving, wait_for_ever
from tests.waiting import eventually


async def absent(served: Served, why: str) -> DaemonView:
    """Wait until the only daemon is away for a reason, and return its view."""
    async with AsyncClient(Endpoint(served.address)) as client:

        async def away() -> DaemonView | None:
            (view,) = await client.sites()
            return view if view.state == "away" and view.why == why else None

        view: DaemonView = await eventually(away)
        return view


async def test_a_daemon_whose_connection_broke_is_shown_with_the_time_even_after_the_grace_period(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, grace=1) as served, CuttingProxy(served.address).listening() as proxy:
        async with LightSite(proxy.address, "a").attending():
            proxy.passes.clear()
            proxy.cut()
            lost = await absent(served, "its connection was lost")
            left = await absent(served, "its connection was lost; it did not come back within 1 s")
            assert left.since == lost.since
            assert abs(datetime.now(UTC) - datetime.fromisoformat(lost.since)) < timedelta(minutes=1)
            proxy.passes.set()
            await eventually(lambda: served.federation.fleet.find(SiteName("a"), "learner"))
        (view,) = served.federation.fleet.views()
        assert (view.state, view.why) in (("attending", ""), ("away", "its connection was lost"))


async def test_a_daemon_that_was_stopped_is_distinguished_from_one_that_was_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending() as site:
        await site.attendance.leave()
        await absent(served, "it was stopped")


async def test_a_silent_daemon_is_away_for_that_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, heartbeat=5) as served, LightSite(served.address, "a").attending():
        fleet = served.federation.fleet
        (session,) = fleet.sessions
        session.last_seen -= 100
        fleet.reap()
        (view,) = (each for each in fleet.views() if each.state == "away")
        assert view.why == "it was silent for 15 s"


async def test_a_daemon_that_does_not_return_to_a_restarted_controller_is_away_since_its_start(
    tmp_path: Path,
) -> None:
    async with (
        serving(tmp_path) as served,
        LightSite(served.address, "a", answer=wait_for_ever).attending() as site,
    ):
        runner = await served.submit(job(), None, nothing())
        async with asyncio.timeout(20):
            while not runner.machine.state.learners:
                await runner.next_change().wait()
        del site
    async with serving(tmp_path) as served:
        await absent(served, "it has not connected since the controller was started")


async def test_of_many_that_have_left_only_the_newest_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hansa.controller.fleet.fleet.REMEMBERED", 2)
    async with serving(tmp_path) as served:
        for name in "cba":
            async with LightSite(served.address, name).attending() as site:
                await site.attendance.leave()
                await eventually(lambda: not served.federation.fleet.sessions)
        assert [view.site for view in served.federation.fleet.views()] == ["a", "b"]
