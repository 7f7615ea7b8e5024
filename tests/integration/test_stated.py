"""Sites are held to what they state about their apps: hostile reports are refused, at next to no cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.tasks import Evaluate, Survey, Task, Train
from hansa.controller.jobs.runner import JobRunner
from hansa.protos import fleet_pb2
from tests.integration.attacker import CODE, enrolment, status
from tests.support import LightSite, Served, ended, fleet_stub, job, nothing, serving

A, B = b"\xaa" * 32, b"\xbb" * 32


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as made:
        yield made


async def submit(served: Served, **more: Any) -> JobRunner:
    return await served.submit(job(**more), None, nothing())


def journal_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if "journal" in path.name)


def evaluation(n: int, classes: int = 0, **more: Any) -> fleet_pb2.Evaluation:
    """Return a report whose first cell counts all examples."""
    cells = [n, *([0] * (classes**2 - 1))] if classes else []
    return fleet_pb2.Evaluation(n=n, loss_sum=1.0, classes=classes, confusion=cells, **more)


class Liar:
    """An evaluator that reports anything, and remembers its tasks."""

    def __init__(self, said: fleet_pb2.Evaluation) -> None:
        self.said = said
        self.answers: list[tuple[Any, str]] = []

    async def __call__(self, site: LightSite, task: Task) -> None:
        report = fleet_pb2.TaskReport(site=site.name, task=task.id, evaluation=self.said)
        self.answers.append(await status(site.attendance.stub.Report(report)))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            evaluation(0, 300),
            "a confusion matrix of 300 classes, but the site has stated classification with 10 classes",
        ),
        (evaluation(5, 300), "a confusion matrix of 300 classes, but"),
        (evaluation(5, 9), "a confusion matrix of 9 classes, but"),
        (evaluation(5), "a confusion matrix of 0 classes, but"),
        (evaluation(0, 10), "a report of 0 examples has counts"),
        (evaluation(0, labels=[0] * 30), "a confusion matrix of 0 classes, but"),
        (evaluation(5, 10, labels=[0] * 30), "30 counts of labels, but"),
        (fleet_pb2.Evaluation(n=6, classes=10, confusion=[5] + [0] * 99), "does not count 6 examples"),
        (fleet_pb2.Evaluation(n=5, classes=10, confusion=[5]), "1 counts do not make a 10×10 matrix"),
        (evaluation(5, 10, metrics={f"m{i}": 1.0 for i in range(101)}), "at most 100"),
        (evaluation(5, 10, metrics={"m" * 65: 1.0}), "cannot be the name of an app's metric"),
    ],
)
async def test_a_report_that_was_not_stated_is_that_sites_failure_and_nobody_elses(
    served: Served, said: fleet_pb2.Evaluation, why: str
) -> None:
    liar = Liar(said)
    app: Any = {"task": "classification", "classes": 10}

    async def measure(site: LightSite, task: Task) -> None:
        report = fleet_pb2.TaskReport(site=site.name, task=task.id, evaluation=evaluation(4, 10))
        await site.attendance.insist(lambda: site.attendance.stub.Report(report))

    async with AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a", **app).attending())
        await sites.enter_async_context(
            LightSite(served.address, "a", "evaluator", answer=measure, **app).attending()
        )
        await sites.enter_async_context(
            LightSite(served.address, "b", "evaluator", answer=liar, **app).attending()
        )
        async with asyncio.timeout(30):
            runner = await ended(await submit(served))
    assert runner.machine.state.status == "completed", runner.machine.state.reason
    assert {code for code, _ in liar.answers} == {CODE.INVALID_ARGUMENT}
    assert all(why in text for _, text in liar.answers)
    newest = runner.view().history[-1]
    assert why in newest.unevaluated["b"]
    assert (newest.examples, newest.metrics["accuracy"]) == (4, 1.0)  # of the honest evaluator


async def test_the_journal_grows_with_the_examples_and_not_with_the_classes(tmp_path: Path) -> None:
    """Two thousand eight hundred classes, as an honest site may have them: 15.7 MB of zeros as text."""
    honest = Liar(evaluation(5, 2800))
    app: Any = {"task": "classification", "classes": 2800}
    async with serving(tmp_path) as served, LightSite(served.address, "a", **app).attending():
        async with LightSite(served.address, "a", "evaluator", answer=honest, **app).attending():
            async with asyncio.timeout(60):
                runner = await ended(await submit(served, pace={"kind": "sync", "rounds": 3}))
            assert {code for code, _ in honest.answers} == {CODE.OK}
            assert runner.view().history[-1].metrics["accuracy"] == 1.0
    assert journal_of(tmp_path) < 500_000


async def test_a_late_evaluator_that_states_more_classes_than_the_others_is_not_asked(served: Served) -> None:
    hold = asyncio.Event()

    async def wait(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            await hold.wait()
        await site.do(task)

    liar = Liar(evaluation(0, 2800))
    async with LightSite(served.address, "a", answer=wait).attending():
        runner = await submit(served)
        async with LightSite(served.address, "b", "evaluator", classes=2800, answer=liar).attending():
            while not runner.view().warnings:
                await runner.next_change().wait()
            hold.set()
            async with asyncio.timeout(30):
                await ended(runner)
    assert runner.machine.state.status == "completed"
    assert not liar.answers
    (told,) = runner.view().warnings
    assert "evaluator b was left out: the sites do not agree on what tests/app.py:app is" in told


async def test_sites_that_differ_fail_a_job_when_it_is_submitted(served: Served) -> None:
    async with AsyncExitStack() as sites:
        for name, classes in (("a", 3), ("b", 2), ("c", 2)):
            await sites.enter_async_context(LightSite(served.address, name, classes=classes).attending())
        runner = await submit(served)  # one site would do, and a is the first
        state = runner.machine.state
        assert state.status == "failed"
        assert (
            "(own functions with 2 classes: learner b, learner c; own functions with 3 classes: learner a)"
            in state.reason
        )
        named = await ended(await submit(served, sites={"min": 2, "names": ["b", "c"]}))
        assert named.machine.state.status == "completed"


async def test_different_sources_are_named_to_the_operator_and_refused_on_request(served: Served) -> None:
    async with AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a", source=A).attending())
        await sites.enter_async_context(LightSite(served.address, "a", "evaluator", source=B).attending())
        await sites.enter_async_context(LightSite(served.address, "b", source=A).attending())
        told = (
            "versions of tests/app.py:app"
            " (source aaaaaaaa: learner a, learner b; source bbbbbbbb: evaluator a)"
        )
        async with AsyncClient(Endpoint(served.address, None)) as client:
            view = (await client.submit(job(sites={"min": 2}))).view
            assert view.warnings == (f"the sites have different {told}",)  # in the answer to the submission
            await ended(await served.jobs.find(view.job))
            refused = (await client.submit(job(sites={"min": 2, "same_app": True}))).view
            assert (refused.status, told in refused.reason) == ("failed", True)
            assert "sites.same_app" in refused.reason
            listed = {(daemon.site, daemon.role): daemon for daemon in await client.sites()}
        assert listed["a", "evaluator"].apps == {"tests/app.py:app": "ok, 10 examples, source bbbbbbbb"}
        assert listed["b", "learner"].sources == {"tests/app.py:app": A.hex()}


async def test_facts_that_were_not_stated_quarantine_the_update(served: Served) -> None:
    refused: list[tuple[Any, str]] = []

    async def lie(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            offer = fleet_pb2.OfferRequest(site=site.name, task=task.id)
            offer.facts.evaluation.MergeFrom(evaluation(0, 2800))
            refused.append(await status(site.attendance.stub.Offer(offer)))
        else:
            await site.do(task)

    async with AsyncExitStack() as sites:
        await sites.enter_async_context(LightSite(served.address, "a").attending())
        await sites.enter_async_context(LightSite(served.address, "b", answer=lie).attending())
        async with asyncio.timeout(30):
            runner = await ended(await submit(served, sites={"min": 2}))
    assert runner.machine.state.status == "completed", runner.machine.state.reason
    assert {code for code, _ in refused} == {CODE.INVALID_ARGUMENT}
    assert all("a confusion matrix of 2800 classes" in text for _, text in refused)
    assert all("quarantined" in entry.lost["b"] for entry in runner.view().history[1:])


async def test_a_survey_that_was_not_stated_is_that_sites_failure(served: Served) -> None:
    async def tell(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Survey):
            counts = [1] * (10_000 if site.name == "c" else 10)
            profile = fleet_pb2.Profile(n=len(counts), classes=counts)
            report = fleet_pb2.TaskReport(site=site.name, task=task.id, profile=profile)
            code, _ = await status(site.attendance.stub.Report(report))
            assert code is (CODE.INVALID_ARGUMENT if site.name == "c" else CODE.OK)
        else:
            await site.do(task)

    async with AsyncExitStack() as sites:
        for name in "cab":
            await sites.enter_async_context(
                LightSite(served.address, name, classes=10, answer=tell).attending()
            )
        async with asyncio.timeout(30):
            runner = await ended(await submit(served, sites={"min": 2}, survey={"classes": True}))
    assert runner.machine.state.status == "completed", runner.machine.state.reason
    view = runner.view()
    assert view.survey
    assert (
        "10000 classes are counted, but the site has stated own functions with 10 classes" in view.warnings[0]
    )
    assert set(view.survey.classes) == {"a", "b"}


@pytest.mark.parametrize("nonsense", [{"task": "magic\x1b[2J"}, {"task": "own", "source": b"x" * 33}])
async def test_a_site_cannot_state_nonsense(served: Served, nonsense: dict[str, Any]) -> None:
    of, stub = fleet_stub(served.address)

    async def words() -> AsyncIterator[fleet_pb2.FromSite]:
        yield enrolment(apps=[fleet_pb2.AppState(ref="a.py:app", **nonsense)])

    code, text = await status(anext(aiter(stub.Attend(words()))))
    assert (code, text.isprintable()) == (CODE.INVALID_ARGUMENT, True)
    assert text.startswith("app a.py:app: ")
    await of.close()


async def test_what_sites_stated_holds_after_a_restart(tmp_path: Path) -> None:
    liar, asked = Liar(evaluation(0, 2800)), asyncio.Event()

    async def keep(site: LightSite, task: Task) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        async with LightSite(served.address, "b", "evaluator", answer=keep).attending():
            runner = await submit(served)
            await asked.wait()
            (open_,) = [
                task for task in runner.machine.state.tasks.values() if isinstance(task.work, Evaluate)
            ][:1]
    async with serving(tmp_path) as served:
        of, stub = fleet_stub(served.address)  # before anybody enrols
        report = fleet_pb2.TaskReport(site="b", task=open_.id, evaluation=liar.said)
        code, text = await status(stub.Report(report))
        assert (code, "own functions with 2 classes" in text) == (CODE.INVALID_ARGUMENT, True)
        await of.close()
