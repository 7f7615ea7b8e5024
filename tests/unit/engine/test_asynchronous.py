"""The asynchronous pacer: which sites are asked again, which are left alone, and when a job has enough."""

import pytest

from hansa.common.values.errors import Stale
from hansa.common.values.tasks import Task, Train
from tests.unit.engine.play import Play, endings, merges, sent


def started(*sites: str, updates: int = 20, least: int = 2) -> Play:
    play = Play(rule="async-fedavg", pace={"updates": updates}, sites={"min": least})
    play.training(*sites)
    return play


def task_of(play: Play, site: str) -> Task:
    return play.tasks(Train)[site]


def commit(play: Play, site: str) -> list[str]:
    """Let a site's update be merged; return the sites that get a task then."""
    play.update(task_of(play, site))
    return [task.site for task in sent(play.merged())]


def fail(play: Play, site: str, times: int = 1) -> list[list[str]]:
    """Let a site fail several times; return the sites that are asked each time."""
    return [[task.site for task in sent(play.fail(task_of(play, site)))] for _ in range(times)]


def test_a_site_gets_a_model_with_its_own_update_in_it_and_its_tasks_are_numbered() -> None:
    """The seed depends on a task's number: the same number would give the same order of examples."""
    play = started("a", "b")
    for number in (1, 2, 3):
        task = task_of(play, "a")
        assert isinstance(task.work, Train)
        assert (task.round, task.work.version) == (number, number - 1)
        assert commit(play, "a") == ["a"]
    slow = task_of(play, "b")
    assert isinstance(slow.work, Train)
    assert (slow.round, slow.work.version) == (1, 0)


def test_a_site_that_fails_three_times_in_a_row_is_left_alone_until_it_joins_again() -> None:
    play = started("a", "b")
    assert fail(play, "a", 3) == [["a"], ["a"], []]
    assert commit(play, "b") == ["b"]  # the others go on
    assert "a" not in play.tasks(Train)
    play.leave("a")
    assert [task.site for task in sent(play.join("a"))] == ["a"]
    assert fail(play, "a", 3) == [["a"], ["a"], []]  # its failures were forgiven


def test_an_update_ends_a_series_of_failures() -> None:
    play = started("a", "b")
    for _ in range(3):
        assert fail(play, "a", 2) == [["a"], ["a"]]
        assert commit(play, "a") == ["a"]


def test_a_refused_update_also_ends_a_series_of_failures_and_is_in_the_history_once() -> None:
    play = Play(rule="fedasync", pace={"updates": 20}, server={"max_staleness": 0})
    play.training("a", "b")
    for _ in range(2):
        assert fail(play, "b", 2) == [["b"], ["b"]]
        commit(play, "a")
        assert [task.site for task in sent(play.update(task_of(play, "b")))] == ["b"]
    commit(play, "a")
    commit(play, "a")
    lost = [list(record.lost) for record in play.machine.state.history]
    assert lost == [[], [], ["b"], ["b"], []]


def test_a_job_fails_when_every_connected_site_fails() -> None:
    play = started("a", "b")
    fail(play, "a", 3)
    fail(play, "b", 2)
    effects = play.fail(task_of(play, "b"), "no memory")
    assert endings(effects) == [("failed", "all sites failed 3 times in a row; a: out of memory")]


def test_a_job_does_not_fail_while_an_update_is_being_merged() -> None:
    play = started("a", "b")
    play.update(task_of(play, "b"))
    play.leave("b")
    assert fail(play, "a", 3) == [["a"], ["a"], []]
    assert not endings(play.merged())
    assert [task.site for task in sent(play.join("b"))] == ["b"]


def test_a_job_is_completed_when_it_has_the_number_of_updates_that_it_asks_for() -> None:
    play = started("a", "b", updates=3)
    assert commit(play, "a") == ["a"]
    play.update(task_of(play, "a"))
    late = task_of(play, "b")
    assert len(merges(play.merged())) == 0
    assert play.update(task_of(play, "a"))
    with pytest.raises(Stale, match="the job has its 3 updates"):
        play.update(late)
    assert endings(play.merged()) == [("completed", "all 3 updates are merged")]


def test_updates_that_waited_for_one_another_all_count() -> None:
    play = Play(rule="async-fedavg", pace={"updates": 4}, sites={"min": 3, "together": 3})
    for task in play.training("a", "b", "c").values():
        play.update(task)
    play.merged()
    play.update(task_of(play, "c"))
    assert endings(play.merged()) == [("completed", "all 4 updates are merged")]


def test_a_site_that_joined_while_its_update_was_merged_gets_one_task() -> None:
    play = started("a", "b")
    play.update(task_of(play, "a"))
    play.leave("a")
    play.join("a")
    play.merged()
    asked = [
        task
        for task in play.machine.state.tasks.values()
        if task.site == "a" and isinstance(task.work, Train)
    ]
    assert len(asked) == 1
