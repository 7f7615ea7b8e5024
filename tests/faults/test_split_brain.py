"""A controller is suspended while it writes to Redis; its successor goes on; then it wakes up.

Two trials in every test run. The long form: HANSA_SPLIT_BRAINS=20 pytest tests/faults -k split_brain
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hansa.common.client.asynchronous import AsyncClient
from tests.e2e.conftest import Site
from tests.redis_server import RedisServer
from tests.support import LightSite, job, serving
from tests.waiting import eventually

TRIALS = int(os.environ.get("HANSA_SPLIT_BRAINS", "2"))
JOB = job(rule="async-fedavg", pace={"updates": 100_000}, sites={"min": 2})


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.nursery.processes.values():
        if process.exitcode is None and process.pid:
            os.kill(process.pid, signal.SIGCONT)  # one that stands still cannot be ended politely
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path / "redis").start()
    yield made
    made.kill()


def contents(server: RedisServer, prefix: str) -> dict[bytes, Any]:
    """Return all keys of a prefix with their values."""
    client: Any = server.client()
    held = {key: client.dump(key) for key in client.keys(f"{prefix}:*")}
    client.close()
    return held


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.timeout(60 + 40 * TRIALS)
async def test_split_brain_leaves_nothing_of_the_loser(scene: Site, server: RedisServer) -> None:
    chance = random.Random(TRIALS)
    for trial in range(TRIALS):
        prefix = f"trial-{trial}"
        store = f"{server.url}?prefix={prefix}"
        moment = chance.randrange(30, 150)  # of all writes since the start; the first few are not the job's
        name, freeze = f"loser-{trial}", {"HANSA_FREEZE_AT": f"redis-write:{moment}"}
        address = await asyncio.to_thread(scene.controller, name, store=store, **freeze)
        loser = scene.nursery.processes[name]
        assert loser.pid
        async with AsyncExitStack() as sites, AsyncClient(address) as client:
            for site in "abc":
                await sites.enter_async_context(LightSite(address, site).attending())
            await client.submit(JOB)
            await eventually(partial(stands_still, loser.pid), 30)
            redis = server.client()
            redis.delete(f"{prefix}:{{0}}:lease")  # it stood still for longer than that
            redis.close()
            async with serving(scene.folder / name, store=store) as successor:
                assert [
                    view.status for view in (runner.view() for runner in successor.jobs.newest_first)
                ] == ["running"]
            before = contents(server, prefix)
            os.kill(loser.pid, signal.SIGCONT)
            await asyncio.to_thread(loser.join, 30)
        log = scene.log(name).read_text()
        assert contents(server, prefix) == before, f"write {moment} came through"
        assert loser.exitcode == 1, log
        assert "was in use by another controller while this one was suspended" in log
