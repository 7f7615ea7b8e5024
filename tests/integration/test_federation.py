"""Whole jobs over real gRPC on loopback, with light sites."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.models.frames import cut
from hansa.common.values.errors import InvalidJob, Refused, Taken
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Failure
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import JobView
from hansa.controller.jobs.runner import JobRunner
from hansa.protos import fleet_pb2
from tests.support import (
    LightSite,
    Served,
    ended,
    filled,
    job,
    model_of,
    nothing,
    sealed,
    serving,
    small_spec,
)
from tests.waiting import eventually

F1 = pytest.approx((3 * 4 / 5 + 1 * 2 / 3) / 4)  # weighted, of the matrix that light sites report


async def submit(served: Served, spec: JobSpec) -> JobRunner:
    return await served.submit(spec, None, nothing())


async def test_a_job_of_two_sites_gives_the_exact_weighted_mean(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name, value, examples in (("a", 1.0, 1), ("b", 5.0, 3)):
            site = LightSite(served.address, name, value=value, examples=examples)
            await sites.enter_async_context(site.attending())
        runner = await ended(await submit(served, job(sites={"min": 2})))
        assert runner.machine.state.status == "completed"
        arrays = model_of(served, runner)
        np.testing.assert_array_equal(
            arrays["layer.weight"], np.full((3, 4), 8.0)
        )  # (1·1 + 3·5)/4 = 4 each round
        assert arrays["norm.count"] == 10  # from the site with the largest weight
        view = runner.view()
        assert [entry.contributions for entry in view.history[1:]] == [{"a": 1.0, "b": 3.0}] * 2
        assert view.bytes_up > 0
        assert view.bytes_down > 0


async def test_metrics_are_pooled_over_evaluators(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name in ("a", "b"):
            await sites.enter_async_context(LightSite(served.address, name, role="evaluator").attending())
        await sites.enter_async_context(LightSite(served.address, "a").attending())
        runner = await ended(await submit(served, job()))
        view = runner.view()
        assert view.metrics == {"loss": 0.5, "accuracy": 0.75, "weighted_f1": F1}
        assert view.examples == 8


async def test_a_job_whose_loss_is_nan_can_be_shown(tmp_path: Path) -> None:
    async def despair(site: LightSite, task: Task) -> None:
        report = fleet_pb2.TaskReport(site=site.name, task=task.id)
        found = fleet_pb2.Evaluation(n=4, loss_sum=float("nan"), classes=2, confusion=[2, 1, 0, 1])
        report.evaluation.MergeFrom(found)
        await site.attendance.insist(lambda: site.attendance.stub.Report(report))

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        evaluator = LightSite(served.address, "a", role="evaluator", answer=despair)
        for site in (evaluator, LightSite(served.address, "a")):
            await sites.enter_async_context(site.attending())
        view = (await ended(await submit(served, job()))).view()
        assert view.status == "completed"
        assert view.history[-1].metrics == view.metrics == {"loss": None, "accuracy": 0.75, "weighted_f1": F1}
        assert JobView.model_validate_json(view.model_dump_json()) == view


async def test_several_jobs_run_at_once_each_to_its_own_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        jobs = [await submit(served, job(name=f"job-{n}", pace={"rounds": n})) for n in (1, 2, 3)]
        failing = await submit(served, job(name="lonely", sites={"min": 2, "wait": 0.2}))
        for runner in (*jobs, failing):
            await ended(runner)
        assert [runner.view().rounds for runner in jobs] == [1, 2, 3]
        assert {runner.view().status for runner in jobs} == {"completed"}
        lonely = failing.view()
        assert lonely.status == "failed"
        assert "1 of the 2 sites needed" in lonely.reason


async def test_a_quarantined_update_is_named_and_the_round_goes_on(tmp_path: Path) -> None:
    async def poison(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            with pytest.raises(Exception, match="NaN"):
                await site.send(task, filled(site.spec, 0) | {"norm.mean": np.full(4, np.nan, np.float32)})
        else:
            await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "good").attending())
        await sites.enter_async_context(LightSite(served.address, "poisoned", answer=poison).attending())
        runner = await ended(await submit(served, job(sites={"min": 2})))
        assert runner.machine.state.status == "completed"
        for entry in runner.view().history[1:]:
            assert set(entry.contributions) == {"good"}
            assert "norm.mean holds NaN" in entry.lost["poisoned"]
        np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.full((3, 4), 2.0))


async def test_a_job_whose_every_site_fails_ends_failed_with_its_last_model(tmp_path: Path) -> None:
    async def refuse(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            await site.attendance.report_failure(task.id, Failure(reason="out of paper"))
        else:
            await site.do(task)

    async with serving(tmp_path) as served, LightSite(served.address, "a", answer=refuse).attending():
        runner = await ended(await submit(served, job()))
        assert runner.view().status == "failed"
        assert runner.view().reason == "all sites failed in round 1; a: out of paper"
        assert runner.view().version == 0
        np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.zeros((3, 4)))


async def test_a_site_that_does_not_allow_the_app_fails_the_job_by_name(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as served,
        LightSite(served.address, "strict", app="other.py:app").attending(),
    ):
        runner = await ended(await submit(served, job()))
        assert runner.view().status == "failed"
        assert "site strict (learner)" in runner.view().reason
        assert "not allowed there (allowed: other.py:app)" in runner.view().reason


async def test_a_site_where_the_app_is_broken_fails_the_job_by_name(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as served,
        LightSite(served.address, "b", error="no module named x").attending(),
    ):
        runner = await ended(await submit(served, job()))
        assert runner.view().reason == "site b (learner): no module named x"


async def test_sites_names_leaves_other_sites_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a").attending())
        await sites.enter_async_context(LightSite(served.address, "b", app="other.py:app").attending())
        runner = await ended(await submit(served, job(sites={"min": 1, "names": ["a"]})))
        assert runner.view().status == "completed"


async def test_the_deadline_closes_a_round_on_quorum_and_withdraws_the_late_task(tmp_path: Path) -> None:
    async def sleepy(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            await asyncio.Event().wait()
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "awake").attending())
        late = LightSite(served.address, "late", answer=sleepy)
        await sites.enter_async_context(late.attending())
        pace = {"kind": "sync", "rounds": 1, "deadline": 0.5, "quorum": 0.5}
        runner = await ended(await submit(served, job(pace=pace, sites={"min": 2})))
        entry = runner.view().history[-1]
        assert set(entry.contributions) == {"awake"}
        assert entry.lost["late"].startswith("late: no update by the deadline")
        await eventually(lambda: late.cancelled)
        assert len(late.cancelled) == 1


async def test_a_site_that_is_lost_gets_its_open_task_again(tmp_path: Path) -> None:
    dropped = asyncio.Event()

    async def drop(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            dropped.set()
            await asyncio.Event().wait()
        await site.do(task)

    async with serving(tmp_path) as served, LightSite(served.address, "steady").attending():
        lost = LightSite(served.address, "lost", answer=drop)
        async with lost.attending():
            runner = await submit(served, job(sites={"min": 2}, pace={"rounds": 1}))
            await dropped.wait()
        async with LightSite(served.address, "lost", value=3.0).attending():
            await ended(runner)
        assert set(runner.view().history[-1].contributions) == {"steady", "lost"}


async def test_a_second_daemon_of_the_same_name_and_role_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        with pytest.raises(Taken, match="another learner of site 'a' has been connected"):
            async with LightSite(served.address, "a").attending():
                pass
        async with LightSite(served.address, "a", role="evaluator").attending():
            pass


async def test_a_daemon_that_reconnects_replaces_its_own_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        site = LightSite(served.address, "a")
        async with site.attending():
            instance = site.attendance.instance
            twin = LightSite(served.address, "a")
            task = asyncio.create_task(_attend_as(twin, instance))
            await asyncio.wait_for(twin.ready.wait(), 5)
            assert len(served.federation.fleet.sessions) == 1
            task.cancel()


async def _attend_as(site: LightSite, instance: str) -> None:
    from hansa.common.site.attendance import Attendance
    from hansa.common.site.connection import Identity
    from hansa.common.values.ids import SiteName

    identity = Identity(site.address, SiteName(site.name), site.role)
    site.attendance = Attendance(identity, site.states, instance)
    await site.attendance.attend(site, lambda _: site.ready.set())


async def test_a_controller_that_was_killed_goes_on_in_mid_round(tmp_path: Path) -> None:
    """One of two updates is committed, the controller dies, and its successor takes only the other."""
    waiting = asyncio.Event()

    async def hold(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            waiting.set()
            await asyncio.Event().wait()
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        quick = LightSite(served.address, "quick")
        await sites.enter_async_context(quick.attending())
        await sites.enter_async_context(LightSite(served.address, "slow", answer=hold).attending())
        runner = await submit(served, job(sites={"min": 2}, pace={"rounds": 2}))
        await waiting.wait()
        while set(runner.machine.state.receipts) != {"quick"} or runner.machine.state.round != 1:
            await runner.next_change().wait()
        job_id = runner.id
        committed = {receipt.task for receipt in quick.receipts}
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        again = LightSite(served.address, "quick")
        await sites.enter_async_context(again.attending())
        await sites.enter_async_context(LightSite(served.address, "slow", value=3.0).attending())
        runner = await ended(served.jobs.runner(job_id))
        assert runner.view().status == "completed"
        assert not committed & {receipt.task for receipt in again.receipts}
        np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.full((3, 4), 4.0))
        assert [set(entry.contributions) for entry in runner.view().history[1:]] == [{"quick", "slow"}] * 2


async def test_jobs_of_an_earlier_life_are_still_shown(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        runner = await ended(await submit(served, job()))
        before = runner.view().model_copy(update={"resolved": runner.resolved})
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        after = await client.show(before.job)
        assert after.model_dump(exclude={"sites"}) == before.model_dump(exclude={"sites"})
        manifest, _, _ = await client.model("test")
        assert manifest.digest.hex() == runner.machine.state.history[-1].digest


async def test_a_first_model_may_come_with_the_submission(tmp_path: Path) -> None:
    spec = small_spec()
    manifest, payload = sealed(spec, filled(spec, 7))

    async def frames() -> AsyncIterator[bytes]:
        for frame in cut(payload):
            yield frame.tobytes()

    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        runner = await served.submit(job(pace={"rounds": 1}), manifest, frames())
        await ended(runner)
        np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.full((3, 4), 8.0))


async def test_operators_submit_watch_cancel_and_list_over_the_wire(tmp_path: Path) -> None:
    async def never(site: LightSite, task: Task) -> None:
        await asyncio.Event().wait() if isinstance(task.work, Train) else await site.do(task)

    site_task = LightSite("", "a", answer=never)
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        site_task.address = served.address
        async with site_task.attending():
            view = (await client.submit(job(name="to-cancel"))).view
            seen = []
            async for seen_view in client.views(view.job):
                seen.append(seen_view.status)
                if seen_view.status == "running" and "cancelled" not in seen:
                    await client.cancel("to-cancel")
            assert seen[-1] == "cancelled"
            with pytest.raises(Refused, match="has already ended: cancelled"):
                await client.cancel(view.job)
            assert [listed.status for listed in await client.jobs()] == ["cancelled"]
            assert [daemon.site for daemon in await client.sites()] == ["a"]
            assert (await client.status()).jobs == {"cancelled": 1}


async def test_a_bad_job_is_refused_by_the_controller_with_every_fault(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncClient(served.address) as client:
        with pytest.raises(InvalidJob) as caught:
            await client.submit(job(rule="fedavg", pace={"rounds": 0}, weigh={"kind": "equl"}))
        assert "pace.rounds" in str(caught.value)
        assert "'equal'" in str(caught.value)
        assert await client.jobs() == []


async def test_target_and_time_end_a_job_early(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a").attending())
        await sites.enter_async_context(LightSite(served.address, "a", role="evaluator").attending())
        reached = await submit(
            served, job(pace={"rounds": 100_000}, stop={"target": {"metric": "accuracy", "value": 0.7}})
        )
        await ended(reached)
        assert "target reached: accuracy 0.7500" in reached.view().reason
        timed = await submit(served, job(pace={"rounds": 100_000}, stop={"seconds": 1.5}))
        await ended(timed)
        assert timed.view().status == "completed", timed.view().reason
        assert timed.view().reason == "time limit of 1.5 s reached"


async def test_an_asynchronous_job_merges_every_update_as_it_comes(tmp_path: Path) -> None:
    """With one site, the community model is its last model; staleness is 0 versions and its own steps."""
    async with serving(tmp_path) as served, LightSite(served.address, "a", value=2.0).attending():
        runner = await ended(await submit(served, job(rule="async-fedavg", pace={"updates": 5})))
        assert runner.view().status == "completed"
        assert runner.view().reason == "all 5 updates are merged"
        np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.full((3, 4), 10.0))
        assert [dict(entry.staleness) for entry in runner.view().history[1:]] == [{"a": (0, 1)}] * 5


async def test_asynchronous_sites_get_the_newest_model_at_once_and_staleness_is_counted(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name, examples in (("a", 1), ("b", 3), ("c", 5)):
            await sites.enter_async_context(LightSite(served.address, name, examples=examples).attending())
        spec = job(rule="async-fedavg", pace={"updates": 40}, sites={"min": 3})
        runner = await ended(await submit(served, spec))
        history = runner.view().history[1:]
        assert [entry.version for entry in history] == list(range(1, 41))
        assert all(len(entry.contributions) == 1 for entry in history)
        assert {site for entry in history for site in entry.contributions} == {"a", "b", "c"}
        assert runner.machine.state.steps == 40
        since = {}
        for entry in history:  # S_k = steps committed since its model was given + its own
            (site, (versions, steps)), *_ = entry.staleness.items()
            assert steps == versions + 1
            since[site] = entry.version


@pytest.mark.parametrize(
    "rule", [{"rule": "async-fedavg"}, {"rule": "async-fedavg", "merge": {"kind": "latest"}}]
)
async def test_after_each_site_has_committed_once_async_equals_the_weighted_mean(
    tmp_path: Path, rule: dict[str, str]
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:

        async def once(site: LightSite, task: Task) -> None:
            if isinstance(task.work, Train) and task.round > 1:
                await asyncio.Event().wait()
            elif isinstance(task.work, Train):
                await site.send(task, filled(site.spec, site.value))
            else:
                await site.do(task)

        for name, value, examples in (("a", 1.0, 1), ("b", 5.0, 3), ("c", 2.0, 4)):
            site = LightSite(served.address, name, value=value, examples=examples, answer=once)
            await sites.enter_async_context(site.attending())
        runner = await ended(await submit(served, job(**rule, pace={"updates": 3}, sites={"min": 3})))
        np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.full((3, 4), 3.0))


async def test_a_site_that_leaves_takes_its_contribution_with_it_if_asked(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def staged(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train) and task.round > 1:
            await gate.wait()
        await (
            site.send(task, filled(site.spec, site.value)) if isinstance(task.work, Train) else site.do(task)
        )

    async with serving(tmp_path, grace=0.1) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(
            LightSite(served.address, "stays", value=1.0, answer=staged).attending()
        )
        merge = {"kind": "incremental", "drop_on_leave": True}
        spec = job(rule="async-fedavg", merge=merge, pace={"updates": 3}, sites={"min": 2})
        async with LightSite(served.address, "leaves", value=9.0, answer=staged).attending():
            runner = await submit(served, spec)
            while runner.machine.state.version < 2:
                await runner.next_change().wait()
            np.testing.assert_array_equal(model_of(served, runner)["norm.mean"], np.full(4, 5.0))
        while runner.machine.state.version < 3:
            await runner.next_change().wait()
        np.testing.assert_array_equal(model_of(served, runner)["norm.mean"], np.full(4, 1.0))
        gate.set()
        await ended(runner)
        assert runner.view().status == "completed"


async def test_semi_synchronous_rounds_give_fast_sites_more_steps(tmp_path: Path) -> None:
    asked: dict[str, list[int]] = {"fast": [], "slow": []}

    async def timed(site: LightSite, task: Task) -> None:
        if not isinstance(task.work, Train):
            await site.do(task)
            return
        asked[site.name].append(task.work.steps)
        steps = task.work.steps or 10
        pace = 0.1 if site.name == "slow" else 0.025
        await site.send(task, filled(site.spec, 1), steps=steps, epochs=steps / 10, seconds=steps * pace)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name in asked:
            await sites.enter_async_context(LightSite(served.address, name, answer=timed).attending())
        spec = job(rule="semisync-fedavg", pace={"rounds": 3, "lambda": 2}, sites={"min": 2})
        assert (await ended(await submit(served, spec))).view().status == "completed"
    assert asked == {"fast": [0, 80, 80], "slow": [0, 20, 20]}


@pytest.mark.parametrize("heartbeat", [0.5, 1.0])
async def test_an_idle_daemon_is_not_dropped_however_short_the_heartbeat(
    tmp_path: Path, heartbeat: float
) -> None:
    """It learns the heartbeat when it enrols, and must not wait for the interval it assumed before."""
    async with serving(tmp_path, heartbeat=heartbeat) as served, LightSite(served.address, "a").attending():
        fleet = served.federation.fleet
        first = fleet.find(SiteName("a"), "learner")
        assert first
        heard = {first.last_seen}

        def has_beaten_twice() -> bool:
            heard.add(first.last_seen)
            assert fleet.find(SiteName("a"), "learner") is first, "it was dropped"
            return len(heard) == 3

        await eventually(has_beaten_twice)
