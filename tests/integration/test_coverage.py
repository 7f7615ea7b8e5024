"""Evaluators over a real wire, one of which hangs: training goes on, and its late reports count."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.values.history import brief_findings
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Evaluate, Task
from hansa.controller.jobs.runner import JobRunner
from tests.support import LightSite, ended, job, nothing, serving


async def until_merged(runner: JobRunner, version: int) -> None:
    while runner.machine.state.version < version:
        await runner.next_change().wait()


async def test_an_evaluator_that_hangs_is_named_and_its_late_report_counts(tmp_path: Path) -> None:
    hanging, release = asyncio.Event(), asyncio.Event()

    async def late(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Evaluate) and not release.is_set():
            hanging.set()
            await release.wait()
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites, AsyncClient(served.address) as client:
        await sites.enter_async_context(LightSite(served.address, "a").attending())
        await sites.enter_async_context(LightSite(served.address, "a", role="evaluator").attending())
        await sites.enter_async_context(
            LightSite(served.address, "b", role="evaluator", answer=late).attending()
        )
        evaluate = {"timeout": 0.3}
        spec = job(rule="async-fedavg", pace={"updates": 100_000}, stop={"seconds": 600}, evaluate=evaluate)
        runner = await served.submit(spec, None, nothing())
        await hanging.wait()
        (first,) = [
            t.work.version for t in runner.machine.tasks_of(SiteName("b")) if isinstance(t.work, Evaluate)
        ]
        while not any(entry.version > first and entry.evaluated for entry in runner.view().history):
            await runner.next_change().wait()  # the newest version follows, without b
        shown = {entry.version: entry for entry in (await client.show(runner.id)).history}
        assert shown[first].unevaluated == {"b": "no result in 0.3 s"}
        assert (shown[first].examples, shown[first].examples_total, shown[first].covered) == (4, None, False)
        follower = next(entry for entry in shown.values() if entry.version > first and entry.evaluated)
        assert follower.unevaluated == {"b": f"still evaluating version {first}"}
        assert (await client.show(runner.id)).metrics == {}, "nothing was evaluated by all"
        release.set()
        while runner.machine.state.covered is None:
            await runner.next_change().wait()
        assert runner.machine.state.history[first].covered
        await until_merged(runner, runner.machine.state.version + 5)
        await client.cancel(runner.id)
        view = (await ended(runner)).view()
        assert view.metrics_version is not None
        assert view.metrics_version >= first
        assert (view.examples, view.examples_total) == (8, 8)


async def test_a_standing_fleet_holds_out_the_sites_that_a_job_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites, AsyncClient(served.address) as client:
        for name in ("a", "b", "t", "v"):
            for role in ("learner", "evaluator"):
                await sites.enter_async_context(LightSite(served.address, name, role=role).attending())
        spec = job(sites={"min": 2, "validation": ["v"], "test": ["t"]})
        runner = await ended(await served.submit(spec, None, nothing()))
        view = await client.show(runner.id)
        assert view.status == "completed"
        assert {site for entry in view.history for site in entry.sites} == {"a", "b"}
        assert (view.examples, view.examples_total) == (4, 4)
        assert view.test is not None
        assert (view.test.examples, view.test.metrics) == (4, view.metrics)
        assert view.history[-1].test is not None
        assert set(view.history[-1].test.evaluations) == {"t"}
        assert brief_findings(view.history[-1].test) == view.test
