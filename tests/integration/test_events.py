"""Events over the wire: in order, and without gaps or repeats when the controller restarts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.job.watching import Watching
from hansa.common.values.errors import InvalidInput, NotFound
from hansa.common.values.views import EventView
from hansa.controller.jobs import records
from tests.consortium import Consortium
from tests.e2e.conftest import hansa
from tests.redis_server import free_port
from tests.support import LightSite, ended, job, nothing, serving


async def gathered(watching: Watching, after: int, into: list[EventView]) -> None:
    into.extend([event async for event in watching.events(after)])


@pytest.mark.parametrize("snapshots", [10, 1000])
async def test_a_reader_gets_every_event_once_although_the_controller_restarts(
    tmp_path: Path, snapshots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SNAPSHOT_EVERY", snapshots)
    address = f"127.0.0.1:{free_port()}"
    told: list[EventView] = []
    later: list[EventView] = []
    async with serving(tmp_path, listen=address) as served:
        runner = await served.submit(job(rule="async-fedavg", pace={"updates": 40}), None, nothing())
        watching = Watching(Endpoint(address), runner.id, known=True, tell=lambda _: None)
        reading = asyncio.create_task(gathered(watching, 0, told))
        async with LightSite(address, "a").attending():
            while runner.machine.state.version < 15:
                await runner.next_change().wait()
    async with serving(tmp_path, listen=address) as served, LightSite(address, "a").attending():
        await ended(served.jobs.runner(runner.id))
        await asyncio.wait_for(reading, 20)
    assert [event.sequence for event in told] == list(range(1, len(told) + 1))
    assert [event.version for event in told if event.kind == "merged"] == list(range(1, 41))
    assert (told[0].kind, told[-1].kind) == ("submitted", "ended")
    async with serving(tmp_path, listen=address):  # now it is a job of the archive
        await gathered(Watching(Endpoint(address), runner.id), 0, later)
        assert later == told
        async with AsyncClient(address) as client:
            assert [event async for event in client.events(runner.id, after=30)] == told[30:]
            with pytest.raises(InvalidInput, match=f"has {len(told)} events"):
                async for _ in client.events(runner.id, after=len(told) + 1):
                    pass
            with pytest.raises(NotFound):
                async for _ in client.events("nothing"):
                    pass
        there: dict[str, Any] = {"HANSA_CONTROLLER": address}
        done = await asyncio.to_thread(
            lambda: hansa("job", "events", runner.id, "--follow", cwd=tmp_path, **there)
        )
        assert done.stdout.count("\n") == len(told)
        assert "version 40 merged: the update of a" in done.stdout
        words = ("job", "events", runner.id, "--json", "--after", "38")
        done = await asyncio.to_thread(lambda: hansa(*words, cwd=tmp_path, **there))
        assert [json.loads(line)["sequence"] for line in done.stdout.splitlines()] == [
            event.sequence for event in told[38:]
        ]


async def test_a_viewer_reads_what_happens_and_changes_nothing(tmp_path: Path) -> None:
    from hansa.common.values.errors import Forbidden

    pki = Consortium(tmp_path / "pki")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub")) as served:
        runner = await served.submit(job(), None, nothing())
        async with AsyncClient(Endpoint(served.address, pki.issue("viewer", "eve"))) as client:
            assert [view.job for view in await client.jobs()] == [runner.id]
            assert [event.kind async for event in client.events(runner.id)] == ["submitted"]
            for forbidden in (client.cancel(runner.id), client.model(runner.id), client.submit(job())):
                with pytest.raises(Forbidden, match="viewer eve may not call"):
                    await forbidden
        assert not runner.machine.ended
