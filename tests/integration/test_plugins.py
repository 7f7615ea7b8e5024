"""Plugins that remember, ask for evaluations or fail, in whole jobs over real gRPC."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import BaseModel, Field, JsonValue

from hansa.common.cli import hansa
from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.registry import register
from hansa.common.ui.job.job_documents import details
from hansa.common.values.documents import written
from hansa.common.values.errors import Broken, InvalidJob, Stale
from hansa.common.values.history import Score
from hansa.common.values.ids import JobId, SiteName
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.machine import Machine
from hansa.controller.evaluation.plans import Pooled
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing, Sampler
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import Equal
from hansa.controller.storage.backends import opened
from hansa.controller.storage.journal import Entry, SqliteJournal
from hansa.controller.verify.check import verify
from hansa.protos import fleet_pb2
from tests.support import LightSite, Served, ended, job, nothing, serving
from tests.unit.engine.evaluated_updates import Scores

T = TypeVar("T")


class Moody(BaseModel):
    """The number of times it was asked."""

    asked: int = 0


@register("sample", "moody")
class MoodySampler(Sampler[Moody]):
    """All sites take part, until the third round."""

    def begin(self) -> Moody:
        """Nobody has asked."""
        return Moody()

    def choose(
        self, state: Moody, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Raise in the third round."""
        state.asked += 1
        if state.asked > 2:
            raise ValueError("out of patience")
        return list(view.sites)


@register("evaluate", "squeamish")
class Squeamish(Pooled):
    """Fails on the findings of two sites."""

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Raise as soon as there are findings of two sites."""
        if len(reports) > 1:
            raise ValueError("too much to bear")
        return super().combine(reports)


def _assert_sound(folder: Path, store: str, job_id: str) -> None:
    with opened(store or f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        assert verify(backends, record)[2] == []


async def _attend(served: Served, sites: AsyncExitStack, *names: str) -> None:
    for name in names:
        for role in ("evaluator", "learner"):
            await sites.enter_async_context(LightSite(served.address, name, role=role).attending())


@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg"])
async def test_updates_are_weighed_by_the_findings_of_other_sites(
    tmp_path: Path, store: str, rule: str
) -> None:
    pace = {"updates": 6} if rule == "async-fedavg" else {"rounds": 2}
    spec = job(rule=rule, pace=pace, weigh={"kind": "evaluated"}, sites={"min": 3})
    async with serving(tmp_path, store=store) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a", "b", "c")
        runner = await ended(await served.submit(spec, None, nothing()))
        view = runner.view()
        assert (view.status, view.reason) == ("completed", view.reason)
        weights = [weight for entry in view.history for weight in entry.contributions.values()]
        assert weights == [0.75] * 6  # as light evaluators find
        assert runner.machine.memories["weigh"] == Scores(last=dict.fromkeys("abc", 0.75), asked=6)
    _assert_sound(tmp_path, store, runner.id)


async def test_a_rule_that_fails_ends_the_job_which_keeps_the_model_of_its_journal(
    tmp_path: Path, store: str
) -> None:
    spec = job(pace={"rounds": 5}, sample={"kind": "moody"}, sites={"min": 1})
    async with serving(tmp_path, store=store) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        runner = await ended(await served.submit(spec, None, nothing()))
        before = runner.view()
        assert (before.status, before.reason) == (
            "failed",
            "the rule failed: sample 'moody': ValueError: out of patience",
        )
        key = runner.machine.state.current
        assert key is not None
    _assert_sound(tmp_path, store, runner.id)
    async with serving(tmp_path, store=store) as served:
        again = await served.jobs.recall(runner.id)
        assert again.view(since=0).history == before.history
        assert again.machine.state.model_dump() == runner.machine.state.model_dump()
        assert served.federation.store.has(key)


async def test_waiting_callers_are_answered_when_a_rule_fails_and_the_journal_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(machine: Machine, event: ev.Event) -> list[Effect]:
        raise ValueError("no idea")

    def lost(journal: SqliteJournal, job: JobId, after: int = 0) -> list[Entry]:
        raise Broken("the journal is damaged")

    async with serving(tmp_path) as served:
        runner = await served.submit(job(sites={"min": 9}), None, nothing())
        monkeypatch.setattr(Machine, "handle", fails)
        monkeypatch.setattr(SqliteJournal, "entries", lost)
        at = served.federation.clock.now()
        told = [
            runner.post(ev.SiteJoined(at=at, site=SiteName(name), role="learner", examples=1))
            for name in "abc"
        ]
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*told, return_exceptions=True)
        assert [str(answer) for answer in answers] == [f"job {runner.id} failed"] * 3
        assert runner.view().status == "failed"


async def test_an_evaluation_plan_that_fails_is_named_and_the_job_can_still_be_shown(tmp_path: Path) -> None:
    spec = job(pace={"rounds": 3}, evaluate={"kind": "squeamish"}, sites={"min": 2})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a", "b")
        runner = await ended(await served.submit(spec, None, nothing()))
        view = runner.view()
        assert (view.status, view.reason) == (
            "failed",
            "the rule failed: evaluate 'squeamish': ValueError: too much to bear",
        )
        assert view.history[1].contributions.keys() == {"a", "b"}
    _assert_sound(tmp_path, "", runner.id)


@register("evaluate", "wordy")
class Wordy(Pooled):
    """Combines findings into something that is not a set of metrics."""

    said: Any = Field(None, description="what")

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Return what it was told to."""
        return self.said  # type: ignore[no-any-return]


