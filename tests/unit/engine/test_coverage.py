"""A version says on how many examples of how many it was evaluated, and counts only if these are enough."""

import random
import re
from typing import Any

import pytest

from hansa.common.values.errors import Stale
from hansa.common.values.history import Version
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, SetAlarm
from tests.unit.engine.play import Play, endings, sent, withdrawn

SITES = ("a", "b", "c", "d", "e")
EXAMPLES = {"a": 100, "b": 200, "c": 100, "d": 500, "e": 100}
TARGET = 0.9


def evaluations(play: Play) -> list[Task]:
    """Return the open evaluations, the oldest first."""
    return [task for task in play.machine.state.tasks.values() if isinstance(task.work, Evaluate)]


def versions(tasks: list[Task]) -> list[tuple[str, int]]:
    return [(task.site, task.work.version) for task in tasks if isinstance(task.work, Evaluate)]


def asynchronous(*evaluators: str, **fields: Any) -> Play:
    """Return an asynchronous job under way with learners a and b and these evaluators."""
    play = Play(**{"rule": "async-fedavg", **fields})
    play.join(*evaluators, role="evaluator")
    play.training("a", "b")
    return play


def merge(play: Play, site: str = "a") -> list[Effect]:
    """Let a site's update come and be merged; return what followed."""
    play.update(play.tasks(Train)[site])
    return play.merged()


def record(play: Play, version: int) -> Version:
    return play.machine.state.history[version]


# Who is asked, and when.


def test_one_version_at_a_time_is_offered_to_all_and_the_newest_follows_when_all_have_answered() -> None:
    play = asynchronous("a", "b")
    assert versions(sent(merge(play)))[:2] == [("a", 1), ("b", 1)]
    first = play.tasks(Evaluate)
    merge(play)
    merge(play)
    assert sent(play.report(first["a"])) == [], "a is free, but version 3 would be evaluated without b"
    merge(play)
    assert versions(sent(play.report(first["b"]))) == [("a", 4), ("b", 4)]
    assert [record(play, version).covered for version in (1, 2, 3)] == [True, False, False]


@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_the_newest_version_follows_also_if_the_last_who_is_awaited_does_not_answer(how: str) -> None:
    play = asynchronous("a", "b")
    merge(play)
    first = play.tasks(Evaluate)
    play.report(first["a"])
    merge(play)
    if how == "fails":
        assert versions(sent(play.fail(first["b"]))) == [("a", 2), ("b", 2)]
    else:
        assert versions(sent(play.leave("b", role="evaluator"))) == [("a", 2)]


def test_an_evaluator_that_hangs_is_waited_for_only_so_long_and_skipped_until_it_answers() -> None:
    play = asynchronous("a", "b", evaluate={"timeout": 5})
    play.now = 10.0
    assert SetAlarm("evaluation", 15.0) in merge(play)
    first = play.tasks(Evaluate)
    play.report(first["a"], n=30)
    merge(play)
    effects = play.ring("evaluation")
    assert versions(sent(effects)) == [("a", 2)]
    assert withdrawn(effects) == [], "it may answer after all"
    assert record(play, 1).unevaluated == {"b": "no result in 5 s"}
    play.report(play.tasks(Evaluate)["a"], n=30)
    assert (record(play, 2).examples, record(play, 2).examples_total) == (30, None)
    assert record(play, 2).unevaluated == {"b": "still evaluating version 1"}
    play.report(first["b"], n=10)
    assert (record(play, 1).examples, record(play, 1).examples_total, record(play, 1).unevaluated) == (
        40,
        40,
        {},
    )
    assert (record(play, 1).covered, play.machine.state.covered) == (True, 1)
    assert "version 1" not in play.machine.state.reports, "only what they say together is kept"
    assert versions(sent(merge(play)))[:2] == [("a", 3), ("b", 3)]


def test_while_all_evaluators_hang_the_first_to_answer_gets_the_newest_version() -> None:
    play = asynchronous("a", "b", evaluate={"timeout": 5})
    merge(play)
    first = play.tasks(Evaluate)
    play.ring("evaluation")
    merge(play)
    merge(play)
    assert versions(evaluations(play)) == [("a", 1), ("b", 1)]
    assert versions(sent(play.report(first["b"]))) == [("b", 3)]


