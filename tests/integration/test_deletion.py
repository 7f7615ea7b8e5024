"""Jobs that are deleted: nothing is left of them but a record, and the audit log stays sound."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.values.errors import NotFound, Refused, Stale
from hansa.common.values.ids import JobId
from hansa.common.values.tasks import Task, Train
from hansa.controller.jobs import records
from hansa.controller.storage.backends import opened
from tests.support import LightSite, Served, ended, job, nothing, serving, wait_for_ever


def verified(folder: Path, store: str) -> dict[str, Any]:
    where = ["--state", str(folder), *(["--store", store] if store else [])]
    done = CliRunner().invoke(hansa, ["audit", "verify", *where, "--json"])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def run_one(served: Served, updates: int = 12) -> JobId:
    spec = job(rule="async-fedavg", pace={"updates": updates})
    return (await ended(await served.submit(spec, None, nothing()))).id


def files(folder: Path) -> str:
    return " ".join(str(path) for path in folder.rglob("*"))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("journal.sqlite*"))


@pytest.fixture(params=["disk", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "disk":
        return ""
    return f"{request.getfixturevalue('redis').url}?prefix={request.node.name.encode().hex()[-40:]}"


async def test_a_deleted_job_leaves_a_record_and_nothing_else(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SNAPSHOT_EVERY", 10)
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        kept, old = await run_one(served), await run_one(served)
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        new = await run_one(served)
        async with AsyncClient(served.address) as client:
            assert await client.delete(old) == old  # from the archive
            assert await client.delete(new[:6]) == new  # one that ended since the start
            assert [view.job for view in await client.jobs()] == [kept]
            with pytest.raises(NotFound):
                await client.delete(old)
            said = [record async for record in client.audit()]
            assert [record async for record in client.audit(last=2)] == said[-2:]
            assert [record async for record in client.audit(said[-2].sequence, last=9)] == said[-1:]
            assert [record async for record in client.audit(last=len(said) + 9)] == said
        gone = [r for r in said if r.what == "deleted"]
        assert [(r.about, r.why.partition(": ")[2]) for r in gone] == [(old, "completed"), (new, "completed")]
        assert {r.digest for r in gone} < {r.digest for r in said if r.what == "ended"}
    with opened(store or f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        assert [record.id for record in backends.journal.jobs()] == [kept]
        assert {key.partition("/")[0] for key in backends.store.keys("")} == {kept}
        for each in (old, new):
            assert not backends.journal.entries(each)
            assert backends.journal.snapshot(each) is None
        assert set(backends.journal.summaries()) == {kept}
    assert old not in files(tmp_path / "store")
    assert verified(tmp_path, store)["sound"]
    async with serving(tmp_path, store) as served:
        assert [view.job for view in served.jobs.views()] == [kept]
    if store:
        with closing(redis.from_url(store.partition("?")[0])) as client:
            assert not [key for each in (old, new) for key in client.scan_iter(f"*{each}*")]


async def test_the_journal_gives_space_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        gone = await run_one(served, 150)
        await served.federation.launcher.finished(gone)
        before = size(tmp_path)
        async with AsyncClient(served.address) as client:
            await client.delete(gone)
        assert size(tmp_path) < before / 3


def test_a_script_must_say_that_it_means_it() -> None:
    done = CliRunner().invoke(hansa, ["job", "delete", "j1", "--controller", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert "give --yes" in done.output


async def test_a_job_under_way_is_not_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a", answer=wait_for_ever).attending():
        runner = await served.submit(job(), None, nothing())
        async with AsyncClient(served.address) as client:
            with pytest.raises(Refused, match="has not ended; `hansa job cancel"):
                await client.delete(runner.id)
            await client.cancel(runner.id)
            assert await client.delete(runner.id) == runner.id
            assert await client.jobs() == []


async def test_a_job_that_only_cannot_be_read_is_never_deleted_because_of_its_age(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        job_id = (await served.submit(job(), None, nothing())).id
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("update jobs set spec = '{'")
    db.close()
    async with serving(tmp_path, keep_days=1e-9) as served:
        (view,) = served.jobs.views()
        assert (view.status, served.jobs.ended_before(served.federation.clock.now())) == ("failed", [])
        async with AsyncClient(served.address) as client:
            assert await client.delete(job_id) == job_id  # but an operator may


async def test_jobs_are_deleted_when_they_are_old_enough(tmp_path: Path, store: str) -> None:
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        await run_one(served)
    async with serving(tmp_path, store, keep_days=1.0) as served:
        assert len(served.jobs.known) == 1
    async with serving(tmp_path, store, keep_days=1e-9) as served:
        async with AsyncClient(served.address) as client, asyncio.timeout(20):
            async for record in client.audit(follow=True):
                if record.what == "deleted":
                    assert record.who == "controller"
                    assert "--keep-days" in record.why
                    break
        await served.federation.deletion.close()
        assert served.jobs.known == []
    assert verified(tmp_path, store)["sound"]


async def test_a_site_that_comes_back_with_an_update_for_a_deleted_job_drops_it(tmp_path: Path) -> None:
    tasks: asyncio.Queue[Task] = asyncio.Queue()

    async def keep(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            tasks.put_nowait(task)
        else:
            await site.do(task)

    async with serving(tmp_path) as served, LightSite(served.address, "a", answer=keep).attending() as site:
        runner = await served.submit(job(), None, nothing())
        task = await asyncio.wait_for(tasks.get(), 20)
        async with AsyncClient(served.address) as client:
            await client.cancel(runner.id)
            await client.delete(runner.id)
        with pytest.raises((Stale, NotFound)):
            await site.do(task)
