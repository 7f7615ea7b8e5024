"""Things that once went wrong: callers that hang up, missed changes, damaged journals, leaked drafts."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.process.clock import SystemClock
from hansa.common.values.errors import Broken, HansaError
from hansa.common.values.ids import JobId, SiteName
from hansa.common.values.results import Failure
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.federation import Federation
from hansa.controller.storage.backends import opened
from hansa.controller.storage.journal import Entry, JobRecord, SqliteJournal
from hansa.controller.storage.redis.space import key_below
from hansa.controller.verify.cli import command as verify_command
from tests.redis_server import RedisServer
from tests.support import (
    LightSite,
    ended,
    filled,
    job,
    model_of,
    nothing,
    renew_checksums,
    sealed,
    serving,
    small_spec,
    wait_for_ever,
)
from tests.waiting import eventually


async def test_a_caller_that_hangs_up_harms_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        steady = await served.submit(job(name="steady", pace={"rounds": 40}), None, nothing())
        for _ in range(5):
            runner = await served.submit(job(name="doomed", pace={"rounds": 1000}), None, nothing())
            posts = [runner.post(ev.CancelAsked(at=0)) for _ in range(20)]
            for post in posts:
                post.cancel()
            await ended(runner)
        assert (await ended(steady)).view().status == "completed"


async def test_a_slow_watcher_still_sees_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        async with AsyncClient(served.address) as client:
            runner = await served.submit(job(pace={"rounds": 30}), None, nothing())
            watching = aiter(client.views(runner.id))
            await anext(watching)
            await ended(runner)
            async with asyncio.timeout(10):
                last = [view async for view in watching][-1]
            assert last.status == "completed"


async def test_watching_sends_each_version_with_its_metrics_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for role in ("learner", "evaluator"):
            await sites.enter_async_context(LightSite(served.address, "a", role=role).attending())
        async with AsyncClient(served.address) as client:
            runner = await served.submit(job(pace={"rounds": 60}), None, nothing())
            seen = [
                entry.version
                async for view in client.views(runner.id)
                for entry in view.history
                if entry.evaluated
            ]
        measured = {entry.version for entry in runner.view().history if entry.evaluated}
        assert 60 in measured
        assert set(seen) == measured
        assert len(seen) < 60 * 3


async def test_a_job_in_which_nobody_ever_delivered_fails(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a", answer=wait_for_ever).attending():
        pace = {"rounds": 2, "deadline": 0.1}
        runner = await ended(await served.submit(job(pace=pace), None, nothing()))
        assert runner.view().status == "failed"
        assert "no site delivered an update" in runner.view().reason


@pytest.mark.parametrize("name", ["aa", "zz"])
async def test_a_site_without_the_app_fails_a_new_job_whatever_its_name(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "m").attending())
        await sites.enter_async_context(LightSite(served.address, name, app="other.py:app").attending())
        runner = await ended(await served.submit(job(), None, nothing()))
        assert runner.view().reason.startswith(f"site {name} (learner)")


async def test_a_site_without_the_app_that_joins_later_does_not_disturb_the_job(tmp_path: Path) -> None:
    started, joined = asyncio.Event(), asyncio.Event()

    async def slowly(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and task.round == 2:
            started.set()
            await joined.wait()
        await site.do(task)

    async with serving(tmp_path) as served, LightSite(served.address, "m", answer=slowly).attending():
        runner = await served.submit(job(pace={"rounds": 3}), None, nothing())
        await started.wait()
        async with LightSite(served.address, "late", app="other.py:app").attending():
            joined.set()
            assert (await ended(runner)).view().status == "completed"


async def test_why_an_evaluator_could_not_evaluate_is_shown(tmp_path: Path) -> None:
    async def broken(site: LightSite, task: Task) -> None:
        assert isinstance(task.work, Evaluate)
        await site.attendance.report_failure(task.id, Failure(reason="no more ink"))

    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        async with LightSite(served.address, "a", role="evaluator", answer=broken).attending():
            runner = await ended(await served.submit(job(pace={"rounds": 1}), None, nothing()))
            assert runner.view().history[-1].unevaluated == {"a": "no more ink"}


async def test_a_job_with_a_damaged_journal_is_listed_as_failed_and_others_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        good = await ended(await served.submit(job(name="good"), None, nothing()))
        bad = await ended(await served.submit(job(name="bad"), None, nothing()))
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute(
            'update entries set event = \'{"kind": "nonsense"}\' where job = ? and sequence = 3', (bad.id,)
        )
        db.execute("delete from summaries")  # the controller was killed as it was about to write them
    db.close()
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        views = {view.name: view for view in await client.jobs()}
        assert views["good"].status == "completed"
        assert views["bad"].status == "failed"
        assert f"journal entry 3 of job {bad.id} is damaged" in views["bad"].reason
        assert good.id in {view.job for view in await client.jobs()}


async def test_a_damaged_time_in_one_job_does_not_disturb_the_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        jobs = [await ended(await served.submit(job(), None, nothing())) for _ in range(4)]
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        event = "replace(event, '\"at\":', '\"at\":9999')"
        change = f"update entries set event = {event} where job = ? and sequence = 3"
        assert db.execute(change, (jobs[0].id,)).rowcount == 1
        db.execute("update jobs set at = 'x' where id = ?", (jobs[1].id,))
        db.execute("update jobs set at = 1e300 where id = ?", (jobs[2].id,))
        db.execute("delete from summaries")  # the controller was killed as it was about to write them
    db.close()
    latest = max(runner.machine.state.ended or 0.0 for runner in jobs)
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        assert served.federation.clock.now() < latest + 3600
        views = {view.job: view for view in await client.jobs()}
        assert f"journal entry 3 of job {jobs[0].id} is damaged" in views[jobs[0].id].reason
        for bad in jobs[1:3]:
            assert f"the record of job {bad.id} is damaged" in views[bad.id].reason
        assert views[jobs[3].id].status == "completed"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            """update entries set event = replace(event, '"at":1', '"at":2') where job = ? and sequence=3""",
            "entry 3",
        ),
        ("update jobs set at = at + 1e9 where id = ?", "the record"),
    ],
)
async def test_a_plausible_wrong_digit_in_a_time_does_not_move_the_clock(
    tmp_path: Path, change: str, named: str
) -> None:
    """Thirty years later every deadline would have passed."""
    patient = job(sites={"min": 2, "wait": 3600})
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        bad = await ended(await served.submit(job(), None, nothing()))
        good = await served.submit(patient, None, nothing())
        now = served.federation.clock.now()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        assert db.execute(change, (bad.id,)).rowcount == 1
        db.execute("delete from summaries")  # the controller was killed as it was about to write them
    db.close()
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        assert served.federation.clock.now() < now + 3600
        view = served.jobs.runner(bad.id).view()
        assert view.status == "failed"
        assert named in view.reason
        assert "is damaged" in view.reason
        for name in "ab":
            await sites.enter_async_context(LightSite(served.address, name).attending())
        assert (await ended(served.jobs.runner(good.id))).view().status == "completed"


async def test_a_job_of_which_only_models_are_left_is_listed_as_failed(
    tmp_path: Path, redis: RedisServer
) -> None:
    """A Redis that evicts keys drops first what is seldom read: the records of jobs."""
    store = f"{redis.url}?prefix=forgotten"
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        runner = await ended(await served.submit(job(), None, nothing()))
    client = redis.client()
    client.delete(key_below("forgotten", "jobs"))
    client.close()
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        (view,) = [each.view() for each in served.jobs.newest_first]
        assert (view.job, view.status) == (runner.id, "failed")
        assert "the journal has no record of it: it was evicted or lost" in view.reason
        assert (await ended(await served.submit(job(), None, nothing()))).view().status == "completed"


async def test_a_foreign_value_in_place_of_a_model_fails_one_job_and_others_go_on(
    tmp_path: Path, redis: RedisServer
) -> None:
    store = f"{redis.url}?prefix=misplaced"
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        good = await ended(await served.submit(job(), None, nothing()))
        bad = await served.submit(job(pace={"rounds": 10_000}), None, nothing())
        while bad.machine.state.version < 1:
            await bad.next_change().wait()
    client = redis.client()
    client.delete(key_below("misplaced", "model", str(bad.machine.state.current)))
    client.sadd(key_below("misplaced", "model", str(bad.machine.state.current)), "no model")
    client.close()
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        assert "WRONGTYPE" in (await ended(served.jobs.runner(bad.id))).view().reason
        assert (await served.jobs.recall(good.id)).view().status == "completed"
        async with LightSite(served.address, "b").attending():
            other = await served.submit(job(sites={"names": ["b"]}), None, nothing())
            assert (await ended(other)).view().status == "completed"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ('replace(spec, \'"rule":"fedavg"\', \'"rule":"our-own"\')', "there is no rule 'our-own'"),
        ("substr(spec, 1, 20)", "the record of job {job} is damaged"),
        ("cast(x'7bff' as text)", "the record of job {job} is damaged"),
    ],
)
async def test_a_job_that_can_no_longer_be_read_is_listed_as_failed_and_others_go_on(
    tmp_path: Path, change: str, why: str
) -> None:
    """A plugin that the job was submitted with is no longer installed, or the job's record is damaged."""
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        bad = await ended(await served.submit(job(name="bad"), None, nothing()))
        await ended(await served.submit(job(name="good"), None, nothing()))
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute(f"update jobs set spec = {change} where id = ?", (bad.id,))
        if "replace" in change:
            renew_checksums(db)
        db.execute("delete from summaries")  # the controller was killed as it was about to write them
    db.close()
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        views = {view.job: view for view in await client.jobs()}
        assert views[bad.id].status == "failed"
        assert why.format(job=bad.id) in views[bad.id].reason
        assert [view.status for view in views.values() if view.name == "good"] == ["completed"]
    words = ("--state", str(tmp_path))
    assert CliRunner().invoke(verify_command, ["good", *words]).exit_code == 0
    failed = CliRunner().invoke(verify_command, [bad.id, *words]).exception
    assert isinstance(failed, HansaError)
    assert why.format(job=bad.id) in str(failed)


