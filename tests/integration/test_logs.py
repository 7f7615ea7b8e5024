"""`hansa site logs`: an operator reads the last lines of a daemon's log, if the site's owner shows them."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.rpc.channel import Endpoint
from hansa.common.site.log_tail import LogTail
from hansa.common.site.policy import FREE, Policy
from hansa.common.values.errors import InvalidInput, NotFound, Refused
from hansa.common.values.ids import PROTOCOL
from hansa.controller.fleet import sessions
from hansa.protos import fleet_pb2
from tests.consortium import Consortium
from tests.support import LightSite, fleet_stub, serving


async def test_an_operator_reads_what_the_sites_owner_shows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hansa.common.site.attendance")
    pki, tail, policy = Consortium(tmp_path / "pki"), LogTail(), FREE
    tail.open()

    def read(operator: str, lines: int) -> list[str]:
        policy.require_readable(operator)
        return tail.last(min(lines or policy.logs, policy.logs))

    learner = pki.issue("learner", "a")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub")) as served:
        site = LightSite(served.address, "a", tls=learner, read_log=read)
        alice, bob = (Endpoint(served.address, pki.issue("operator", name)) for name in ("alice", "bob"))
        async with site.attending(), AsyncClient(alice) as client, AsyncClient(bob) as other:
            with pytest.raises(Refused, match="does not show its logs"):
                await client.logs("a")
            policy = Policy(logs=3, operators=("alice",))
            for number in range(5):
                logging.getLogger("hansa.learner").warning("line %d of /srv/secret.npz", number)
            shown = await client.logs("a")
            assert (shown.site, shown.role) == ("a", "learner")
            assert [line.split("WARNING ")[1] for line in shown.lines] == [
                f"line {number} of [path]" for number in (2, 3, 4)
            ]
            assert len((await client.logs("a", "learner", lines=2)).lines) == 2
            with pytest.raises(Refused, match="operator bob"):
                await other.logs("a")
            with pytest.raises(NotFound, match="no evaluator of site 'a' is connected"):
                await client.logs("a", "evaluator")
            with pytest.raises(NotFound, match="no daemon of site 'b'"):
                await client.logs("b")
            with pytest.raises(InvalidInput, match="not a daemon of a site"):
                await client.logs("a", "store")
    tail.close()
    assert "operator alice asked for the log" in caplog.text  # the site's own log tells its owner


async def test_a_daemon_that_does_not_answer_or_leaves_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older Hansa, which does not know the request."""
    leave = asyncio.Event()

    async def words() -> AsyncIterator[fleet_pb2.FromSite]:
        enrol = fleet_pb2.Enrol(
            protocol=PROTOCOL, site="a", role=fleet_pb2.LEARNER, instance="i", version="0.0.9"
        )
        yield fleet_pb2.FromSite(enrol=enrol)
        await leave.wait()
        yield fleet_pb2.FromSite(goodbye=fleet_pb2.Goodbye())

    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        channel, stub = fleet_stub(served.address)
        attending = stub.Attend(words())
        await attending.read()
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "PATIENCE", 0.2)
            with pytest.raises(Refused, match=r"learner of a \(Hansa 0.0.9\) has not answered in"):
                await client.logs("a")
        await attending.read()
        waiting = asyncio.create_task(client.logs("a"))
        await attending.read()  # the controller asks
        leave.set()
        with pytest.raises(Refused, match="has left"):
            await asyncio.wait_for(waiting, 10)
        await channel.close()
