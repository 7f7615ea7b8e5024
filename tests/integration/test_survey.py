"""Surveys over real gRPC on loopback, with light sites."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hansa.common.job.spec import JobSpec
from hansa.common.values.errors import InvalidInput, Refused
from hansa.common.values.settings.training import Standard
from hansa.common.values.tasks import Survey, Task
from hansa.protos import fleet_pb2
from tests.integration.test_federation import submit
from tests.support import LightSite, ended, filled, job, serving

POOLED = Standard(kind="global", mean=(4.0,), deviation=(3.0**0.5,))  # 10 rows of 1 and 30 rows of 5


def surveyed(**changes: Any) -> JobSpec:
    return job(survey={"standardise": "global", "columns": 1}, sites={"min": 2}, **changes)


async def test_every_task_after_the_survey_bears_the_standard(tmp_path: Path) -> None:
    seen: list[Task] = []

    async def note(site: LightSite, task: Task) -> None:
        seen.append(task)
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(
            LightSite(served.address, "a", role="evaluator", answer=note).attending()
        )
        for name, examples, value in (("a", 10, 1.0), ("b", 30, 5.0)):
            site = LightSite(served.address, name, examples=examples, value=value, answer=note)
            await sites.enter_async_context(site.attending())
        runner = await ended(await submit(served, surveyed()))
        assert runner.machine.state.status == "completed"
        view = runner.view()
    assert [task.work.kind for task in seen[:3]] == ["survey", "survey", "init"]
    assert all(task.standard == POOLED for task in seen[3:])
    assert {task.work.kind for task in seen[3:]} == {"train", "evaluate"}
    assert view.survey is not None
    assert (view.survey.examples, view.survey.mean) == ({"a": 10, "b": 30}, (4.0,))


async def test_a_controller_that_was_killed_in_mid_survey_asks_only_sites_that_have_not_answered(
    tmp_path: Path,
) -> None:
    told = asyncio.Event()

    async def tell(site: LightSite, task: Task) -> None:
        await site.do(task)
        if isinstance(task.work, Survey):
            told.set()

    async def keep_silent(site: LightSite, task: Task) -> None:
        await asyncio.Event().wait()

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a", examples=10, answer=tell).attending())
        await sites.enter_async_context(LightSite(served.address, "b", answer=keep_silent).attending())
        job_id = (await submit(served, surveyed())).id
        await told.wait()
    asked: list[tuple[str, str]] = []

    async def note(site: LightSite, task: Task) -> None:
        asked.append((site.name, task.work.kind))
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name, examples, value in (("a", 10, 1.0), ("b", 30, 5.0)):
            site = LightSite(served.address, name, examples=examples, value=value, answer=note)
            await sites.enter_async_context(site.attending())
        runner = await ended(served.jobs.runner(job_id))
        assert runner.machine.state.status == "completed"
        assert runner.machine.state.standard == POOLED
    assert [kind for name, kind in asked if name == "a"].count("survey") == 0
    assert [kind for name, kind in asked if name == "b"].count("survey") == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        fleet_pb2.Profile(n=3, mean=[float("nan")], m2=[0.0]),
        fleet_pb2.Profile(n=3, mean=[0.0], m2=[-1.0]),
        fleet_pb2.Profile(n=3, mean=[0.0], m2=[]),
    ],
)
async def test_a_profile_that_makes_no_sense_fails_the_job_by_name(
    tmp_path: Path, nonsense: fleet_pb2.Profile
) -> None:
    async def lie(site: LightSite, task: Task) -> None:
        report = fleet_pb2.TaskReport(site=site.name, task=task.id, profile=nonsense)
        with pytest.raises(InvalidInput):
            await site.attendance.insist(lambda: site.attendance.stub.Report(report))

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a").attending())
        await sites.enter_async_context(LightSite(served.address, "b", answer=lie).attending())
        runner = await ended(await submit(served, surveyed()))
        assert runner.machine.state.status == "failed"
        assert "site b could not describe its data: invalid report" in runner.machine.state.reason


async def test_a_model_in_the_place_of_a_profile_is_refused(tmp_path: Path) -> None:
    async def confuse(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Survey):
            with pytest.raises(Refused, match="does not ask for a model"):
                await site.send(task, filled(site.spec, 0))
        await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name in ("a", "b"):
            await sites.enter_async_context(LightSite(served.address, name, answer=confuse).attending())
        runner = await ended(await submit(served, surveyed()))
        assert runner.machine.state.status == "completed"