def test_a_version_between_those_that_are_due_is_not_offered_in_their_place() -> None:
    play = asynchronous("a", evaluate={"every": 2})
    merge(play)
    merge(play)
    (second,) = evaluations(play)
    for _ in range(3):
        merge(play)
    assert sent(play.report(second)) == []  # 4 is gone, and 5 is not wanted
    assert versions(sent(merge(play)))[0] == ("a", 6)


def test_the_wait_for_evaluators_is_the_same_after_a_crash() -> None:
    play = asynchronous("a", "b")
    merge(play)
    play.report(play.tasks(Evaluate)["a"])
    merge(play)
    play.save()
    play.ring("evaluation")
    again = play.again()
    assert again.state.model_dump() == play.machine.state.model_dump()
    assert again.resume() == play.machine.resume()


# Who counts.


def test_as_long_as_an_evaluator_has_never_reported_no_version_is_evaluated_on_all_examples() -> None:
    play = asynchronous("a", "b", "c")
    merge(play)
    tasks = play.tasks(Evaluate)
    play.report(tasks["a"])
    play.report(tasks["b"])
    play.fail(tasks["c"], "out of memory")
    assert (record(play, 1).examples, record(play, 1).examples_total, record(play, 1).covered) == (
        20,
        None,
        False,
    )
    assert record(play, 1).unevaluated == {"c": "out of memory"}
    assert play.machine.state.covered is None


def test_an_evaluator_that_is_gone_counts_with_what_it_reported_last() -> None:
    play = asynchronous("a", "b")
    merge(play)
    for site, n in (("a", 30), ("b", 10)):
        play.report(play.tasks(Evaluate)[site], n=n)
    play.leave("b", role="evaluator")
    merge(play)
    play.report(play.tasks(Evaluate)["a"], n=30)
    assert (record(play, 2).examples, record(play, 2).examples_total, record(play, 2).covered) == (
        30,
        40,
        False,
    )
    assert record(play, 2).unevaluated == {"b": "not connected"}
    assert play.machine.state.covered == 1


@pytest.mark.parametrize("begun", [False, True])
def test_an_evaluator_that_left_counts_even_if_it_was_never_asked_unless_the_job_had_not_begun(
    begun: bool,
) -> None:
    play = Play(rule="async-fedavg")
    play.join("a", "b", role="evaluator")
    if not begun:
        play.leave("b", role="evaluator")
    play.training("a", "b")
    if begun:
        play.leave("b", role="evaluator")
    merge(play)
    play.report(play.tasks(Evaluate)["a"])
    assert (record(play, 1).examples_total, record(play, 1).covered) == (
        (None, False) if begun else (10, True)
    )
    assert record(play, 1).unevaluated == ({"b": "not connected"} if begun else {})


def test_an_evaluator_that_comes_during_an_evaluation_is_missing_in_it() -> None:
    play = asynchronous("a", stop={"target": {"metric": "accuracy", "value": 0.5}})
    merge(play)
    play.join("b", role="evaluator")
    assert endings(play.report(play.tasks(Evaluate)["a"], right=10)) == []
    assert record(play, 1).unevaluated == {"b": "not asked"}
    assert versions(sent(merge(play)))[:2] == [("a", 2), ("b", 2)]


def test_a_site_without_examples_is_not_missed() -> None:
    play = asynchronous("a", "b")
    merge(play)
    play.report(play.tasks(Evaluate)["b"], right=0, n=0)
    play.report(play.tasks(Evaluate)["a"])
    merge(play)
    play.fail(play.tasks(Evaluate)["b"])
    play.report(play.tasks(Evaluate)["a"])
    assert (record(play, 2).examples_total, record(play, 2).covered) == (10, True)


