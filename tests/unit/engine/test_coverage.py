"""Coverage: a version says on how many examples it was evaluated, and counts only if these are enough."""

from typing import Any

import pytest

from hansa.common.values.history import Version
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, SetAlarm
from tests.unit.engine.play import Play, endings, sent, withdrawn


def versions(tasks: list[Task]) -> list[tuple[str, int]]:
    return [(task.site, task.work.version) for task in tasks if isinstance(task.work, Evaluate)]


def asynchronous(*evaluators: str, **fields: Any) -> Play:
    """Return an asynchronous job in progress with learners a and b and these evaluators."""
    play = Play(**{"rule": "async-fedavg", **fields})
    play.join(*evaluators, role="evaluator")
    play.training("a", "b")
    return play


def merge(play: Play, site: str = "a") -> list[Effect]:
    """Let a site's update arrive and be merged; return the effects of the merge."""
    play.update(play.tasks(Train)[site])
    return play.merged()


def record(play: Play, version: int) -> Version:
    return play.machine.state.history[version]


# Who is asked, and when.


def test_one_version_at_a_time_is_offered_to_all_and_the_newest_follows_when_all_have_reported() -> None:
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
def test_the_newest_version_follows_even_if_the_last_awaited_evaluator_does_not_report(how: str) -> None:
    play = asynchronous("a", "b")
    merge(play)
    first = play.tasks(Evaluate)
    play.report(first["a"])
    merge(play)
    if how == "fails":
        assert versions(sent(play.fail(first["b"]))) == [("a", 2), ("b", 2)]
    else:
        assert versions(sent(play.leave("b", role="evaluator"))) == [("a", 2)]


def test_an_evaluator_that_hangs_is_waited_for_only_so_long_and_skipped_until_it_reports() -> None:
    play = asynchronous("a", "b", evaluate={"timeout": 5})
    play.now = 10.0
    assert SetAlarm("evaluation", 15.0) in merge(play)
    first = play.tasks(Evaluate)
    play.report(first["a"], n=30)
    merge(play)
    effects = play.ring("evaluation")
    assert versions(sent(effects)) == [("a", 2)]
    assert withdrawn(effects) == [], "it may still report"
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


def test_while_all_evaluators_hang_the_first_to_report_gets_the_newest_version() -> None:
    play = asynchronous("a", "b", evaluate={"timeout": 5})
    merge(play)
    first = play.tasks(Evaluate)
    play.ring("evaluation")
    merge(play)
    merge(play)
    assert versions(play.evaluations()) == [("a", 1), ("b", 1)]
    assert versions(sent(play.report(first["b"]))) == [("b", 3)]


def test_a_version_between_those_that_are_due_is_not_offered_in_their_place() -> None:
    play = asynchronous("a", evaluate={"every": 2})
    merge(play)
    merge(play)
    (second,) = play.evaluations()
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


def test_an_evaluator_that_joins_during_an_evaluation_is_missing_in_it() -> None:
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
def test_a_site_whose_data_have_changed_changes_the_total_at_once(n: int) -> None:
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


def test_without_any_examples_no_version_counts() -> None:
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
    assert not record(play, 2).covered, "b may still report"
    play.fail(play.tasks(Evaluate)["b"])
    assert record(play, 2).covered is counts


@pytest.mark.parametrize("other", [{}, {"labels": ((1, 0, 0), (1, 0, 0))}, {"confusion": ((10,),)}])
def test_a_report_unlike_most_others_is_left_out_and_no_target_is_reached(other: dict[str, Any]) -> None:
    """The accuracy would be that on some sites' examples only."""
    play = asynchronous("a", "b", "c", stop={"target": {"metric": "accuracy", "value": 0.9}})
    merge(play)
    tasks = play.tasks(Evaluate)
    odd = Evaluation(n=10, loss_sum=1000.0, **other)
    play.do(ev.Reported(at=play.now, task=tasks["c"].id, site=tasks["c"].site, evaluation=odd))
    play.report(tasks["a"], right=10)
    assert endings(play.report(tasks["b"], right=10)) == []
    version = record(play, 1)
    assert (version.examples, version.examples_total, version.covered, play.machine.state.phase) == (
        20,
        30,
        False,
        "training",
    )
    assert version.metrics == {"loss": 1.0, "accuracy": 1.0, "weighted_f1": 1.0}
    assert list(version.unevaluated) == ["c"]
    assert "most " in version.unevaluated[tasks["c"].site]
    assert play.again().state.model_dump() == play.machine.state.model_dump()


def test_without_a_majority_of_like_reports_all_losses_count() -> None:
    play = asynchronous("a", "b", stop={"target": {"metric": "accuracy", "value": 0.9}})
    merge(play)
    tasks = play.tasks(Evaluate)
    plain = Evaluation(n=10, loss_sum=20.0)
    play.do(ev.Reported(at=play.now, task=tasks["b"].id, site=tasks["b"].site, evaluation=plain))
    play.report(tasks["a"], right=10)
    assert (record(play, 1).metrics, record(play, 1).covered) == ({"loss": 1.5}, True)


# The last version.


@pytest.mark.parametrize("how", ["time", "target", "updates"])
def test_the_last_version_is_evaluated_by_all_connected_sites_however_the_job_completes(how: str) -> None:
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
    for task in play.evaluations():
        play.report(task, right=10)
    last = record(play, 3 if how == "updates" else 2)
    assert (last.version, last.examples, last.examples_total, last.unevaluated) == (state.version, 30, 30, {})
    assert (last.covered, state.covered, state.status) == (True, state.version, "completed")
    assert state.reports == {}


def test_for_the_last_version_sites_that_failed_and_sites_that_join_are_asked_too() -> None:
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


def test_a_version_no_longer_counts_if_a_new_evaluator_does_not_report_at_the_end() -> None:
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


def test_the_last_version_does_not_count_while_a_report_is_awaited() -> None:
    play = asynchronous("a", "b", evaluate={"min_coverage": 0.5}, stop={"seconds": 100})
    for _ in range(2):
        merge(play)
        for site in ("a", "b"):
            play.report(play.tasks(Evaluate)[site])
    play.join("c", role="evaluator")
    play.ring("time")
    assert (record(play, 2).covered, play.machine.state.covered) == (False, 1), "c may still report"
    play.report(play.tasks(Evaluate)["c"])
    assert (record(play, 2).covered, play.machine.state.covered) == (True, 2)


def test_a_cancelled_job_says_which_evaluators_are_missing() -> None:
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
    assert versions(play.evaluations()) == [("b", 1), ("b", 2)]
    play.cancel()
    assert record(play, 1).unevaluated == {"b": "no result in 5 s"}
    assert record(play, 2).unevaluated == {"b": "the job ended before it reported"}
