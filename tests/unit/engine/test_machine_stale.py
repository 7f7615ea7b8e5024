"""Stale events: what arrives too late, twice or from the wrong site leaves no trace."""

import pytest

from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Evaluate, Train
from tests.unit.engine.play import Play, stale


def test_an_update_that_arrives_twice_is_stale_the_second_time() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    stale(play, lambda: play.update(tasks["a"]))
    stale(play, lambda: play.quarantine(tasks["a"]))
    stale(play, lambda: play.fail(tasks["a"], final=True))


def test_an_update_that_arrives_after_its_round_is_stale() -> None:
    play = Play(pace={"deadline": 30})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.ring("round-1-1")
    stale(play, lambda: play.update(tasks["b"]))
    play.merged()
    stale(play, lambda: play.update(tasks["b"]))
    stale(play, lambda: play.fail(tasks["b"]))


def test_a_result_of_an_unknown_task_is_stale() -> None:
    play = Play()
    tasks = play.training("a", "b")
    unknown = tasks["a"].model_copy(update={"id": TaskId("j1-99")})
    other_job = tasks["a"].model_copy(update={"id": TaskId("j2-2")})
    for task in (unknown, other_job):
        stale(play, lambda task=task: play.update(task))  # type: ignore[misc]
        stale(play, lambda task=task: play.quarantine(task))  # type: ignore[misc]
        stale(play, lambda task=task: play.fail(task))  # type: ignore[misc]
        stale(play, lambda task=task: play.report(task))  # type: ignore[misc]


def test_a_result_from_a_site_that_was_not_asked_is_stale() -> None:
    play = Play()
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    task, evaluation = play.tasks(Train)["a"], play.tasks(Evaluate)["a"]
    stale(play, lambda: play.update(task, site="b"))
    for foreign in (task.model_copy(update={"site": "b"}), evaluation.model_copy(update={"site": "b"})):
        stale(play, lambda foreign=foreign: play.fail(foreign))  # type: ignore[misc]
        stale(play, lambda foreign=foreign: play.fail(foreign, final=True))  # type: ignore[misc]
        stale(play, lambda foreign=foreign: play.quarantine(foreign))  # type: ignore[misc]
        stale(play, lambda foreign=foreign: play.report(foreign))  # type: ignore[misc]


def test_a_result_of_the_wrong_kind_is_stale() -> None:
    play = Play()
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    stale(play, lambda: play.update(play.tasks(Evaluate)["a"]))
    stale(play, lambda: play.report(play.tasks(Train)["a"]))


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_merge_that_was_not_ordered_is_stale(version: int) -> None:
    play = Play()
    tasks = play.training("a", "b")
    stale(play, lambda: play.merged(1))
    for task in tasks.values():
        play.update(task)
    stale(play, lambda: play.merged(version))
    play.merged(1)
    stale(play, lambda: play.merged(1))