@pytest.mark.parametrize("n", [5, 40])
def test_a_site_with_other_data_than_before_changes_how_many_examples_there_are_at_once(n: int) -> None:
    play = asynchronous("a", "b")
    merge(play)
    for site in ("a", "b"):
        play.report(play.tasks(Evaluate)[site])
    merge(play)
    play.report(play.tasks(Evaluate)["a"], n=n)
    assert (record(play, 2).examples, record(play, 2).examples_total) == (n, n + 10), "b is awaited"
    play.report(play.tasks(Evaluate)["b"])
    assert (record(play, 2).examples, record(play, 2).examples_total, record(play, 2).covered) == (
        n + 10,
        n + 10,
        True,
    )


def test_where_every_example_is_missing_nothing_counts() -> None:
    play = asynchronous("a")
    merge(play)
    play.report(play.tasks(Evaluate)["a"], right=0, n=0)
    assert (record(play, 1).examples_total, record(play, 1).covered) == (0, False)


@pytest.mark.parametrize(("enough", "counts"), [(0.7, True), (0.71, False)])
def test_a_version_counts_from_min_coverage_on(enough: float, counts: bool) -> None:
    play = asynchronous("a", "b", evaluate={"min_coverage": enough})
    merge(play)
    play.report(play.tasks(Evaluate)["a"], n=70)
    play.report(play.tasks(Evaluate)["b"], n=30)
    merge(play)
    play.report(play.tasks(Evaluate)["a"], n=70)
    assert not record(play, 2).covered, "b may still answer"
    play.fail(play.tasks(Evaluate)["b"])
    assert record(play, 2).covered is counts


@pytest.mark.parametrize("other", [{}, {"labels": ((1, 0, 0), (1, 0, 0))}, {"confusion": ((10,),)}])
def test_who_counts_something_else_than_most_is_missing_and_reaches_no_target(other: dict[str, Any]) -> None:
    """The accuracy is without it, so that it would be of some sites' examples only."""
    play = asynchronous("a", "b", "c", stop={"target": {"metric": "accuracy", "value": 0.9}})
    merge(play)
    tasks = play.tasks(Evaluate)
    odd = Evaluation(n=10, loss_sum=1000.0, **other)
    play.do(ev.Reported(at=play.now, task=tasks["c"].id, site=tasks["c"].site, evaluation=odd))
    play.report(tasks["a"], right=10)
    assert endings(play.report(tasks["b"], right=10)) == []
    found = record(play, 1)
    assert (found.examples, found.examples_total, found.covered, play.machine.state.phase) == (
        20,
        30,
        False,
        "training",
    )
    assert found.metrics == {"loss": 1.0, "accuracy": 1.0}
    assert list(found.unevaluated) == ["c"]
    assert "most " in found.unevaluated[tasks["c"].site]
    assert play.again().state.model_dump() == play.machine.state.model_dump()


def test_where_most_count_nothing_or_nobody_is_in_the_majority_all_losses_count() -> None:
    play = asynchronous("a", "b", stop={"target": {"metric": "accuracy", "value": 0.9}})
    merge(play)
    tasks = play.tasks(Evaluate)
    plain = Evaluation(n=10, loss_sum=20.0)
    play.do(ev.Reported(at=play.now, task=tasks["b"].id, site=tasks["b"].site, evaluation=plain))
    play.report(tasks["a"], right=10)
    assert (record(play, 1).metrics, record(play, 1).covered) == ({"loss": 1.5}, True)


# The last version.


@pytest.mark.parametrize("how", ["time", "target", "updates"])
def test_the_last_version_is_evaluated_by_all_who_are_connected_however_the_job_completes(how: str) -> None:
    stop = {"target": {"metric": "accuracy", "value": 0.9}} if how == "target" else {"seconds": 100}
    play = asynchronous("a", "b", "c", evaluate={"timeout": 5}, stop=stop, pace={"updates": 3})
    merge(play)
    first = play.tasks(Evaluate)
    play.report(first["a"], right=10)
    play.report(first["b"], right=10)
    play.ring("evaluation")  # c hangs
    merge(play)
    for site in ("a", "b"):
        play.report(play.tasks(Evaluate)[site], right=10)
    assert record(play, 2).unevaluated == {"c": "still evaluating version 1"}
    if how == "time":
        play.ring("time")
    elif how == "target":
        play.report(first["c"], right=10)
    else:
        merge(play)
    state = play.machine.state
    assert state.phase == "closing"
    for task in evaluations(play):
        play.report(task, right=10)
    last = record(play, 3 if how == "updates" else 2)
    assert (last.version, last.examples, last.examples_total, last.unevaluated) == (state.version, 30, 30, {})
    assert (last.covered, state.covered, state.status) == (True, state.version, "completed")
    assert state.reports == {}


