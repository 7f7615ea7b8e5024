"""The engine of a job, played by hand: its normal course, what it keeps, and how it is replayed."""

import math
from itertools import pairwise

import pytest

from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, SendTask, SetAlarm, StartOrder
from tests.unit.engine.play import Play, dropped, endings, machine_of, merges, sent, stale

# The normal course of a job.


def test_two_rounds_of_two_sites_with_an_evaluator_from_submission_to_the_end() -> None:
    play = Play(pace={"rounds": 2}, train={"epochs": 3, "batch_size": 8}, seed=7)
    assert play.first == [SetAlarm("gather", 60.0)]
    assert play.machine.state.status == "waiting"

    assert play.join("a") == []
    assert play.join("a", role="evaluator") == []
    (init,) = sent(play.join("b"))
    assert (init.site, init.round, init.seed, init.work) == ("a", 0, 7, Init())
    assert play.picture()[0]["status"] == "running"
    assert play.machine.state.alarms == {"first-model": 60.0}

    first = sent(play.update(init))
    assert play.machine.state.alarms == {}
    assert [task.site for task in first] == ["a", "b"]
    for task in first:
        assert isinstance(task.work, Train)
        assert (task.round, task.work.version, task.work.model) == (1, 0, "j1/u1")
        assert (task.work.epochs, task.work.batch_size) == (3, 8)

    assert play.update(first[1], n_train=30) == []
    (merge,) = merges(play.update(first[0], n_train=10))
    assert (merge.version, merge.current) == (1, "j1/u1")
    assert [(part.site, part.model, part.weight) for part in merge.added] == [
        ("a", "j1/u2", 10.0),
        ("b", "j1/u3", 30.0),
    ]

    effects = play.merged()
    assert dropped(effects) == {"j1/u1"}
    evaluation, *second = sent(effects)
    assert evaluation.work == Evaluate(model="j1/v1", version=1)
    assert [(task.site, task.round) for task in second] == [("a", 2), ("b", 2)]
    assert play.report(evaluation, right=8) == []
    assert play.machine.metrics(play.machine.state.history[-1])["accuracy"] == 0.8

    play.update(second[0])
    play.update(second[1])
    (last,) = sent(play.merged())
    assert isinstance(last.work, Evaluate)
    assert last.work.version == 2
    assert play.machine.state.phase == "closing"
    effects = play.report(last, right=9)
    assert endings(effects) == [("completed", "all 2 rounds are done")]

    state = play.machine.state
    assert (state.status, state.version, state.current, state.tasks) == ("completed", 2, "j1/v2", {})
    assert [record.version for record in state.history] == [0, 1, 2]
    assert state.history[1].contributions == {"a": 10.0, "b": 30.0}
    assert (state.history[1].bytes_up, state.history[1].bytes_down) == (5, 7)
    assert state.models == {"j1/v2", "j1/u5", "j1/u6"}


def test_a_job_that_comes_with_a_model_starts_with_the_first_round() -> None:
    play = Play()
    play.do(ev.ModelGiven(at=0, digest="given"))
    play.join("a")
    tasks = sent(play.join("b"))
    assert [task.site for task in tasks] == ["a", "b"]
    assert all(isinstance(task.work, Train) and task.work.model == "j1/v0" for task in tasks)


def test_without_evaluators_a_job_ends_with_its_last_merge() -> None:
    play = Play(pace={"rounds": 1})
    play.training("a", "b")
    play.round()
    assert play.machine.state.status == "completed"


def test_only_every_nth_version_is_evaluated_and_always_the_last() -> None:
    play = Play(pace={"rounds": 5}, evaluate={"every": 2})
    play.join("a", role="evaluator")
    play.training("a", "b")
    seen: list[int] = []
    while not play.machine.ended:
        play.round()
        for task in list(play.tasks(Evaluate).values()):
            assert isinstance(task.work, Evaluate)
            seen.append(task.work.version)
            play.report(task)
    assert seen == [2, 4, 5]


def test_evaluation_does_not_hold_up_training_and_a_slow_evaluator_skips_versions() -> None:
    play = Play(pace={"rounds": 6})
    play.join("a", role="evaluator")
    play.training("a", "b")
    for _ in range(5):
        play.round()
    asked = [t.work.version for t in play.machine.state.tasks.values() if isinstance(t.work, Evaluate)]
    assert asked == [1]
    play.round()
    asked = [t.work.version for t in play.machine.state.tasks.values() if isinstance(t.work, Evaluate)]
    assert asked == [1, 6]
    assert play.machine.state.phase == "closing"


def test_a_site_that_joins_during_a_round_takes_part_from_the_next_one() -> None:
    play = Play()
    tasks = play.training("a", "b")
    assert play.join("c") == []
    for task in tasks.values():
        play.update(task)
    assert [task.site for task in sent(play.merged())] == ["a", "b", "c"]


def test_a_site_without_examples_is_neither_counted_nor_asked() -> None:
    play = Play()
    play.join("a")
    assert play.join("empty", examples=0) == []
    assert play.machine.state.phase == "gathering"
    play.join("b")
    play.update(play.tasks(Init)["a"])
    assert set(play.tasks(Train)) == {"a", "b"}


def test_a_known_site_that_joins_again_is_stale() -> None:
    play = Play()
    play.join("a")
    play.join("a", role="evaluator")
    stale(play, lambda: play.join("a"))
    stale(play, lambda: play.join("a", role="evaluator"))
    stale(play, lambda: play.leave("z"))
    stale(play, lambda: play.leave("z", role="evaluator"))


# Retention of models.


