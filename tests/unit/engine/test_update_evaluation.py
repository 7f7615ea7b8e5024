"""Updates that other sites evaluate before they are weighed, and plugins with a memory."""

from dataclasses import replace
from typing import Any

import pytest

from hansa.common.values.errors import HansaError, Stale
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine.effects import Effect, SendTask, SetAlarm
from hansa.controller.engine.machine import Machine
from hansa.controller.plugin.parts import EvalRequest
from tests.unit.engine.evaluated_updates import Alternate, Evaluated, Phases, Scores, Turns
from tests.unit.engine.play import JOB, Play, endings, merges, sent, withdrawn


def _play(*evaluators: str, **fields: object) -> Play:
    """Return a job of two learners whose updates are evaluated by these evaluators."""
    play = Play(
        **{"rule": "async-fedavg", "weigh": {"kind": "evaluated"}, "evaluate": {"every": 1000}, **fields}
    )
    play.join(*evaluators, role="evaluator")
    play.training("a", "b")
    return play


def _weights(play: Play) -> dict[str, float]:
    assert play.machine.state.plan is not None
    return {member.site: member.weight for member in play.machine.state.plan.added}


def _evaluations(play: Play, task: Task) -> dict[str, Task]:
    """Let an update arrive and return the evaluations of it that were asked for, by evaluator."""
    return _by_site(play.update(task))


def _by_site(effects: list[Effect]) -> dict[str, Task]:
    return {task.site: task for task in sent(effects)}


