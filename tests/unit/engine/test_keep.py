"""Models that are kept: the best version, the newest ones and every so many; and patience."""

from typing import Any

import pytest

from hansa.common.values.errors import NotFound
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect
from hansa.controller.jobs.views import model_of
from tests.unit.engine.play import Play, dropped, endings


def begun(**fields: Any) -> Play:
    """Return a job in its first round, with a learner and an evaluator."""
    play = Play(**{"pace": {"rounds": 9}, "sites": {"min": 1}, **fields})
    play.join("a", role="evaluator")
    play.training("a")
    return play


def evaluated(play: Play, right: int, **report: Any) -> list[Effect]:
    """Let a round end, and its version be evaluated."""
    play.round()
    return play.report(play.tasks(Evaluate)["a"], right, **report)


def report(play: Play, task: Task, evaluation: Evaluation) -> list[Effect]:
    return play.do(ev.Reported(at=play.now, task=task.id, site=task.site, evaluation=evaluation))


def saved(play: Play) -> list[int]:
    state = play.machine.state
    assert set(state.saved.values()) <= state.models
    assert not dropped(play.effects) & state.models
    return sorted(state.saved)


def best(play: Play) -> tuple[int, str, float]:
    known = play.machine.state.best
    assert known is not None
    return known.version, known.metric, known.value


def test_the_best_and_the_last_are_kept_and_of_equally_good_ones_the_first() -> None:
    play = begun()
    for right in (5, 8, 3, 8):
        evaluated(play, right)
    assert best(play) == (2, "accuracy", 0.8)
    assert saved(play) == [2, 4]
    evaluated(play, 9)
    assert saved(play) == [5]
    assert "j1/v2" in dropped(play.effects)


def test_newest_and_every_nth_are_kept_to_the_end() -> None:
    play = begun(pace={"rounds": 8}, keep={"best": None, "last": 2, "every": 3})
    for _ in range(8):
        evaluated(play, 5)
    assert play.machine.ended
    assert saved(play) == [3, 6, 7, 8]
    assert play.machine.state.best is None


def test_a_loss_is_better_the_smaller_it_is_and_a_metric_of_ones_own_as_the_job_says() -> None:
    play = begun(keep={"best": {"metric": "loss"}})
    for loss in (2.0, 1.0, 3.0):
        evaluated(play, 5, loss=loss)
    assert best(play) == (2, "loss", 1.0)
    play = begun(keep={"best": {"metric": "wobble", "mode": "min"}})
    for wobble in (2.0, 1.0, float("nan")):
        play.round()
        own = Evaluation(n=10, loss_sum=1.0, metrics={"wobble": wobble})
        report(play, play.tasks(Evaluate)["a"], own)
    assert best(play) == (2, "wobble", 1.0)


def test_without_accuracy_versions_are_compared_by_their_loss() -> None:
    play = begun()
    for loss in (3.0, 2.0, 4.0):
        play.round()
        report(play, play.tasks(Evaluate)["a"], Evaluation(n=10, loss_sum=10 * loss))
    assert best(play) == (2, "loss", 2.0)


def test_a_metric_that_nobody_reports_is_named_once_with_those_that_there_are() -> None:
    play = begun(keep={"best": {"metric": "weighted_f2", "mode": "max"}})
    evaluated(play, 5)
    evaluated(play, 5)
    (warning,) = play.machine.warnings
    assert warning.startswith("keep.best.metric: versions do not have weighted_f2")
    assert "weighted_f1" in warning
    assert play.machine.state.best is None


def test_only_versions_that_count_are_compared() -> None:
    play = begun()
    play.join("b", role="evaluator")
    play.round()
    tasks = play.tasks(Evaluate)
    play.report(tasks["a"], 10)
    play.fail(tasks["b"])
    assert play.machine.state.best is None
    play.round()
    tasks = play.tasks(Evaluate)
    play.report(tasks["a"], 2)
    play.report(tasks["b"], 2)
    assert best(play) == (2, "accuracy", 0.2)


def test_a_late_report_can_make_an_older_version_the_best() -> None:
    play = begun()
    play.join("b", role="evaluator")
    play.round()
    first = play.tasks(Evaluate)
    play.report(first["a"], 9)
    play.ring("evaluation")
    for _ in range(3):
        play.round()
    assert saved(play) == [4]
    play.report(first["b"], 9)
    assert best(play) == (1, "accuracy", 0.9)
    assert saved(play) == [1, 4]


def on_test_data(right: int, validated: int | None) -> Evaluation:
    def counted(right: int) -> dict[str, Any]:
        return {"n": 10, "loss_sum": 1.0, "confusion": ((right, 10 - right), (0, 0))}

    beside = None if validated is None else Evaluation(**counted(validated))
    return Evaluation(**counted(right), split="test", validation=beside)


def test_no_version_is_chosen_by_test_data_and_both_parts_are_in_the_history() -> None:
    play = begun(keep={"best": {"metric": "accuracy"}})
    for right, validated in ((9, 2), (1, 8)):
        play.round()
        task = play.tasks(Evaluate)["a"]
        assert isinstance(task.work, Evaluate)
        assert task.work.both
        report(play, task, on_test_data(right, validated))
    assert best(play) == (2, "accuracy", 0.8)
    first, second = play.machine.state.history[1:3]
    assert (first.metrics["accuracy"], second.metrics["accuracy"]) == (0.9, 0.1)
    assert second.validation is not None
    assert second.validation.metrics["accuracy"] == 0.8
    assert second.validation.evaluations["a"].metrics["accuracy"] == 0.8
    assert second.evaluations["a"].examples == 10
    assert second.confusion == [[1, 9], [0, 0]]


