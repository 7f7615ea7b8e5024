"""Every training task says which of its site's updates was accepted last."""

import pytest

from hansa.common.values.tasks import Task, Train
from tests.unit.engine.play import Play


def after(task: Task) -> str:
    """Return which update a task says was accepted last."""
    assert isinstance(task.work, Train)
    return task.work.after


def test_the_first_task_names_none_and_the_next_ones_the_last_update() -> None:
    """The model that a site has built is not an update: nothing was trained for it."""
    play = Play()
    first = play.training("a", "b")
    assert {site: after(task) for site, task in first.items()} == {"a": "", "b": ""}
    play.round()
    assert {site: after(task) for site, task in play.tasks(Train).items()} == {
        site: task.id for site, task in first.items()
    }
    assert play.again().state == play.machine.state


def test_an_update_that_did_not_come_is_not_named() -> None:
    play = Play(pace={"rounds": 3})
    first = play.training("a", "b")
    play.fail(first["b"])
    play.update(first["a"])
    play.merged()
    tasks = play.tasks(Train)
    assert (after(tasks["a"]), after(tasks["b"])) == (first["a"].id, "")


def test_without_rounds_the_next_task_names_the_update_that_it_answers() -> None:
    play = Play(rule="async-fedavg", pace={"updates": 20})
    task = play.training("a", "b")["a"]
    for _ in range(3):
        play.update(task)
        play.merged()
        answer = play.tasks(Train)["a"]
        assert after(answer) == task.id
        task = answer


@pytest.mark.parametrize("limit", [0, 2])
def test_an_update_that_is_too_stale_has_a_receipt_and_is_named(limit: int) -> None:
    play = Play(rule="fedasync", pace={"updates": 50}, server={"max_staleness": limit})
    slow = play.training("a", "b")["b"]
    for _ in range(limit + 1):
        play.update(play.tasks(Train)["a"])
        play.merged()
    play.update(slow)
    assert after(play.tasks(Train)["b"]) == slow.id


def test_a_site_that_comes_back_is_told_what_it_sent_before() -> None:
    play = Play()
    first = play.training("a", "b", "c")
    play.round()
    play.leave("c")
    for site in "ab":
        play.update(play.tasks(Train)[site])
    play.join("c")
    play.merged()
    assert first["c"].id != after(play.tasks(Train)["a"])
    assert after(play.tasks(Train)["c"]) == first["c"].id
