"""kill -9 of the controller with a half-full buffer: every model still follows from what sites sent."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.frames import Layout, views
from tests.buffered import SITES, SPEC, Log, check
from tests.faults.conftest import Federation
from tests.faults.test_kills import CONTROLLER
from tests.support import LightSite, job


@pytest.mark.timeout(300)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
async def test_models_of_a_buffer_follow_from_what_sites_sent_though_the_controller_is_killed_at_every_point(
    federation: Federation,
) -> None:
    log = Log()
    await asyncio.to_thread(federation.bring_up, "controller")
    async with AsyncExitStack() as sites:
        for name in SITES:
            site = LightSite(federation.address, name, spec=SPEC, answer=log.answer)
            await sites.enter_async_context(site.attending())
        async with AsyncClient(federation.address) as client:
            spec = job(rule="fedbuff", pace={"updates": 160, "buffer": 4}, sites={"min": 3, "wait": 120})
            submitted = (await client.submit(spec)).view
        await asyncio.to_thread(kill_at_every_point, federation)
        async with AsyncClient(federation.address) as client:
            async for _ in client.views(submitted.job):
                pass
            shown = await client.show(submitted.job)
            manifest, payload, _ = await client.model(submitted.job)
    assert (shown.status, federation.kills) == ("completed", len(CONTROLLER)), shown.reason
    assert sum(len(entry.updates) for entry in shown.history) == 160
    assert len({update.task for entry in shown.history for update in entry.updates}) == 160
    assert max(update.staleness[0] for entry in shown.history for update in entry.updates) > 0
    assert check(shown.history, log, views(Layout(manifest.spec), payload)) > 20
    await asyncio.to_thread(federation.check, submitted.job)


def kill_at_every_point(federation: Federation) -> None:
    federation.kill(f"controller.{federation.lives['controller']}")
    for point in CONTROLLER:
        federation.bring_up("controller", kill_at=f"{point}:3")
        federation.until(lambda: not federation.alive("controller"), 60, f"it never reached {point}")
        federation.kills += 1
    federation.bring_up("controller")