@pytest.mark.parametrize("said", [{"auc": "high"}, {"auc": [0.5]}, 0.5])
async def test_an_evaluation_plan_that_makes_no_metrics_is_named_and_the_job_can_still_be_shown(
    tmp_path: Path, said: object
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        spec = job(evaluate={"kind": "wordy", "said": said})
        view = (await ended(await served.submit(spec, None, nothing()))).view()
        assert view.status == "failed"
        assert view.reason.startswith(
            "the rule failed: evaluate 'wordy': it returned something that the history cannot store: "
        )
        assert view.history[-1].metrics == {}


@register("weigh", "fickle")
class Fickle(Equal):
    """Fails where the test wants it to."""

    where: str = Field("", description="in which of its methods")

    def begin(self) -> Nothing:
        """Fail, perhaps."""
        return self._or(super().begin(), "begin")

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Fail, perhaps."""
        return self._or([], "objections")

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Fail, perhaps."""
        return self._or([], "warnings")

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return anything but weights, perhaps, or raise what has a meaning elsewhere."""
        if self.where == "stale":
            raise Stale("nobody waits for weights")
        if self.where == "exit":
            sys.exit("no more weights")
        odd: dict[str, Any] = {
            "none": None,
            "words": ["much"] * len(contributions),
            "few": [],
            "debt": [-1.0],
        }
        found: np.ndarray = odd.get(self.where, np.ones(len(contributions)))
        return found

    def scores(self, state: Nothing, contributions: Sequence[Contribution]) -> Mapping[str, Score]:
        """Return no scores, perhaps."""
        odd: Any = {"a": "much"} if self.where == "scores" else {}
        return odd  # type: ignore[no-any-return]

    def diagnostics(
        self, state: Nothing, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Tell what JSON has no word for, perhaps."""
        odd: Any = {"deep": [np.float64(1), object]} if self.where == "diagnostics" else {}
        return odd  # type: ignore[no-any-return]

    def _or(self, usual: T, where: str) -> T:
        if where == self.where:
            raise RuntimeError(f"no {where} today")
        return usual


@pytest.mark.parametrize("where", ["begin", "objections"])
async def test_a_plugin_that_fails_when_a_job_is_submitted_is_named_and_the_controller_goes_on(
    tmp_path: Path, where: str
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        with pytest.raises(InvalidJob, match=f"weigh: fickle failed: RuntimeError: no {where} today"):
            await served.submit(job(weigh={"kind": "fickle", "where": where}), None, nothing())
        runner = await ended(await served.submit(job(), None, nothing()))
        assert runner.view().status == "completed"


async def test_a_plugin_that_fails_to_warn_is_named_in_the_warnings(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        spec = job(weigh={"kind": "fickle", "where": "warnings"})
        view = (await ended(await served.submit(spec, None, nothing()))).view()
        assert (view.status, view.warnings) == (
            "completed",
            ("weigh: fickle failed: RuntimeError: no warnings today",),
        )


@pytest.mark.parametrize(
    ("where", "reason"), [("stale", "nobody waits for weights"), ("exit", "SystemExit: no more weights")]
)
async def test_whatever_a_plugin_raises_ends_its_job_and_nothing_else(
    tmp_path: Path, where: str, reason: str
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        spec = job(weigh={"kind": "fickle", "where": where})
        view = (await ended(await served.submit(spec, None, nothing()))).view()
        assert (view.status, view.reason) == ("failed", f"the rule failed: weigh 'fickle': {reason}")
        other = await ended(await served.submit(job(), None, nothing()))
        assert other.view().status == "completed"


@pytest.mark.parametrize("odd", ["none", "words", "few", "debt"])
async def test_a_weigher_that_returns_no_weights_is_named(tmp_path: Path, odd: str) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        spec = job(weigh={"kind": "fickle", "where": odd})
        view = (await ended(await served.submit(spec, None, nothing()))).view()
        assert view.status == "failed"
        assert view.reason.startswith("the rule failed: weigh 'fickle': it returned impossible weights: ")


@pytest.mark.parametrize(
    ("where", "wrong"),
    [("scores", "a: should be a section of keys and values"), ("diagnostics", "deep.list.1")],
)
async def test_a_plugin_that_says_something_that_cannot_be_kept_is_named(
    tmp_path: Path, where: str, wrong: str
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        spec = job(weigh={"kind": "fickle", "where": where})
        view = (await ended(await served.submit(spec, None, nothing()))).view()
        assert view.status == "failed"
        said = "the rule failed: weigh 'fickle': it returned something that the history cannot store: "
        assert view.reason.startswith(said + wrong)
        assert "pydantic" not in view.reason


@register("sample", "stray")
class Stray(Sampler):
    """Draws what cannot be asked."""

    drawn: tuple[str, ...] | None = Field(None, description="who")

    def choose(
        self, state: Nothing, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return what it was told to."""
        return self.drawn  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("drawn", "wrong"),
    [
        (None, "TypeError: 'NoneType' object is not iterable"),
        ((), "it drew [] from 1 available site; it must draw at least one, and none twice"),
        (("b",), "it drew ['b'] from 1 available site; it must draw at least one, and none twice"),
        (("a", "a"), "it drew ['a', 'a'] from 1 available site; it must draw at least one, and none twice"),
    ],
)
async def test_a_sampler_that_draws_an_unknown_site_is_named_at_once(
    tmp_path: Path, drawn: tuple[str, ...] | None, wrong: str
) -> None:
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        spec = job(sample={"kind": "stray", "drawn": drawn})
        view = (await ended(await served.submit(spec, None, nothing()))).view()
        assert (view.status, view.reason) == ("failed", f"the rule failed: sample 'stray': {wrong}")


@register("weigh", "dizzy")
class Dizzy(Equal):
    """Every third version has weights that are no numbers."""

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return ones, or nothing that is finite."""
        odd = (np.nan, np.inf)[view.version % 2]
        return np.full(len(contributions), 1.0 if view.version % 3 != 2 else odd)


@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg", "fedadam"])
async def test_weights_that_are_not_finite_leave_the_model_as_it_is_and_the_job_goes_on(
    tmp_path: Path, rule: str
) -> None:
    pace = {"updates": 8} if rule == "async-fedavg" else {"rounds": 8}
    spec = job(rule=rule, pace=pace, weigh={"kind": "dizzy"}, sites={"min": 2})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a", "b")
        runner = await ended(await served.submit(spec, None, nothing()))
        view = runner.view()
        assert (view.status, view.version) == ("completed", 8), view.reason
        digests = [record.digest for record in runner.machine.state.history]
        assert len(set(digests)) > 4
        for entry in view.history[1:]:
            odd = entry.version % 3 == 0
            assert not odd or digests[entry.version] == digests[entry.version - 1]
            assert entry.note == (
                "weigh dizzy gave weights that are not finite; the previous model is kept" if odd else ""
            )
    _assert_sound(tmp_path, "", runner.id)


def _made(folder: Path, job_id: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return the digests of each version and its moments, from version 1 on, as receipts have them."""
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        texts = [entry.receipt for entry in backends.journal.entries(JobId(job_id)) if entry.receipt]
    receipts = [Receipt.model_validate_json(text) for text in texts]
    return [(receipt.digest, receipt.moments) for receipt in receipts if receipt.version]


@register("weigh", "boundless")
class Boundless(Equal):
    """Tells of a merge what is no number."""

    def diagnostics(
        self, state: Nothing, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Tell as much as a model that has come apart gives to tell."""
        return {"loss": float("nan"), "of sites": {"a": [1.5, float("inf")]}}


async def _come_apart(site: LightSite, task: Task) -> None:
    if not isinstance(task.work, Evaluate):
        await site.do(task)
        return
    lost = float("inf") if task.work.version % 2 else float("nan")
    found = fleet_pb2.Evaluation(n=4, loss_sum=lost, classes=2, confusion=[2, 1, 0, 1], metrics={"auc": lost})
    report = fleet_pb2.TaskReport(site=site.name, task=task.id, evaluation=found)
    await site.attendance.insist(lambda: site.attendance.stub.Report(report))


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


async def test_a_model_that_diverged_is_shown_in_valid_json(tmp_path: Path) -> None:
    """JSON has no word for NaN and infinity."""
    spec = job(pace={"rounds": 3}, weigh={"kind": "boundless"}, sites={"min": 1})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for role in ("evaluator", "learner"):
            site = LightSite(served.address, "a", role=role, answer=_come_apart)
            await sites.enter_async_context(site.attending())
        one = (await ended(await served.submit(spec, None, nothing()))).id
        other = (await ended(await served.submit(spec, None, nothing()))).id
        told = {}
        for words in (("show", one), ("list",), ("watch", one), ("compare", one, other, "--epsilon", "inf")):
            more = ["--concordance"] if words[0] == "compare" else []
            command = ["job", *words, *more, "--json", "--controller", served.address]
            done = await asyncio.to_thread(CliRunner().invoke, hansa, command)
            assert done.exit_code == 0, done.output
            told[words[0]] = json.loads(done.stdout, parse_constant=_refuse)
        runner = served.jobs.runner(one)
        view = runner.view().model_copy(update={"resolved": runner.resolved})
    assert (
        json.loads(written(details(view)), parse_constant=_refuse) == told["show"]
    )  # as `hansa run` leaves it
    assert view.status == "completed", view.reason
    last = told["show"]["history"][-1]
    assert last["metrics"]["loss"] is None
    assert last["metrics"]["auc"] is None
    assert last["diagnostics"] == {"weigh": {"loss": None, "of sites": {"a": [1.5, None]}}}
    assert told["list"][0]["metrics"]["loss"] is None
    assert told["compare"]["concordance"]["epsilon"] is None


SERVERS: dict[str, dict[str, Any]] = {
    "adam": {"kind": "adam"},
    "yogi": {"kind": "yogi"},
    "momentum": {"kind": "momentum", "lr": 0.5},
    "plain": {"kind": "plain"},
}


@pytest.mark.parametrize("merge", ["incremental", "latest"])
@pytest.mark.parametrize("server", SERVERS)
async def test_the_server_does_not_step_again_towards_earlier_updates(
    tmp_path: Path, server: str, merge: str
) -> None:
    """Neither the model nor the moments change; the controller is started anew in the middle."""
    pace, weigh = {"kind": "async", "updates": 12}, {"kind": "dizzy"}
    spec = job(
        rule="fedavg", pace=pace, merge={"kind": merge}, server=SERVERS[server], weigh=weigh, sites={"min": 2}
    )
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a", "b")
        first = await served.submit(spec, None, nothing())
        while first.machine.state.version < 3:
            await first.next_change().wait()
    _assert_sound(tmp_path, "", first.id)
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a", "b")
        runner = await ended(served.jobs.runner(first.id))
        assert runner.view().status == "completed", runner.view().reason
    _assert_sound(tmp_path, "", first.id)
    made = _made(tmp_path, first.id)
    assert len(made) == 12
    for version in (3, 6, 9, 12):
        assert made[version - 1] == made[version - 2]
    assert len({digest for digest, _ in made}) > 4


@contextmanager
def unregistered(point: str, kind: str) -> Iterator[None]:
    """Do without a plugin, as if its package were not installed."""
    before = plugins.contents()
    others = {name: cls for name, cls in before.plugins[point].items() if name != kind}
    plugins.restore(replace(before, plugins=before.plugins | {point: others}))
    try:
        yield
    finally:
        plugins.restore(before)


async def test_a_missing_rule_does_not_keep_the_controller_from_its_other_jobs(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        lost = await served.submit(job(weigh={"kind": "fickle"}), None, nothing())
        other = await served.submit(job(), None, nothing())
    with unregistered("weigh", "fickle"):
        async with serving(tmp_path) as served, AsyncExitStack() as sites:
            view = served.jobs.runner(lost.id).view()
            assert view.status == "failed"
            assert view.reason.startswith("weigh.kind: there is no 'fickle' (known: ")
            await _attend(served, sites, "a")
            assert (await ended(served.jobs.runner(other.id))).view().status == "completed"
    async with serving(tmp_path) as served, AsyncExitStack() as sites:  # the package is back
        await _attend(served, sites, "a")
        assert (await ended(served.jobs.runner(lost.id))).view().status == "completed"


async def test_a_job_that_was_accepted_goes_on_even_if_it_would_be_refused_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served:
        runner = await served.submit(job(weigh={"kind": "fickle"}), None, nothing())
    monkeypatch.setattr(Fickle, "objections", lambda *_: [(("weigh",), "not any more")])
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await _attend(served, sites, "a")
        assert (await ended(served.jobs.runner(runner.id))).view().status == "completed"
    _assert_sound(tmp_path, "", runner.id)


def test_a_learners_process_knows_all_plugins_of_learners() -> None:
    """Nothing but the daemon is imported there."""
    asked = "import hansa.learner.daemon\nfrom hansa.common.plugins.registry import kinds\n"
    asked += "print(*sorted(kinds('learner')), *sorted(kinds('batches')))"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert {"adaptive", "importance", "proximal", "shuffled"} <= set(told.stdout.split())
