"""Distributed validation weighting and adaptive training in whole jobs over real gRPC, with light sites."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.job.spec import JobSpec
from hansa.common.values.errors import InvalidInput, Stale
from hansa.common.values.history import Score
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from hansa.protos import fleet_pb2
from tests.support import LightSite, Served, ended, job, model_of, nothing, serving
from tests.waiting import eventually

OWN = Evaluation(n=4, loss_sum=2.0, confusion=((3, 1), (0, 0)))


async def submit(served: Served, **changes: Any) -> JobRunner:
    base: dict[str, Any] = {"evaluate": {"every": 1000, "timeout": 1}, "sites": {"min": 3}}
    spec: JobSpec = job(**(base | changes))
    return await served.submit(spec, None, nothing())


async def learn(site: LightSite, task: Task) -> None:
    """Train as light sites do, and measure the update."""
    if isinstance(task.work, Train):
        arrays = await site.fetch(task.work.model)
        changed = {name: array + np.asarray(site.value, array.dtype) for name, array in arrays.items()}
        await site.send(task, changed, evaluation=OWN, steps=5, loss=0.5)
    else:
        await LightSite.do(site, task)


async def report(site: LightSite, task: Task, classes: int, counts: list[int]) -> None:
    request = fleet_pb2.TaskReport(site=site.name, task=task.id)
    found = fleet_pb2.Evaluation(n=sum(counts), loss_sum=1.0, classes=classes, confusion=counts)
    request.evaluation.MergeFrom(found)
    await site.attendance.insist(lambda: site.attendance.stub.Report(request))


async def attend(served: Served, sites: AsyncExitStack, names: str, **more: Any) -> dict[str, LightSite]:
    made = {name: LightSite(served.address, name, **more) for name in names}
    for site in made.values():
        await sites.enter_async_context(site.attending())
    return made


def newest(runner: JobRunner) -> dict[str, Score]:
    return dict(runner.view().history[-1].scores)


async def test_an_update_costs_one_upload_and_as_many_downloads_as_there_are_sites(tmp_path: Path) -> None:
    moved: Counter[tuple[str, str, str]] = Counter()
    terms = set()

    async def counted(site: LightSite, task: Task) -> None:
        terms.add(task.terms.redistributes)
        if isinstance(task.work, Train):
            moved["train", site.name, task.work.model] += 1
            await learn(site, task)
            moved["upload", site.name, task.id] += 1
        elif isinstance(task.work, Evaluate):
            if task.work.validation:
                moved["judge", site.name, task.work.model] += 1
            await site.fetch(task.work.model)
            await report(site, task, 2, [2, 1, 0, 1])
        else:
            await learn(site, task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, "abc", role="evaluator", answer=counted)
        await attend(served, sites, "abc", answer=counted)
        runner = await ended(await submit(served, rule="sync-dvw", pace={"rounds": 2}))
        assert runner.machine.state.status == "completed", runner.machine.state.reason
        assert set(moved.values()) == {1}  # no model twice to anybody
        assert len(moved) == (3 + 1) * 6  # N + 1 models for each of the six updates
        assert terms == {True}  # sites are told that others see their model
        view = runner.view()
        assert view.history[-1].contributions == dict.fromkeys("abc", (3 + 3 + 3) / 12)
        assert [score.basis for score in newest(runner).values()] == ["pooled"] * 3


async def test_evaluators_that_are_down_slow_odd_or_leave_do_not_stop_a_job(tmp_path: Path) -> None:
    leaving: list[LightSite] = []

    async def slow(site: LightSite, task: Task) -> None:
        await asyncio.Event().wait()

    async def nonsense(site: LightSite, task: Task) -> None:
        with suppress(InvalidInput):
            await report(site, task, 2, [1, 2, 3])

    async def endless(site: LightSite, task: Task) -> None:
        with suppress(InvalidInput):
            await report(site, task, 2, [1 << 60, 0, 0, 0])

    async def larger(site: LightSite, task: Task) -> None:
        with suppress(InvalidInput):
            await report(site, task, 3, [1] * 9)

    async def leave(site: LightSite, task: Task) -> None:
        leaving.append(site)
        await site.attendance.leave()

    async with serving(tmp_path, grace=0.3) as served, AsyncExitStack() as sites:
        await attend(served, sites, "abcdefgh", answer=learn)  # and h has no evaluator
        await attend(served, sites, "ab", role="evaluator")
        for name, answer in (("c", slow), ("d", nonsense), ("e", larger), ("f", leave), ("g", endless)):
            await attend(served, sites, name, role="evaluator", answer=answer)
        runner = await submit(
            served,
            rule="sync-dvw",
            pace={"rounds": 1},
            sites={"min": 8},
            weigh={"timeout": 1.0, "min_coverage": 0.2},
        )
        await ended(runner)
        assert runner.machine.state.status == "completed", runner.machine.state.reason
        score = newest(runner)["a"]
        assert leaving
        assert set(score.missing) == {"c", "d", "e", "f", "g", "h"}
        assert score.missing["c"] == "no report in time"
        assert score.missing["d"].startswith("invalid report: 3 counts do not make a 2×2 matrix")
        assert score.missing["e"] == (
            "invalid report: a confusion matrix of 3 classes,"
            " but the site has stated own functions with 2 classes"
        )
        assert "the site left" in {
            score.missing["f"] for site, score in newest(runner).items() if site != "f"
        }
        assert score.missing["g"] == (
            "invalid report: n: input should be less than 9007199254740992 (given: 1152921504606846976);"
            " confusion: counts must be less than 9007199254740992 (given: 1152921504606846976)"
        )
        assert score.missing["h"] == "no evaluator of the site is connected"
        assert score.basis == "pooled"
        assert 0 < score.coverage < 1


async def test_where_examples_have_several_labels_nonsense_is_left_out_as_anywhere(tmp_path: Path) -> None:
    told = {"a": [1, 1, 0, 2, 0, 0], "b": [1, 1, 0, 2, 0], "c": [1 << 60, 0, 0] * 2, "d": [4, 0, 0], "e": []}

    async def label(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            found = Evaluation(n=4, loss_sum=1.0, labels=((3, 0, 1), (0, 2, 0)))
            await site.send(task, await site.fetch(task.work.model), evaluation=found)
        elif isinstance(task.work, Evaluate):
            request = fleet_pb2.TaskReport(site=site.name, task=task.id)
            request.evaluation.MergeFrom(fleet_pb2.Evaluation(n=4, loss_sum=1.0, labels=told[site.name]))
            with suppress(InvalidInput):
                await site.attendance.insist(lambda: site.attendance.stub.Report(request))
        else:
            await LightSite.do(site, task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, "abcde", answer=label)
        await attend(served, sites, "abcde", role="evaluator", answer=label)
        runner = await ended(await submit(served, rule="sync-dvw", pace={"rounds": 1}, sites={"min": 5}))
        assert runner.machine.state.status == "completed", runner.machine.state.reason
        missing = newest(runner)["b"].missing
        other = "invalid report: 3 counts of labels, but the site has stated own functions with 2 classes"
        assert missing == {
            "c": f"invalid report: labels: counts must be less than {1 << 53} (given: {1 << 60})",
            "d": other,
            "e": "it counts 0 classes, most count 2 labels",
        }
        odd = newest(runner)["a"].missing["b"]
        assert odd == other.replace("3 counts", "5 counts")


async def test_updates_that_are_worth_nothing_leave_the_model_as_it_is(tmp_path: Path) -> None:
    async def learn_nothing(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            arrays = {name: array + 1 for name, array in (await site.fetch(task.work.model)).items()}
            await site.send(
                task, arrays, evaluation=Evaluation(n=3, loss_sum=1.0, confusion=((0, 3), (0, 0)))
            )
        else:
            await LightSite.do(site, task)

    async def all_wrong(site: LightSite, task: Task) -> None:
        await report(site, task, 2, [0, 4, 0, 0])

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, "ab", role="evaluator", answer=all_wrong)
        await attend(served, sites, "ab", answer=learn_nothing)
        runner = await ended(await submit(served, rule="async-dvw", pace={"updates": 4}, sites={"min": 2}))
        assert (runner.machine.state.status, runner.machine.state.version) == ("completed", 4)
        np.testing.assert_array_equal(model_of(served, runner)["layer.weight"], np.zeros((3, 4), np.float32))
        notes = {entry.note for entry in runner.view().history[1:]}
        assert notes == {"no update counts; the previous model is kept"}


async def test_sites_that_train_hear_how_far_the_job_has_come(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        heard = asyncio.Event()

        async def wait(site: LightSite, task: Task) -> None:
            if isinstance(task.work, Train):
                await eventually(lambda: site.attendance.pulse(task.job))
                heard.set()
            await learn(site, task)

        await attend(served, sites, "ab", answer=learn)
        (slow,) = (await attend(served, sites, "c", answer=wait)).values()
        until = {"cycles": 1, "vc_loss": 0}
        runner = await submit(served, rule="async-fedavg", pace={"updates": 30}, train={"until": until})
        async with asyncio.timeout(20):
            await heard.wait()
            await ended(runner)
        told = slow.attendance.pulse(runner.id)
        assert told is not None
        assert told % 5 == 0
        assert runner.machine.state.steps == 150


async def test_a_site_that_was_away_is_told_how_far_the_job_has_come(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        taken, going = asyncio.Event(), asyncio.Event()

        async def hold(site: LightSite, task: Task) -> None:
            taken.set()
            await asyncio.Event().wait()

        async def some(site: LightSite, task: Task) -> None:
            if task.round > 2:
                await going.wait()
            await learn(site, task)

        await attend(served, sites, "ab", answer=some)
        async with asyncio.timeout(20), LightSite(served.address, "c", answer=hold).attending() as away:
            spec = {"rule": "async-fedavg", "pace": {"updates": 6}, "sites": {"min": 3}}
            runner = await submit(served, **spec, train={"until": {"cycles": 2}})
            await taken.wait()
        while runner.machine.state.version < 4:
            await runner.next_change().wait()
        back = LightSite(served.address, "c", answer=hold, hand=list(away.hand))
        async with asyncio.timeout(20), back.attending():
            await eventually(lambda: back.attendance.pulse(runner.id) == 20)
            going.set()
            await ended(runner)


async def test_an_adaptive_asynchronous_job_goes_on_from_its_journal_as_it_was(tmp_path: Path) -> None:
    """The state after a restart is the state before it, to the last bit, and so is every model."""
    spec: dict[str, Any] = {
        "rule": "async-dvw-adaptive",
        "pace": {"updates": 40},
        "train": {"until": {"cycles": 3}},
    }
    going = asyncio.Event()
    going.set()
    learning: set[str] = set()  # whose update is on its way

    async def learn_or_wait(site: LightSite, task: Task) -> None:
        await going.wait()
        learning.add(site.name)
        await learn(site, task)
        learning.discard(site.name)

    async with serving(tmp_path, grace=60) as served, AsyncExitStack() as sites:
        await attend(served, sites, "abc", role="evaluator")
        for number, name in enumerate("abc"):
            await attend(served, sites, name, answer=learn_or_wait, value=float(number))
        runner = await submit(served, **spec)
        while runner.machine.state.version < 20:
            await runner.next_change().wait()
        going.clear()
        state = runner.machine.state
        # Until only training is left.
        await eventually(lambda: not (learning or state.plan) and len(state.tasks) <= 3)
        with suppress(Stale):
            await runner.post(ev.AlarmRang(at=0, alarm="none"))  # everything before it is durable by now
    before, memories = runner.machine.state.model_dump(), runner.machine.memories
    async with serving(tmp_path, grace=60) as served, AsyncExitStack() as sites:
        again = served.jobs.runner(runner.id)
        assert again.machine.state.model_dump() == before
        assert again.machine.memories == memories
        await attend(served, sites, "abc", role="evaluator")
        for number, name in enumerate("abc"):
            await attend(served, sites, name, answer=learn, value=float(number))
        await ended(again)
        view = again.view()
        assert (view.status, view.version) == ("completed", 40)
        assert all(score.basis for entry in view.history[1:] for score in entry.scores.values())
    with opened(f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        assert verify(backends, record)[2] == []