def test_test_data_alone_choose_nothing() -> None:
    play = begun(stop={"patience": 1}, keep={"best": {"metric": "accuracy"}})
    for right in (9, 1):
        play.round()
        report(play, play.tasks(Evaluate)["a"], on_test_data(right, None))
    assert play.machine.state.best is None
    assert not play.machine.ended
    assert "validation.fraction" in play.machine.warnings[0]


def test_whoever_wants_the_best_by_test_data_reads_how_to_choose_one() -> None:
    play = begun()
    play.round()
    report(play, play.tasks(Evaluate)["a"], Evaluation(n=10, loss_sum=1.0, split="test"))
    assert model_of(play.machine, "last") == (1, "j1/v1")
    with pytest.raises(NotFound, match=r"\{best: \{metric: loss\}\}` they also evaluate on validation data"):
        model_of(play.machine, "best")
    with pytest.raises(NotFound, match="version 0 of job j1 is not kept; kept: 1; `keep` in the job"):
        model_of(play.machine, 0)


def test_patience_runs_out_after_so_many_versions_that_are_no_better() -> None:
    play = begun(stop={"patience": 2})
    effects: list[Effect] = []
    for right in (5, 4, 6, 6):
        effects = evaluated(play, right)
        assert not endings(effects)
    effects = evaluated(play, 5)
    reason = "patience ran out: the last 2 versions are no better than version 3, whose accuracy is 0.6000"
    assert endings(effects) == [("completed", reason)]
    assert saved(play) == [3, 5]


@pytest.mark.parametrize(("mode", "value"), [("max", 0.5), ("min", 0.1)])
def test_any_metric_can_be_a_target(mode: str, value: float) -> None:
    play = begun(stop={"target": {"metric": "wobble", "value": value, "mode": mode}})
    for wobble in (0.3, 0.7 if mode == "max" else 0.05):
        assert not play.machine.ended
        play.round()
        own = Evaluation(n=10, loss_sum=1.0, metrics={"wobble": wobble})
        report(play, play.tasks(Evaluate)["a"], own)
    assert play.machine.state.reason.startswith("target reached: wobble")


def test_a_target_of_a_metric_that_nobody_reports_is_named() -> None:
    play = begun(stop={"target": {"metric": "f1", "value": 0.9}})
    evaluated(play, 9)
    evaluated(play, 9)
    (warning,) = play.machine.warnings
    assert warning == "stop.target.metric: versions do not have f1 (known: accuracy, loss, weighted_f1)"


@pytest.mark.parametrize("at", range(1, 6))
def test_what_is_kept_survives_a_crash_at_any_time(at: int) -> None:
    play = begun(keep={"last": 2, "every": 3}, stop={"patience": 4})
    for number, right in enumerate((5, 8, 3, 4, 7), 1):
        evaluated(play, right)
        if number == at:
            play.save()
    again = play.again()
    assert again.state == play.machine.state
    assert again.outdated_indices() == []
    assert sorted(again.state.saved) == [2, 3, 4, 5]
    assert Train in {type(task.work) for task in again.state.tasks.values()}


def of_three_classes(loss: float) -> Evaluation:
    return Evaluation(n=10, loss_sum=10 * loss, confusion=((10, 0, 0), (0, 0, 0), (0, 0, 0)))


def test_a_version_whose_accuracy_is_unknown_does_not_replace_one_that_has_an_accuracy() -> None:
    play = begun()
    play.join("b", role="evaluator")
    for right, wrong_shape in ((9, False), (2, True)):
        play.round()
        tasks = play.tasks(Evaluate)
        play.report(tasks["a"], right)
        if wrong_shape:  # the sites do not agree on the classes, so nobody knows the accuracy
            report(play, tasks["b"], of_three_classes(0.1))
        else:
            play.report(tasks["b"], right)
    assert play.machine.state.history[2].covered
    assert best(play) == (1, "accuracy", 0.9)


def test_a_late_report_can_make_the_best_version_worse_than_another_that_is_kept() -> None:
    play = begun(evaluate={"min_coverage": 0.5}, keep={"last": 2}, stop={"patience": 3})
    play.join("b", role="evaluator")
    play.round()
    late = play.tasks(Evaluate)["b"]
    play.report(play.tasks(Evaluate)["a"], 9)
    play.ring("evaluation")
    for right in (8, 7):
        evaluated(play, right)
    assert best(play) == (1, "accuracy", 0.9)
    play.report(late, 0)
    assert best(play) == (2, "accuracy", 0.8)
    assert saved(play) == [2, 3]
    assert play.machine.state.since_best == {3}
    assert play.again().state == play.machine.state


def test_a_late_report_on_the_best_version_does_not_start_patience_anew() -> None:
    play = begun(evaluate={"min_coverage": 0.5}, stop={"patience": 3})
    play.join("b", role="evaluator")
    play.round()
    late = play.tasks(Evaluate)["b"]
    play.report(play.tasks(Evaluate)["a"], 9)
    play.ring("evaluation")
    for right in (8, 7):
        evaluated(play, right)
    play.report(late, 9)
    assert best(play) == (1, "accuracy", 0.9)
    assert play.machine.state.since_best == {2, 3}


def test_a_version_that_evaluators_who_joined_later_have_not_seen_does_not_stay_the_best() -> None:
    play = begun()
    evaluated(play, 10)
    play.join("b", role="evaluator")
    for _ in range(2):
        play.round()
        for task in play.tasks(Evaluate).values():
            play.report(task, 6)
    assert best(play) == (2, "accuracy", 0.6)
