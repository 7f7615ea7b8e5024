"""Sites whose controller is away come back soon: their own pauses decide, and not gRPC's, which grow to minutes."""

import asyncio
from pathlib import Path

from hansa.common.values.ids import SiteName
from tests.redis_server import free_port
from tests.support import LightSite, serving

TRIES = 12  # doubled from failure to failure, the pauses before them would add up to minutes


async def test_a_site_dials_about_every_second_while_its_controller_is_away_and_attends_when_it_is_back(
    tmp_path: Path,
) -> None:
    port, dialled, enough = free_port(), 0, asyncio.Event()

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        if dialled == TRIES:
            enough.set()
        writer.transport.abort()

    async with LightSite(f"127.0.0.1:{port}", "a").attending() as site:  # it is up, and keeps trying
        nobody = await asyncio.start_server(hang_up, "127.0.0.1", port)
        async with asyncio.timeout(30):
            await enough.wait()
        nobody.close()
        await nobody.wait_closed()
        async with serving(tmp_path, listen=f"127.0.0.1:{port}") as served, asyncio.timeout(10):
            while not served.federation.fleet.find(SiteName("a"), "learner"):
                await asyncio.sleep(0.01)
            assert not site.attendance.refused