def test_the_model_of_an_open_evaluation_is_kept_until_the_report_arrives() -> None:
    play = Play(keep={"best": None})
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    slow = play.tasks(Evaluate)["a"]
    play.round()
    play.round()
    assert "j1/v1" not in dropped(play.effects)
    assert "j1/v1" in play.machine.state.models
    assert "j1/v1" in dropped(play.report(slow))


def test_the_contributions_of_the_last_merge_stay_and_older_ones_go() -> None:
    play = Play()
    play.training("a", "b")
    play.round()
    first = {part.model for part in merges(play.effects)[-1].added}
    assert not first & dropped(play.effects)
    play.round()
    second = {part.model for part in merges(play.effects)[-1].added}
    assert first <= dropped(play.effects)
    assert not second & dropped(play.effects)
    assert play.machine.state.models == {"j1/v2", *second}


def test_updates_that_no_merge_took_go_when_the_job_ends() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    assert dropped(play.cancel()) == {"j1/u2"}
    assert play.machine.state.models == {"j1/u1"}


# Replay.


def test_a_resumed_job_goes_on_with_what_was_in_progress() -> None:
    play = Play(pace={"deadline": 30})
    play.join("a", role="evaluator")
    tasks = play.training("a", "b")
    assert play.machine.resume() == [SetAlarm("round-1-1", 30.0), SendTask(tasks["a"]), SendTask(tasks["b"])]
    play.update(tasks["a"])
    assert play.machine.resume() == [SetAlarm("round-1-1", 30.0), SendTask(tasks["b"])]
    (merge,) = merges(play.update(tasks["b"]))
    assert play.machine.resume() == [SetAlarm("round-1-1", 30.0), StartOrder(1, merge)]


def test_the_sequence_counts_accepted_events_only() -> None:
    play = Play()
    tasks = play.training("a", "b")
    assert play.machine.state.sequence == len(play.accepted) == 3
    play.update(tasks["a"])
    with pytest.raises(Stale):
        play.update(tasks["a"])
    assert play.machine.state.sequence == 4
    assert play.machine.state.receipts[SiteName("a")].sequence == 4


@pytest.mark.parametrize("loss", [0.25, math.nan, math.inf, -math.inf])
def test_events_survive_json_with_any_loss(loss: float) -> None:
    facts = UpdateFacts(n_train=1, n_used=1, steps=1, epochs=0.5, seconds=0.1, loss=loss)
    event = ev.UpdateArrived(
        at=1.5, task=TaskId("j1-2"), site=SiteName("a"), facts=facts, digest="d", tensors=3
    )
    back = ev.EVENT.validate_json(event.model_dump_json())
    assert isinstance(back, ev.UpdateArrived)
    assert back.facts.loss == loss or (math.isnan(loss) and math.isnan(back.facts.loss))
    assert back.model_copy(update={"facts": facts}) == event


def test_a_replayed_job_is_the_same_job() -> None:
    play = Play(pace={"deadline": 30, "rounds": 3}, sample={"kind": "uniform", "fraction": 0.7})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    play.join("c")
    play.round()
    play.report(play.tasks(Evaluate)["a"])
    play.leave("c")
    task = next(iter(play.tasks(Train).values()))
    play.update(task, loss=math.nan)
    again = machine_of(play.spec)
    again.start()
    for event in play.accepted:
        again.handle(ev.EVENT.validate_json(event.model_dump_json()))
    assert again.state.model_dump() == play.machine.state.model_dump()
    assert again.resume() == play.machine.resume()


def test_updates_are_committed_one_by_one_in_the_order_in_which_they_arrive() -> None:
    play = Play(rule="async-fedavg", pace={"updates": 20}, sites={"min": 4})
    tasks = play.training("a", "b", "c", "d")
    (first,) = merges(play.update(tasks["c"]))
    for site in "adb":
        assert merges(play.update(tasks[site])) == []  # the first is in progress
    committed = [first]
    while len(committed) < 4:
        committed += merges(play.merged())
    assert [member.site for merge in committed for member in merge.added] == ["c", "a", "d", "b"]
    assert [merge.version for merge in committed] == [1, 2, 3, 4]
    assert [merge.current for merge in committed] == ["j1/u1", "j1/v1", "j1/v2", "j1/v3"]


def test_every_commit_gives_a_receipt_and_receipts_are_a_chain() -> None:
    """A receipt shows whether any receipt before it was changed."""
    play = Play(rule="async-fedavg", pace={"updates": 6})
    receipts: list[Receipt] = []
    happen = play.do

    def note(event: ev.Event) -> list[Effect]:
        effects = happen(event)
        receipts.extend([play.machine.issued] if play.machine.issued else [])
        return effects

    play.do = note  # type: ignore[method-assign]
    play.training("a", "b")
    while not play.machine.ended:
        for task in play.tasks(Train).values():
            if not play.machine.state.merging:
                play.update(task)
                play.merged()
    # Version 0, then updates and versions in turn.
    assert [bool(receipt.task) for receipt in receipts] == [True] + [True, False] * 6
    assert receipts[0].previous == ""
    for before, after in pairwise(receipts):
        assert after.previous == before.hash == before.sealed().hash
        assert after.sequence > before.sequence
    assert play.machine.state.chain == receipts[-1].hash
    changed = {
        "job": "j2",
        "sequence": 99,
        "task": "t",
        "site": "z",
        "version": 9,
        "contributions": {"t": 1.0},
    }
    changed |= {"digest": "x", "decoded": "x", "moments": {"m": "x"}, "previous": "x"}
    assert set(changed) == set(Receipt.model_fields) - {"hash"}
    for field, value in changed.items():
        assert receipts[3].model_copy(update={field: value}).sealed().hash != receipts[3].hash, field