def test_who_failed_at_the_last_version_is_asked_once_more_and_who_comes_meanwhile_is_asked_too() -> None:
    play = asynchronous("a", "b", stop={"seconds": 100})
    merge(play)
    tasks = play.tasks(Evaluate)
    play.report(tasks["a"])
    play.fail(tasks["b"])
    assert versions(sent(play.ring("time"))) == [("b", 1)]
    assert versions(sent(play.join("c", role="evaluator"))) == [("c", 1)]
    play.report(play.tasks(Evaluate)["b"])
    assert endings(play.report(play.tasks(Evaluate)["c"])) == [("completed", "time limit of 100 s reached")]
    assert (record(play, 1).examples, record(play, 1).examples_total) == (30, 30)


def test_a_version_that_counted_no_longer_does_if_somebody_new_does_not_answer_at_the_end() -> None:
    play = asynchronous("a", stop={"seconds": 100})
    for _ in range(2):
        merge(play)
        play.report(play.tasks(Evaluate)["a"])
    assert play.machine.state.covered == 2
    play.join("b", role="evaluator")
    play.ring("time")
    assert play.machine.state.covered == 1
    play.ring("evaluation")
    assert (play.machine.state.status, play.machine.state.covered) == ("completed", 1)
    assert record(play, 2).unevaluated == {"b": "no result in 60 s"}


def test_the_last_version_does_not_count_as_long_as_somebody_is_awaited() -> None:
    play = asynchronous("a", "b", evaluate={"min_coverage": 0.5}, stop={"seconds": 100})
    for _ in range(2):
        merge(play)
        for site in ("a", "b"):
            play.report(play.tasks(Evaluate)[site])
    play.join("c", role="evaluator")
    play.ring("time")
    assert (record(play, 2).covered, play.machine.state.covered) == (False, 1), "c may answer"
    play.report(play.tasks(Evaluate)["c"])
    assert (record(play, 2).covered, play.machine.state.covered) == (True, 2)


def test_who_is_missing_in_a_job_that_is_cancelled_is_told() -> None:
    play = asynchronous("a", "b")
    merge(play)
    play.report(play.tasks(Evaluate)["a"])
    play.cancel()
    assert record(play, 1).unevaluated == {"b": "the job ended before it reported"}
    assert (record(play, 1).examples, record(play, 1).covered) == (10, False)


def test_an_evaluator_that_had_two_versions_in_hand_at_the_end_is_missing_in_both() -> None:
    play = asynchronous("a", "b", stop={"seconds": 100}, evaluate={"timeout": 5})
    merge(play)
    play.report(play.tasks(Evaluate)["a"])
    play.ring("evaluation")  # b is late with version 1
    merge(play)
    play.report(play.tasks(Evaluate)["a"])
    play.ring("time")
    assert versions(evaluations(play)) == [("b", 1), ("b", 2)]
    play.cancel()
    assert record(play, 1).unevaluated == {"b": "no result in 5 s"}
    assert record(play, 2).unevaluated == {"b": "the job ended before it reported"}


# What a target is decided by.


def right(site: str, version: int, start: int) -> int:
    """Return how many of a site's examples a version has right: one site in turn is bad, and none from `start` on."""
    good = SITES[version % len(SITES)] != site or version >= start
    return EXAMPLES[site] * (95 if good else 30) // 100