def _plain(value: Any) -> Any:
    """Return a value that can be compared: sets are sorted, and NaN equals NaN."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(each) for each in value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return repr(value)


def _restart(play: Play) -> None:
    """Save a snapshot and go on from it, without losing anything."""
    play.save()
    again = play.again()
    assert _plain(again.state.model_dump()) == _plain(play.machine.state.model_dump())
    for point, memory in play.machine.memories.items():
        assert _plain(again.memories[point].model_dump()) == _plain(memory.model_dump())
    assert again.resume() == play.machine.resume()
    play.machine = again


def test_an_update_is_evaluated_by_all_others_before_it_is_merged_and_weighs_what_they_find() -> None:
    play = _play("a", "b", "c")
    task = play.tasks(Train)["a"]
    asked = _evaluations(play, task)
    assert set(asked) == {"b", "c"}
    assert all(
        evaluation.work == Evaluate(model="j1/u2", version=0, validation=True)
        for evaluation in asked.values()
    )
    assert play.machine.state.plan is None
    assert play.report(asked["b"], right=9, n=10) == []
    assert merges(play.report(asked["c"], right=6, n=10))
    assert _weights(play) == {"a": 0.75}
    effects = play.merged()
    assert play.machine.state.history[-1].contributions == {"a": 0.75}
    assert [task.site for task in sent(effects)] == ["a"]
    assert play.machine.memories["weigh"] == Scores(last={SiteName("a"): 0.75}, asked=1)
    assert play.machine.state.updates == {}


@pytest.mark.parametrize("odd", [None, ["b"], [EvalRequest(SiteName("b"), float("nan"))]])
def test_a_weigher_that_returns_invalid_requests_is_named(
    monkeypatch: pytest.MonkeyPatch, odd: object
) -> None:
    play = _play("b")
    monkeypatch.setattr(Evaluated, "requests", lambda *_: odd)
    with pytest.raises(
        HansaError,
        match=r"weigh 'evaluated': it returned .*, which is not a list of requests for evaluations",
    ):
        play.update(play.tasks(Train)["a"])


def test_a_policy_that_does_not_return_a_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alternate, "shape", lambda *_: None)
    with pytest.raises(HansaError, match="local 'alternate': it returned None, which is not a training"):
        _play(local={"kind": "alternate"})


def test_updates_are_evaluated_at_once_and_merged_in_the_order_in_which_that_is_done() -> None:
    play = _play("a", "b", "c")
    tasks = play.tasks(Train)
    first, second = _evaluations(play, tasks["a"]), _evaluations(play, tasks["b"])
    for task in second.values():
        play.report(task)
    assert list(_weights(play)) == ["b"]
    for task in first.values():
        assert merges(play.report(task)) == []
    assert list(_weights(play)) == ["b"]
    assert [member.site for member in merges(play.merged())[0].added] == ["a"]


@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_an_evaluator_that_is_lost_is_not_waited_for(how: str) -> None:
    play = _play("b", "c")
    asked = _evaluations(play, play.tasks(Train)["a"])
    play.report(asked["b"], right=4, n=10)
    effects = play.fail(asked["c"]) if how == "fails" else play.leave("c", role="evaluator")
    assert merges(effects)
    assert _weights(play) == {"a": 0.4}
    (contribution,) = play.machine.state.queue[0].contributions
    assert dict(contribution.unevaluated) == {"c": "out of memory" if how == "fails" else "the site left"}


def test_evaluators_that_are_too_slow_are_not_waited_for_and_their_reports_are_stale() -> None:
    play = _play("b", "c", "d", weigh={"kind": "evaluated", "seconds": 7})
    task = play.tasks(Train)["a"]
    play.now = 10.0
    effects = play.update(task)
    alarm = f"update-{task.id}"
    assert SetAlarm(alarm, 17.0) in effects
    asked = _by_site(effects)
    play.report(asked["c"], right=2, n=10)
    effects = play.ring(alarm)
    assert withdrawn(effects) == [asked["b"].id, asked["d"].id]
    assert merges(effects)
    assert _weights(play) == {"a": 0.2}
    for late in ("b", "d"):
        with pytest.raises(Stale):
            play.report(asked[late])
    with pytest.raises(Stale):
        play.ring(alarm)


def test_of_several_requests_the_longest_wait_holds_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    play = _play("b", "c")
    waits = [EvalRequest(SiteName("b"), 9.0), EvalRequest(SiteName("c"), 2.0)]
    monkeypatch.setattr(Evaluated, "requests", lambda *_: waits)
    task = play.tasks(Train)["a"]
    assert SetAlarm(f"update-{task.id}", play.now + 9.0) in play.update(task)


def test_a_merge_waits_for_all_evaluations_of_an_evaluator_that_was_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = _play("b")
    monkeypatch.setattr(Evaluated, "requests", lambda *_: 2 * [EvalRequest(SiteName("b"), 9.0)])
    first, second, _alarm = play.update(play.tasks(Train)["a"])
    assert isinstance(first, SendTask)
    assert isinstance(second, SendTask)
    assert not merges(play.report(first.task, right=2, n=10))
    _restart(play)
    assert merges(play.report(second.task, right=4, n=10))
    assert _weights(play) == {"a": 0.4}


def test_an_evaluator_that_leaves_with_several_tasks_is_missed_in_updates_before_the_job_closes() -> None:
    target = {"target": {"metric": "accuracy", "value": 0.5}}
    play = _play("b", "c", evaluate={"every": 1, "min_coverage": 0.4}, stop=target)
    for task in _evaluations(play, play.tasks(Train)["a"]).values():
        play.report(task)
    version_1 = _by_site([e for e in play.merged() if isinstance(e, SendTask) and e.task.site != "a"])
    second = _evaluations(play, play.tasks(Train)["a"])
    play.report(version_1["b"], right=10)
    play.report(second["b"])
    assert [task.site for task in play.machine.tasks_of(SiteName("c"))] == ["c", "c"]
    effects = play.leave("c", role="evaluator")
    assert merges(effects), "the update that waits for no other evaluator is weighed"
    assert "target reached" in play.machine.state.reason
    assert play.machine.ended
    assert not play.machine.state.orders


def test_the_alarm_of_an_update_is_off_when_all_have_reported() -> None:
    play = _play("b")
    play.report(_evaluations(play, play.tasks(Train)["a"])["b"])
    assert play.machine.state.alarms == {}


@pytest.mark.parametrize("how", ["no evaluator", "only absent ones"])
def test_without_any_evaluator_an_update_is_weighed_at_once(how: str) -> None:
    play = _play(weigh={"kind": "evaluated", "absent": how == "only absent ones"})
    assert merges(play.update(play.tasks(Train)["a"]))
    assert _weights(play) == {"a": 1.0}
    (contribution,) = play.machine.state.queue[0].contributions
    absent = {"nobody": "no evaluator of the site is connected"} if how == "only absent ones" else {}
    assert dict(contribution.unevaluated) == absent


def test_a_round_is_evaluated_while_others_still_train_and_merged_when_the_last_evaluation_is_done() -> None:
    play = _play("a", "b", rule="fedavg", pace={"rounds": 1})
    tasks = play.tasks(Train)
    first = _evaluations(play, tasks["a"])
    assert set(first) == {"b"}
    second = _evaluations(play, tasks["b"])
    assert set(second) == {"a"}
    assert play.report(second["a"], right=5, n=10) == []
    (merge,) = merges(play.report(first["b"], right=10, n=10))
    assert {member.site: member.weight for member in merge.added} == {"a": 1.0, "b": 0.5}
    play.merged()
    assert play.machine.memories["weigh"] == Scores(last={SiteName("a"): 1.0, SiteName("b"): 0.5}, asked=2)


def test_evaluations_of_updates_do_not_keep_an_evaluator_from_evaluating_community_models() -> None:
    play = _play("b", evaluate={"every": 1})
    asked = _evaluations(play, play.tasks(Train)["a"])
    _evaluations(play, play.tasks(Train)["b"])  # by no site: b does not evaluate its own update
    (first,) = [task for task in sent(play.merged()) if isinstance(task.work, Evaluate)]
    assert isinstance(first.work, Evaluate)
    assert first.work.version == 1
    play.report(asked["b"], n=7)
    assert play.machine.state.evaluator_examples == {"b": None}, "an update is evaluated on other examples"
    play.merged()
    (second,) = [task for task in sent(play.report(first)) if isinstance(task.work, Evaluate)]
    assert isinstance(second.work, Evaluate)
    assert second.work.version == 2


def test_a_job_whose_learners_all_left_waits_for_its_evaluations_not_for_them() -> None:
    play = _play("c", pace={"updates": 1})
    asked = _evaluations(play, play.tasks(Train)["a"])
    play.leave("a")
    play.leave("b")
    assert "gather" not in play.machine.state.alarms
    play.report(asked["c"])
    assert endings(play.merged()) or play.machine.state.phase == "closing"


@pytest.mark.parametrize("how", ["cancel", "time"])
def test_an_ending_withdraws_evaluations_of_updates(how: str) -> None:
    play = _play("c", stop={"seconds": 100})
    asked = _evaluations(play, play.tasks(Train)["a"])
    effects = play.cancel() if how == "cancel" else play.ring("time")
    assert asked["c"].id in withdrawn(effects)
    state = play.machine.state
    assert (state.updates, state.subjects, state.preparing) == ({}, {}, {})
    assert state.status == ("cancelled" if how == "cancel" else "completed")


def test_an_evaluation_of_an_update_survives_a_restart_at_any_moment() -> None:
    play = _play("b", "c")
    asked = _evaluations(play, play.tasks(Train)["a"])
    _restart(play)
    play.report(asked["b"], right=9, n=10)
    _restart(play)
    assert merges(play.report(asked["c"], right=6, n=10))
    _restart(play)
    assert _weights(play) == {"a": 0.75}
    play.merged()
    _restart(play)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_snapshot_keeps_losses_that_are_not_finite(loss: float) -> None:
    play = Play(rule="fedavg", weigh={"kind": "evaluated"})
    play.join("b", "c", role="evaluator")
    tasks = play.training("a", "b")
    asked = _by_site(play.update(tasks["a"], loss=loss))
    play.report(asked["b"], loss=loss)
    _restart(play)
    for evaluation in [asked["c"], *sent(play.update(tasks["b"]))]:
        play.report(evaluation)
    play.merged()
    for evaluation in play.tasks(Evaluate).values():
        play.report(evaluation, loss=loss)
    assert play.machine.metrics(play.machine.state.history[-1])["loss"] is None
    _restart(play)


def test_a_site_that_left_while_its_update_was_evaluated_is_forgotten_if_the_rule_says_so() -> None:
    play = _play("c", merge={"kind": "incremental", "drop_on_leave": True})
    asked = _evaluations(play, play.tasks(Train)["a"])
    play.leave("a")
    play.report(asked["c"])
    (merge,) = merges(play.merged())
    assert ([member.site for member in merge.removed], merge.added) == (["a"], ())
    play.merged()
    assert play.machine.state.members == {}


def test_a_sampler_observes_every_update_and_keeps_its_memory() -> None:
    play = Play(rule="fedavg", sample={"kind": "patient"}, sites={"min": 3})
    assert set(play.training("a", "b", "c")) == {"a", "b"}
    play.round()
    assert set(play.tasks(Train)) == {"a", "c"}
    _restart(play)
    play.round()
    assert set(play.tasks(Train)) == {"b", "c"}
    assert play.machine.memories["sample"] == Turns(seen={"a": 2, "b": 1, "c": 1})


def test_a_policy_shapes_tasks_and_remembers_over_merges_and_restarts() -> None:
    play = Play(rule="fedavg")
    rule = replace(play.machine.rule, local=Alternate())
    play.machine = Machine(JOB, play.spec, rule, 0.0)
    play.machine.start()
    tensors = []
    play.training("a", "b")
    for _ in range(3):
        tensors.append(
            {task.work.tensors for task in play.tasks(Train).values() if isinstance(task.work, Train)}
        )
        play.round()
    assert tensors == [{()}, {("head",)}, {()}]
    play.save()
    again = play.again(Machine(JOB, play.spec, rule, 0.0))
    assert again.memories["local"] == Phases(merges=3)
    assert again.state == play.machine.state


def test_a_replayed_job_whose_updates_are_evaluated_is_the_same_job() -> None:
    play = _play("b", "c", "d")
    task = play.tasks(Train)["a"]
    asked = _evaluations(play, task)
    play.report(asked["c"])
    play.leave("d", role="evaluator")
    play.ring(f"update-{task.id}")
    play.merged()
    again = play.again()
    assert again.state == play.machine.state
    assert again.memories == play.machine.memories
    assert again.resume() == play.machine.resume()
