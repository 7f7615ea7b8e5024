"""A start reads only what it needs: ended jobs are listed by their summaries, and read on request."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.frames import Sealer, cut, pack
from hansa.common.values.errors import NotFound, Refused, Stale
from hansa.common.values.ids import JobId, ModelKey, SiteName
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import JobView
from hansa.controller.jobs import directory, telling
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.storage.redis.space import key_below
from tests.redis_server import RedisServer
from tests.support import LightSite, Served, ended, filled, job, nothing, sealed, serving, small_spec
from tests.waiting import eventually

PREFIX = "restarts"
FACTS = UpdateFacts(n_train=10, n_used=10, steps=1, epochs=1, seconds=0)


class Scene:
    """A controller that is started again, and access to its journal."""

    def __init__(self, folder: Path, server: RedisServer | None) -> None:
        self.folder, self.server = folder, server
        self.store = f"{server.url}?prefix={PREFIX}-{folder.name}" if server else f"disk:{folder / 'store'}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Served]:
        async with serving(self.folder, store=self.store) as served:
            yield served

    def destroy_events(self, job: JobId) -> None:
        """Make all events of a job unreadable."""
        self._change(
            ("delete from snapshots where job = ?", "update entries set event = 'x' where job = ?"),
            lambda client, key: client.delete(key("journal", job), key("snapshot", job)),
            job,
        )

    def lose_summary(self, job: JobId) -> None:
        """Leave the journal as a controller would if it were killed at that moment."""
        self._change(
            ("delete from summaries where job = ?",),
            lambda client, key: client.hdel(key("summaries"), job),
            job,
        )

    def damage_summary(self, job: JobId) -> None:
        self._change(
            ("update summaries set text = replace(text, 'completed', 'cancelled') where job = ?",),
            lambda client, key: client.hset(
                key("summaries"), job, client.hget(key("summaries"), job).replace(b"completed", b"cancelled")
            ),
            job,
        )

    def spoil_summaries(self) -> None:
        """Replace the summaries by something that can be neither read nor written."""
        self._change(
            ("alter table summaries rename column text to words",),
            lambda client, key: client.delete(key("summaries")) and client.set(key("summaries"), "x"),
        )

    def summaries(self) -> set[JobId]:
        with opened(self.store, self.folder, lease=False) as backends:
            return set(backends.journal.summaries())

    def _change(
        self, statements: tuple[str, ...], deed: Callable[[Any, Callable[..., str]], Any], *job: JobId
    ) -> None:
        if self.server:
            client = self.server.client()
            assert deed(client, lambda *words: key_below(f"{PREFIX}-{self.folder.name}", *words)) is not None
            client.close()
            return
        with sqlite3.connect(self.folder / "journal.sqlite") as db:
            for statement in statements:
                db.execute(statement, job)
        db.close()


@pytest.fixture(params=["disk", "redis"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path, request.getfixturevalue("redis") if request.param == "redis" else None)


async def concluded(served: Served, runner: JobRunner) -> JobRunner:
    """Wait until a job has ended and its end and summary are written."""
    await ended(runner)
    await eventually(lambda: runner.id not in served.federation.launcher.running)
    return runner


async def run_two(scene: Scene) -> tuple[JobRunner, JobRunner, list[JobView]]:
    """Run a job to its end and leave another waiting; return both, and the list that operators see."""
    async with scene.serving() as served, AsyncClient(served.address) as client:
        async with LightSite(served.address, "a").attending():
            done = await served.submit(job(name="done"), None, nothing())
            await concluded(served, done)
            waiting = await served.submit(
                job(name="waiting", sites={"min": 9, "wait": 3600}), None, nothing()
            )
            return done, waiting, await client.jobs()


async def test_a_start_reads_no_events_of_ended_jobs(scene: Scene) -> None:
    """The list is the same, whatever happened to the events. The job itself shows the reason."""
    done, waiting, before = await run_two(scene)
    scene.destroy_events(done.id)
    async with scene.serving() as served, AsyncClient(served.address) as client:
        after = await client.jobs()
        assert [view.job for view in after] == [waiting.id, done.id]
        assert after[1] == before[1]
        assert (await client.status()).jobs == {"completed": 1, "waiting": 1}
        shown = await client.show("done")
        assert shown.status == "failed"
        assert "`hansa job verify` shows details" in shown.reason


async def test_an_ended_job_is_read_in_full_when_it_is_asked_for(scene: Scene) -> None:
    done, _, _ = await run_two(scene)
    before = done.view()
    async with scene.serving() as served, AsyncClient(served.address) as client:
        assert done.id not in {runner.id for runner in served.jobs.newest_first}
        for words in ("done", done.id[:6], done.id):
            shown = await client.show(words)
            assert (
                shown.model_copy(update={"resolved": None}) == before
            )  # the resolved job is of no view but this
        assert [view async for view in client.views(done.id, detail=True)] == [before]
        manifest, _, _ = await client.model(done.id)
        assert manifest.digest.hex() == done.machine.state.history[-1].digest
        with pytest.raises(Refused, match="has already ended: completed"):
            await client.cancel("done")
        with pytest.raises(NotFound, match="there is no job 'nothing'"):
            await client.show("nothing")
        again = await served.jobs.recall(done.id)
        assert again.machine.state.model_dump() == done.machine.state.model_dump()


@pytest.mark.parametrize("harm", ["lose_summary", "damage_summary"])
async def test_a_summary_that_is_missing_is_made_again(scene: Scene, harm: str) -> None:
    """The controller was killed between the end of the job and the summary, or it is damaged."""
    done, _, before = await run_two(scene)
    getattr(scene, harm)(done.id)
    assert scene.summaries() == set()
    for _ in range(2):
        async with scene.serving() as served, AsyncClient(served.address) as client:
            assert (await client.jobs())[1] == before[1]
        assert scene.summaries() == {done.id}
        scene.destroy_events(done.id)  # the next start does not need them


async def test_summaries_that_can_be_neither_read_nor_written_keep_no_controller_from_starting(
    scene: Scene,
) -> None:
    """They only save time: the jobs are read from their events and are the same."""
    _, waiting, before = await run_two(scene)
    scene.spoil_summaries()
    async with scene.serving() as served, AsyncClient(served.address) as client:
        after = await client.jobs()
        assert after[1] == before[1]
        assert (await client.show("done")).status == "completed"
        assert [runner.id for runner in served.jobs.newest_first] == [waiting.id]


async def test_an_ended_job_has_moved_as_much_as_its_summary_says_however_it_is_asked_for(
    scene: Scene,
) -> None:
    """No version accounts for what its site fetched before the job was cancelled."""
    fetched = asyncio.Event()

    async def fetch_only(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            await site.fetch(task.work.model)
            fetched.set()
            await asyncio.Event().wait()
        await site.do(task)

    async with scene.serving() as served, AsyncClient(served.address) as client:
        async with LightSite(served.address, "a", answer=fetch_only).attending(), asyncio.timeout(30):
            runner = await served.submit(job(), None, nothing())
            await fetched.wait()
            await client.cancel(runner.id)
            await concluded(served, runner)
        before = runner.view()
    assert min(before.bytes_up, before.bytes_down) > 0
    async with scene.serving() as served, AsyncClient(served.address) as client:
        (listed,), shown = await client.jobs(), await client.show(runner.id)
        for view in (listed, shown):
            assert (view.bytes_up, view.bytes_down) == (before.bytes_up, before.bytes_down)


async def test_a_job_that_failed_without_an_event_is_not_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal does not contain the end: the next start decides what happens to the job."""
    scene = Scene(tmp_path, None)
    async with scene.serving() as served, LightSite(served.address, "a").attending():
        runner = await served.submit(job(pace={"rounds": 10_000}), None, nothing())
        while runner.machine.state.version < 2:
            await runner.next_change().wait()

        async def broken(*_: object) -> None:
            raise ValueError("no more ink")

        monkeypatch.setattr(served.federation.records, "append", broken)
        await concluded(served, runner)
        assert runner.view().status == "failed"
    assert scene.summaries() == set()