async def test_no_drafts_are_left_when_jobs_are_cancelled_in_mid_upload(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        for _ in range(30):
            runner = await served.submit(job(pace={"rounds": 1000}), None, nothing())
            while runner.machine.state.round < 2:
                await runner.next_change().wait()
            runner.post(ev.CancelAsked(at=served.federation.clock.now()))
            await ended(runner)
        await eventually(lambda: not list((tmp_path / "store" / "drafts").iterdir()))


async def test_a_merge_that_is_done_when_the_journal_breaks_does_not_keep_the_job_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        records = served.federation.records
        append = records.append

        async def broken(of: JobId, entries: Sequence[Entry]) -> None:
            held = served.jobs.runner(of)
            if held.machine.state.merging:  # it has begun before the event that asks for it is durable
                await eventually(lambda: held.backlog)  # by the merge's result: the site has nothing to say
                raise Broken("the journal lost entries")
            await append(of, entries)

        monkeypatch.setattr(records, "append", broken)
        runner = await served.submit(job(), None, nothing())
        assert (await ended(runner)).view().reason == "the journal lost entries"
        await eventually(lambda: runner.id not in served.federation.launcher.running)


async def test_a_site_that_connects_is_not_sent_a_task_whose_event_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served, asyncio.timeout(20):
        records = served.federation.records
        append, writing, going = records.append, asyncio.Event(), asyncio.Event()

        async def slow(of: JobId, entries: Sequence[Entry]) -> None:
            if served.jobs.runner(of).machine.state.tasks:
                writing.set()
                await going.wait()
            await append(of, entries)

        monkeypatch.setattr(records, "append", slow)
        async with LightSite(served.address, "a").attending():
            submission = asyncio.create_task(served.submit(job(), None, nothing()))
            await writing.wait()
        async with LightSite(served.address, "a").attending():
            (runner,) = served.jobs.newest_first
            session = served.federation.fleet.find(SiteName("a"), "learner")
            assert session is not None
            assert (len(runner.machine.state.tasks), session.in_hand) == (1, set())
            going.set()
            assert await submission is runner
            assert (await ended(runner)).view().status == "completed"


async def test_an_operator_that_hangs_up_after_submitting_has_submitted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        async with AsyncClient(served.address) as client:
            for number in range(20):
                asking = asyncio.create_task(client.submit(job(name=f"j{number}", pace={"rounds": 1})))
                await asyncio.wait([asking], timeout=0.001 * number)
                asking.cancel()

            def recorded() -> set[JobId]:
                return {record.id for record in served.journal.jobs()}

            await eventually(lambda: len(served.guard.calls) == 1)  # that of the site
            await eventually(lambda: recorded() == {runner.id for runner in served.jobs.newest_first})
            assert recorded()


@pytest.mark.parametrize("restart", [False, True])
async def test_counters_come_from_the_committing_site_also_after_a_restart(
    tmp_path: Path, restart: bool
) -> None:
    """The sums are rebuilt from the last updates of all sites, and another site's has the largest weight."""

    async def once(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and task.round > 1:
            await asyncio.Event().wait()
        await (
            site.send(task, filled(site.spec, site.value)) if isinstance(task.work, Train) else site.do(task)
        )

    spec = job(rule="async-fedavg", pace={"updates": 2})
    async with AsyncExitStack() as first:
        served = await first.enter_async_context(serving(tmp_path))
        heavy = LightSite(served.address, "heavy", value=5.0, examples=100, answer=once)
        await first.enter_async_context(heavy.attending())
        runner = await served.submit(spec, None, nothing())
        while runner.machine.state.version < 1:
            await runner.next_change().wait()
        if restart:
            await first.aclose()
            served = await first.enter_async_context(serving(tmp_path))
            runner = served.jobs.runner(runner.id)
        async with LightSite(served.address, "light", value=9.0, examples=1, answer=once).attending():
            await ended(runner)
        assert model_of(served, runner)["norm.count"] == 9


async def test_a_clock_that_was_set_back_while_the_controller_was_down_moves_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job(pace={"rounds": 1, "deadline": 2.0, "quorum": 1})
    async with serving(tmp_path) as served:
        async with LightSite(served.address, "a", answer=wait_for_ever).attending():
            runner = await served.submit(spec, None, nothing())
            while not runner.machine.state.round:
                await runner.next_change().wait()
    latest = runner.machine.state.latest
    monkeypatch.setattr("time.time", lambda now=time.time: now() - 3600)
    async with serving(tmp_path) as served:
        async with LightSite(served.address, "a", answer=wait_for_ever).attending():
            assert served.federation.clock.now() >= latest
            async with asyncio.timeout(20):
                again = await ended(served.jobs.runner(runner.id))
    assert again.view().status == "failed"
    assert again.machine.state.ended is not None
    assert again.machine.state.ended >= latest


class StoppedClock(SystemClock):
    """A clock that was set back, does not move, and records for how long it was asked to sleep."""

    def __init__(self) -> None:
        self._now = 900.0
        self.asked: list[float] = []

    def now(self) -> float:
        return self._now

    def catch_up(self, at: float) -> None:
        self._now = max(self._now, at)

    async def sleep_until(self, at: float) -> None:
        self.asked.append(at - self._now)
        await asyncio.Event().wait()


async def test_a_clock_that_was_set_back_moves_no_deadline_of_a_job_that_nothing_has_happened_to(
    tmp_path: Path,
) -> None:
    """The time of a submission counts, also for the jobs before it."""
    clock, spec = StoppedClock(), job(sites={"min": 9, "wait": 4100.0}).model_dump_json()
    with opened(f"disk:{tmp_path / 'store'}", tmp_path) as held:
        held.journal.create(JobRecord(JobId("j1"), spec, 1000.0))
        held.journal.create(JobRecord(JobId("j2"), spec, 5000.0))
        async with Federation(held.store, held.journal, clock, heartbeat=5.0):
            while len(clock.asked) < 3:  # two jobs wait for sites, and the fleet is looked after
                await asyncio.sleep(0)
    assert sorted(clock.asked) == [5.0, 100.0, 4100.0]


async def test_a_submission_that_ends_before_the_journal_knows_it_leaves_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, payload = sealed(small_spec(), filled(small_spec(), 7))

    async def frames() -> AsyncIterator[bytes]:
        yield payload.tobytes()

    def killed(journal: SqliteJournal, record: JobRecord) -> None:
        assert not list((tmp_path / "store" / "models").glob("*/*")), "a kill here would leave it for ever"
        raise Broken("no room")

    monkeypatch.setattr(SqliteJournal, "create", killed)
    async with serving(tmp_path) as served:
        with pytest.raises(Broken, match="no room"):
            await served.submit(job(), manifest, frames())
        assert served.federation.store.keys() == []
        assert list((tmp_path / "store" / "drafts").iterdir()) == []
