"""Sites reconnect soon after their controller is back: they choose the pauses, which gRPC would prolong."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hansa.common.rpc.channel import HURRY, PATIENCE
from hansa.common.rpc.errors import translated
from hansa.common.site.attendance import Attendance
from hansa.common.site.connection import APART, Identity
from hansa.common.values.errors import Unreachable
from hansa.common.values.ids import SiteName
from hansa.protos import fleet_pb2
from tests.redis_server import free_port
from tests.support import LightSite, serving
from tests.waiting import eventually

TRIES = 12  # doubled from failure to failure, the pauses before them would add up to minutes


async def test_a_site_dials_about_every_second_while_its_controller_is_down_and_connects_when_it_is_back(
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
            await eventually(lambda: served.federation.fleet.find(SiteName("a"), "learner"))
            assert not site.attendance.refused


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that does not answer, like that of a removed container: the queue of connections is full."""
    with ExitStack() as sockets:
        host = sockets.enter_context(socket.socket())
        host.bind(("127.0.0.1", 0))
        host.listen(0)
        for _ in range(3):
            caller = sockets.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(host.getsockname())
        yield f"127.0.0.1:{host.getsockname()[1]}"


async def test_a_host_that_is_silent_is_soon_given_up_whatever_is_to_be_moved(silent: str) -> None:
    """A large model has a connection of its own, which must not wait for longer than the session's."""
    loop = asyncio.get_running_loop()

    async def seconds(size: int) -> float:
        attendance = Attendance(Identity(silent, SiteName("a"), "learner"), list)
        began = loop.time()
        async with attendance.apart(size) as stub:
            with pytest.raises(Unreachable), translated():
                await stub.Report(fleet_pb2.TaskReport(site="a"))
        passed = loop.time() - began
        await attendance.connection.close()
        return passed

    small, large = await asyncio.gather(seconds(0), seconds(APART))
    assert max(small, large) < (HURRY + PATIENCE) / 2000
