"""The semi-synchronous pacer: rounds of equal length."""

import pytest

from hansa.common.values.bounds import ASKED
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine import events as ev
from tests.unit.engine.play import Play


def test_semi_synchronous_steps_follow_what_was_measured_in_the_round_before() -> None:
    play = Play(rule="semisync-fedavg", pace={"rounds": 5, "lambda": 2.0})

    def round_of(**measured: tuple[int, float, float]) -> dict[str, int]:
        """Send updates with these steps, epochs and seconds; return the steps of the next tasks."""
        for site, (steps, epochs, seconds) in measured.items():
            task = play.tasks(Train)[site]
            facts = UpdateFacts(n_train=10, n_used=10, steps=steps, epochs=epochs, seconds=seconds)
            arrived = ev.UpdateArrived(
                at=play.now, task=task.id, site=task.site, facts=facts, digest="d", tensors=2
            )
            play.do(arrived)
        play.merged()
        works = {task.site: task.work for task in play.tasks(Train).values()}
        return {site: work.steps for site, work in works.items() if isinstance(work, Train)}

    tasks = play.training("fast", "slow")
    # No steps: the first round has the job's epochs.
    assert [task.work.steps for task in tasks.values() if isinstance(task.work, Train)] == [0, 0]
    # An epoch of the slow site takes 10 s, so a round takes 20 s.
    assert round_of(fast=(10, 1, 1.0), slow=(40, 1, 10.0)) == {"fast": 200, "slow": 80}
    # It has become faster: 4 s for an epoch.
    assert round_of(fast=(200, 20, 20.0), slow=(80, 2, 8.0)) == {"fast": 80, "slow": 80}
    # The other is the slow one now: 5 s for an epoch.
    assert round_of(fast=(80, 8, 40.0), slow=(80, 2, 8.0)) == {"fast": 20, "slow": 100}


def timed(play: Play, task: Task, steps: int, seconds: float) -> None:
    """Send an update of one epoch with these steps and seconds."""
    facts = UpdateFacts(n_train=10, n_used=10, steps=steps, epochs=1, seconds=seconds)
    play.do(ev.UpdateArrived(at=play.now, task=task.id, site=task.site, facts=facts, digest="d", tensors=2))


def steps_of(play: Play) -> dict[str, int]:
    return {site: task.work.steps for site, task in play.tasks(Train).items() if isinstance(task.work, Train)}


def test_a_round_that_is_shorter_than_a_step_has_one_step() -> None:
    """Zero steps would mean the job's epochs."""
    play = Play(rule="semisync-fedavg", pace={"rounds": 2, "lambda": 0.001})
    for task in play.training("a", "b").values():
        timed(play, task, 10, 5.0)
    play.merged()
    assert steps_of(play) == {"a": 1, "b": 1}


def test_sites_that_measure_absurd_times_get_steps_that_a_task_can_have() -> None:
    play = Play(rule="semisync-fedavg", pace={"rounds": 2}, sites={"min": 4})
    tasks = play.training("idle", "instant", "slow", "usual")
    timed(play, tasks["idle"], 0, 0.0)  # it had nothing to train on
    timed(play, tasks["instant"], 10, 0.0)
    timed(play, tasks["slow"], 1, 1e9)
    timed(play, tasks["usual"], 100, 1.0)
    play.merged()
    assert steps_of(play) == {"idle": 0, "instant": ASKED, "slow": 1, "usual": ASKED}


def test_what_a_site_says_of_its_speed_survives_a_snapshot_however_absurd_it_is() -> None:
    play = Play(rule="semisync-fedavg", pace={"rounds": 2})
    facts = UpdateFacts(n_train=10, n_used=10, steps=1, epochs=5e-324, seconds=1e9, loss=1.0)
    for task in play.training("a", "b").values():
        arrived = ev.UpdateArrived(
            at=play.now, task=task.id, site=task.site, facts=facts, digest="d", tensors=2
        )
        play.do(arrived)
    play.save()
    assert play.again().memories["pace"] == play.machine.memories["pace"]
    play.merged()
    assert steps_of(play) == {"a": 1, "b": 1}


def test_a_slow_site_that_is_gone_does_not_set_the_length_of_rounds() -> None:
    play = Play(rule="semisync-fedavg", pace={"rounds": 2})
    seconds = {"a": 1.0, "b": 2.0, "slow": 100.0}
    for site, task in play.training(*seconds).items():
        timed(play, task, 10, seconds[site])
    play.leave("slow")
    play.merged()
    assert steps_of(play) == {"a": 20, "b": 10}


@pytest.mark.parametrize("steps", [1, 7, 49, 63, 100])
def test_the_slowest_site_goes_on_with_the_steps_of_an_epoch_however_quotients_are_rounded(
    steps: int,
) -> None:
    """With λ = 1 it makes an epoch per round, though t / (t / 49) may be less than 49 in floating point."""
    for seconds in (0.7, 3.1, 7.3, 11.9, 29.3, 57.7, 91.1):
        play = Play(rule="semisync-fedavg", pace={"rounds": 2})
        for task in play.training("a", "b").values():
            timed(play, task, steps, seconds)
        play.merged()
        assert steps_of(play) == {"a": steps, "b": steps}, seconds
