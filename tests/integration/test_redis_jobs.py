"""Jobs on Redis: it dies in mid-job and comes back, or comes back empty; another machine takes over."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.values.errors import Broken
from hansa.common.values.tasks import Task, Train
from hansa.controller.community.merge import make
from hansa.controller.storage.backends import opened
from hansa.controller.storage.redis.space import key_below
from hansa.controller.verify.check import verify
from tests.redis_server import RedisServer
from tests.support import LightSite, ended, job, model_of, nothing, serving
from tests.waiting import eventually

Servers = Callable[[bool], RedisServer]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Start servers that end with the test."""
    made: list[RedisServer] = []

    def start(durable: bool) -> RedisServer:
        made.append(RedisServer(tmp_path / f"redis-{len(made)}", durable=durable).start())
        return made[-1]

    yield start
    for server in made:
        server.kill()


@pytest.mark.parametrize("durable", [True, False])
async def test_a_job_waits_while_redis_is_unavailable(
    tmp_path: Path, servers: Servers, durable: bool
) -> None:
    """With its data back, the job goes on; if Redis restarts empty, it fails. The model is never wrong."""
    server = servers(durable)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def staged(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and task.round == 2 and not go_on.is_set():
            reached.set()
            await go_on.wait()
        await site.do(task)

    async with serving(tmp_path / "state", store=server.url) as served:
        async with (
            LightSite(served.address, "a", answer=staged).attending(),
            AsyncClient(served.address) as client,
        ):
            runner = await served.submit(job(pace={"rounds": 3}), None, nothing())
            await reached.wait()
            server.kill()
            go_on.set()

            async def is_waiting() -> bool:
                return (await client.show(runner.id)).reason.startswith("waiting for the store: Redis")

            await eventually(is_waiting)
            server.start()
            await ended(runner)
            if durable:
                assert runner.view().status == "completed"
                np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.full((3, 4), 3.0))
            else:
                assert runner.view().status == "failed"
                assert "lost" in runner.view().reason


async def test_a_controller_with_another_state_directory_goes_on(tmp_path: Path, servers: Servers) -> None:
    server = servers(True)
    reached = asyncio.Event()

    async def stop(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and task.round == 2:
            reached.set()
            await asyncio.Event().wait()
        await site.do(task)

    async with serving(tmp_path / "here", store=server.url) as served:
        async with LightSite(served.address, "a", answer=stop).attending():
            first = await served.submit(job(pace={"rounds": 3}), None, nothing())
            await reached.wait()
    async with serving(tmp_path / "elsewhere", store=server.url) as served:
        async with LightSite(served.address, "a").attending():
            runner = await ended(served.jobs.runner(first.id))
            assert runner.view().status == "completed"
            np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.full((3, 4), 3.0))


async def test_a_redis_that_is_full_is_reported_until_it_has_room(tmp_path: Path, servers: Servers) -> None:
    """Jobs can still be shown, and the view says that the job waits."""
    server = servers(True)
    client = server.client()
    async with serving(tmp_path / "state", store=server.url) as served, AsyncExitStack() as sites:
        for name in "abc":
            await sites.enter_async_context(LightSite(served.address, name).attending())
        spec = job(rule="async-fedavg", pace={"updates": 60}, sites={"min": 3})
        runner = await served.submit(spec, None, nothing())
        while runner.machine.state.version < 10:
            await runner.next_change().wait()
        client.config_set("maxmemory", 1)
        await eventually(lambda: served.federation.workers.trouble)
        for _ in range(20):
            await served.federation.workers.io(served.federation.store.keys)  # reads succeed
            assert "is full; raise its maxmemory" in runner.view().reason
        client.config_set("maxmemory", 0)
        await ended(runner)
        assert runner.view().status == "completed"
        assert not served.federation.workers.trouble
    assert not client.exists(key_below("hansa", "drafts"))
    client.close()


async def test_when_redis_was_restarted_empty_the_controller_lives_on_and_says_so(
    tmp_path: Path, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    server = servers(False)
    async with serving(tmp_path / "state", store=server.url) as served:
        async with LightSite(served.address, "a").attending():
            runner = await served.submit(job(pace={"rounds": 10_000}), None, nothing())
            while runner.machine.state.version < 3:
                await runner.next_change().wait()
            server.kill()
            server.start()
            await ended(runner)
            assert runner.view().status == "failed"
            with pytest.raises(
                Broken, match=r"the audit log cannot be continued: .* restarted empty.* may help"
            ):
                await served.submit(job(), None, nothing())
            await eventually(lambda: f"the journal lost job {runner.id}" in caplog.text)
        assert served.jobs.runner(runner.id) is runner
    async with serving(tmp_path / "state", store=server.url) as served:
        async with LightSite(served.address, "a").attending():
            again = await ended(await served.submit(job(), None, nothing()))
            assert again.view().status == "completed"


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("snapshots", [2, 1000])
async def test_a_job_whose_events_were_evicted_has_failed_and_stays_so(
    tmp_path: Path, servers: Servers, alive: bool, snapshots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not start over as if no site had trained and no update had been acknowledged."""
    monkeypatch.setattr("hansa.controller.jobs.records.SNAPSHOT_EVERY", snapshots)
    server = servers(True)
    client = server.client()
    async with serving(tmp_path, store=server.url) as served, LightSite(served.address, "a").attending():
        runner = await served.submit(job(pace={"rounds": 10_000}), None, nothing())
        while runner.machine.state.version < 3:
            await runner.next_change().wait()
        if alive:
            client.delete(key_below("hansa", "journal", runner.id))
            await ended(runner)
            assert "the journal lost entries" in runner.view().reason
    client.delete(key_below("hansa", "journal", runner.id))
    with opened(server.url, tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        assert "the journal lost the job's events, but the store still has its models" in {
            found.what for found in verify(backends, record)[2]
        }
    for _ in range(2):
        async with serving(tmp_path, store=server.url) as served, LightSite(served.address, "a").attending():
            again = await ended(await served.jobs.recall(runner.id))
            assert again.view().status == "failed"
            assert "lost" in again.view().reason
    client.close()


async def test_a_merge_that_redis_interrupted_leaves_no_frames(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers(True)
    died = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted(*args: Any) -> Any:
        if died.is_set():
            return make(*args)
        current, open_draft = args[4], args[8]
        begun = open_draft("", current.manifest.spec)
        begun.write(0, b"a frame of a model that will not be")
        server.kill()
        try:
            return begun.write(0, b"the next one")
        finally:  # not before: Redis must not be back for this write
            loop.call_soon_threadsafe(died.set)

    monkeypatch.setattr("hansa.controller.work.merge.make", interrupted)
    async with serving(tmp_path / "state", store=server.url) as served:
        async with LightSite(served.address, "a").attending():
            runner = await served.submit(job(pace={"rounds": 2}), None, nothing())
            await died.wait()
            await asyncio.to_thread(server.start)
            await ended(runner)
            assert runner.view().status == "completed"
    client = server.client()  # a controller that has stopped has tidied up
    assert not client.exists(key_below("hansa", "drafts"))
    assert len(client.keys("hansa:*:frame:*")) == client.scard(key_below("hansa", "models"))
    client.close()