class Trial:
    """An asynchronous job in which versions are good enough for most sites long before they are for all together."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.start = self.chance.choice([10, 20, 1000])
        self.slow = self.chance.choice([1, 3, 10])  # merges for each report
        self.steady = self.chance.random() < 0.5  # evaluators neither fail nor leave
        self.play = Play(
            rule="async-fedavg",
            pace={"updates": 40},
            sites={"min": 2},
            stop={"target": {"metric": "accuracy", "value": TARGET}}
            | ({"seconds": 300} if seed % 3 == 0 else {}),
            evaluate={"every": self.chance.choice([1, 1, 2])},
        )
        self.play.join(*SITES, role="evaluator")
        self.play.training(*SITES)
        self.lost_at_the_end = False

    def run(self) -> None:
        """Let anything happen in any order until the job has ended."""
        for _ in range(4000):
            if self.play.machine.ended:
                return
            try:
                self._happen()
            except Stale:
                continue
        raise AssertionError("the job has not ended")

    def _happen(self) -> list[Effect]:
        play, chance, state = self.play, self.chance, self.play.machine.state
        training, evaluating = list(play.tasks(Train).values()), evaluations(play)
        acts: list[str] = [*["update"] * (5 * self.slow), *["merge"] * (5 * self.slow), *["report"] * 5]
        acts += [] if self.steady else ["fail", "leave", "join", "ring"]
        act = chance.choice([*acts, "wait", "crash"])
        if act in ("fail", "leave", "ring") and state.phase == "closing":
            self.lost_at_the_end = True
        if act == "update" and training:
            return play.update(chance.choice(training))
        if act == "merge" and state.plan:
            return play.merged()
        if act == "report" and evaluating:
            task = chance.choice(evaluating)
            assert isinstance(task.work, Evaluate)
            found = right(task.site, task.work.version, self.start)
            return play.report(task, right=found, n=EXAMPLES[task.site])
        if act == "fail" and evaluating:
            return play.fail(chance.choice(evaluating))
        if act == "ring" and "evaluation" in state.alarms:
            return play.ring("evaluation")
        if act == "leave":
            return play.leave(chance.choice(SITES), "evaluator")
        if act == "join":
            return play.join(chance.choice(SITES), role="evaluator")
        if act == "wait":
            play.now += 1
            return play.ring("time") if state.alarms.get("time", 1e9) <= play.now else []
        if act == "crash" and chance.random() < 0.3:
            play.machine = play.again()
            play.save()
        return []

    @property
    def reason(self) -> str:
        """Why the job ended."""
        return self.play.machine.state.reason


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    found = [Trial(seed) for seed in range(200)]
    for trial in found:
        trial.run()
    return found


def test_a_target_is_never_reached_on_some_of_the_examples_in_200_jobs_in_any_order_of_events(
    trials: list[Trial],
) -> None:
    reasons = ((trial, re.match(r"target reached: .* at version (\d+)", trial.reason)) for trial in trials)
    stopped = [(trial, int(reason[1])) for trial, reason in reasons if reason]
    for trial, version in stopped:
        found = record(trial.play, version)
        assert found.examples == sum(EXAMPLES.values())
        correct = sum(right(site, version, trial.start) for site in SITES)
        assert found.metrics["accuracy"] == correct / found.examples >= TARGET
        assert version >= trial.start
    assert len(stopped) > 30, "some jobs reach their target"
    tempting = [
        found
        for trial in trials
        for found in trial.play.machine.state.history
        if (found.metrics.get("accuracy") or 0) >= TARGET and found.version < trial.start
    ]
    assert len(tempting) > 100, "many versions are good enough for the sites that have evaluated them"
    assert not any(found.covered for found in tempting)


def test_the_last_version_of_200_jobs_is_evaluated_on_all_examples_unless_somebody_is_lost_at_the_end(
    trials: list[Trial],
) -> None:
    checked = 0
    for trial in trials:
        state = trial.play.machine.state
        if state.status != "completed" or trial.lost_at_the_end:
            continue
        here = sum(EXAMPLES[site] for site in state.evaluators)
        assert record(trial.play, state.version).examples == here
        assert set(record(trial.play, state.version).unevaluated) == set(SITES) - state.evaluators
        checked += 1
    assert checked > 60


def test_versions_that_count_do_occur_however_slow_evaluators_are(trials: list[Trial]) -> None:
    for trial in trials:
        if trial.steady:
            counted = [found.version for found in trial.play.machine.state.history if found.covered]
            assert len(counted) > 1, "not only the last version is evaluated by all"
            assert counted[-1] == trial.play.machine.state.version