async def test_models_that_an_ended_job_does_not_need_are_dropped(scene: Scene) -> None:
    """An update arrived at the moment of the crash, when its job had ended."""
    done, _, _ = await run_two(scene)
    stray, spec = ModelKey(f"{done.id}/u99"), small_spec()
    with opened(scene.store, scene.folder) as backends:
        draft, sealer = backends.store.draft(stray, spec), Sealer(spec)
        for index, frame in enumerate(cut(pack(spec, filled(spec, 1.0)))):
            sealer.feed(frame)
            draft.write(index, frame)
        draft.publish(sealer.manifest(), sealer.peaks)
    async with scene.serving() as served:
        assert set(served.federation.store.keys(f"{done.id}/")) == done.machine.state.models
    assert stray not in done.machine.state.models


async def test_a_site_that_did_not_hear_of_its_receipt_gets_it_when_the_job_has_ended(scene: Scene) -> None:
    done, _, _ = await run_two(scene)
    site = SiteName("a")
    receipt = done.machine.state.receipts[site]
    assert receipt.task
    async with scene.serving() as served:
        intake, spec = served.federation.intake, small_spec()
        manifest, _ = sealed(spec, filled(spec, 1.0))
        await intake.require_wanted(site, receipt.task)
        assert await intake.offer(site, receipt.task, manifest, FACTS) == (0, receipt)
        with pytest.raises(Stale, match="is over"):
            await intake.require_wanted(SiteName("b"), receipt.task)


async def test_only_the_last_jobs_to_end_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LOADED", 1)
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        async with LightSite(served.address, "a").attending():
            names = ("first", "second", "third")
            done = [await concluded(served, await served.submit(job(name=n), None, nothing())) for n in names]
        assert [runner.id for runner in served.jobs.runners] == [done[-1].id]
        assert [view.name for view in await client.jobs()] == ["third", "second", "first"]
        assert (await client.status()).jobs == {"completed": 3}
        for runner in done:
            shown = await client.show(runner.id)
            assert shown.model_copy(update={"resolved": None}) == runner.view()
            assert await client.model(runner.id)


async def test_a_view_has_no_more_versions_than_fit_into_a_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        async with LightSite(served.address, "a").attending():
            runner = await concluded(served, await served.submit(job(), None, nothing()))
        for largest, views in ((1, [[0], [1], [2]]), (telling.LARGEST, [[0, 1, 2]])):
            monkeypatch.setattr(telling, "LARGEST", largest)
            told = [view async for view in client.views(runner.id, detail=True)]
            assert [[entry.version for entry in view.history] for view in told] == views
