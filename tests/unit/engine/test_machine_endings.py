"""How jobs end."""

import math

import pytest

from hansa.common.values.tasks import Evaluate, Init, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import SetAlarm
from tests.unit.engine.play import Play, endings, sent, stale, withdrawn


@pytest.mark.parametrize("moment", ["waiting", "initialising", "training", "merging", "closing"])
def test_an_operator_can_cancel_at_any_moment(moment: str) -> None:
    play = Play(pace={"rounds": 1})
    play.join("a", role="evaluator")
    if moment != "waiting":
        play.join("a", "b")
    if moment in ("training", "merging", "closing"):
        play.update(play.tasks(Init)["a"])
    if moment in ("merging", "closing"):
        for task in play.tasks(Train).values():
            play.update(task)
    if moment == "closing":
        play.merged()
    open_tasks = set(play.machine.state.tasks)
    effects = play.cancel()
    assert endings(effects) == [("cancelled", "cancelled by the operator")]
    assert set(withdrawn(effects)) == open_tasks
    assert play.machine.resume() == []
    assert play.machine.state.alarms == {}
    stale(play, play.cancel)
    stale(play, lambda: play.join("z"))
    stale(play, lambda: play.merged(1))


def test_a_time_limit_ends_training_and_completes_after_a_last_evaluation() -> None:
    play = Play(stop={"seconds": 100}, evaluate={"every": 50, "timeout": 7})
    assert SetAlarm("time", 100.0) in play.first
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    open_tasks = {task.id for task in play.tasks(Train).values()}
    effects = play.ring("time")
    assert set(withdrawn(effects)) == open_tasks
    (last,) = sent(effects)
    assert last.work == Evaluate(model="j1/v1", version=1)
    assert SetAlarm("evaluation", 107.0) in effects
    assert endings(play.report(last)) == [("completed", "time limit of 100 s reached")]


def test_a_time_limit_during_a_merge_gives_the_merge_up() -> None:
    play = Play(stop={"seconds": 100})
    tasks = play.training("a", "b")
    for task in tasks.values():
        play.update(task)
    play.join("a", role="evaluator")
    assert endings(play.ring("time"))[0][0] == "completed"
    assert play.machine.state.version == 0


def _closing_with_a_merge_given_up() -> Play:
    """Return a job whose time is up during the second merge, while version 1 is still being evaluated."""
    play = Play(stop={"seconds": 100})
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    for task in play.tasks(Train).values():
        play.update(task)
    assert play.machine.state.plan is not None
    play.ring("time")
    assert play.machine.state.phase == "closing"
    return play


def test_a_merge_that_was_given_up_is_stale_when_it_is_done() -> None:
    play = _closing_with_a_merge_given_up()
    stale(play, lambda: play.merged(2))
    play.report(play.tasks(Evaluate)["a"])
    assert (play.machine.state.status, play.machine.state.version) == ("completed", 1)


def test_a_merge_that_was_given_up_can_no_longer_fail_the_job() -> None:
    play = _closing_with_a_merge_given_up()
    stale(play, lambda: play.order_failed(2, "model j1/u4 is gone"))


def test_a_merge_that_fails_fails_the_job() -> None:
    play = Play()
    for task in play.training("a", "b").values():
        play.update(task)
    effects = play.order_failed(1, "disk full")
    assert endings(effects) == [("failed", "merging version 1: disk full")]


def test_a_failure_of_the_engine_ends_the_job() -> None:
    play = Play()
    play.training("a", "b")
    effects = play.do(ev.EngineFailed(at=1, reason="the rule failed: ZeroDivisionError"))
    assert endings(effects) == [("failed", "the rule failed: ZeroDivisionError")]


@pytest.mark.parametrize(
    ("metric", "value", "right", "loss", "reached"),
    [
        ("accuracy", 0.8, 8, 1.0, True),
        ("accuracy", 0.8, 7, 1.0, False),
        ("loss", 0.5, 0, 0.5, True),
        ("loss", 0.5, 10, 0.6, False),
        ("loss", 0.5, 10, math.nan, False),
    ],
)
def test_a_target_ends_the_job_when_it_is_reached(
    metric: str, value: float, right: int, loss: float, reached: bool
) -> None:
    play = Play(stop={"target": {"metric": metric, "value": value}})
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    effects = play.report(play.tasks(Evaluate)["a"], right=right, loss=loss)
    assert bool(endings(effects)) is reached
    if reached:
        assert endings(effects)[0][1].startswith(f"target reached: {metric} ")
        assert play.machine.state.status == "completed"
        assert len(withdrawn(effects)) == 2


def test_a_target_is_decided_by_all_evaluators_together() -> None:
    play = Play(stop={"target": {"metric": "accuracy", "value": 0.75}})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    play.round()
    tasks = play.tasks(Evaluate)
    assert play.report(tasks["a"], right=10, n=10) == []
    ((_, reason),) = endings(play.report(tasks["b"], right=5, n=10))
    assert reason == "target reached: accuracy 0.7500 at version 1"


@pytest.mark.parametrize("how", ["fails", "leaves"])
@pytest.mark.parametrize("enough", [1.0, 0.5])
def test_a_target_is_decided_without_an_evaluator_that_does_not_report_only_if_the_job_allows_it(
    how: str, enough: float
) -> None:
    play = Play(stop={"target": {"metric": "accuracy", "value": 0.75}}, evaluate={"min_coverage": enough})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    play.round()
    tasks = play.tasks(Evaluate)
    play.report(tasks["a"], right=9, n=10)
    effects = play.fail(tasks["b"]) if how == "fails" else play.leave("b", role="evaluator")
    if enough == 1:
        assert endings(effects) == []
        return
    if how == "fails":  # it is connected, so it is asked for the last version once more
        effects = play.fail(play.tasks(Evaluate)["b"])
    where = "at version 1 on 10 of an unknown number of examples"
    assert endings(effects) == [("completed", f"target reached: accuracy 0.9000 {where}")]


def test_a_job_completes_without_evaluators_that_do_not_report_on_its_last_version() -> None:
    play = Play(pace={"rounds": 1}, evaluate={"timeout": 5})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    play.now = 10.0
    play.round()
    play.report(play.tasks(Evaluate)["a"])
    assert play.machine.state.alarms == {"evaluation": 15.0}
    effects = play.ring("evaluation")
    assert endings(effects) == [("completed", "the round is done (not all evaluators reported in time)")]
    assert len(withdrawn(effects)) == 1


@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_an_evaluator_that_fails_or_leaves_does_not_hold_up_the_end(how: str) -> None:
    play = Play(pace={"rounds": 1})
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    task = play.tasks(Evaluate)["a"]
    effects = play.fail(task) if how == "fails" else play.leave("a", role="evaluator")
    assert endings(effects) == [("completed", "the round is done")]
    stale(play, lambda: play.report(task))
