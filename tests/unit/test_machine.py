"""The engine of a job, told by hand: what it asks, when it merges, how it ends."""

import math
from collections.abc import Callable

import pytest

from hansa.common.errors import Stale
from hansa.common.ids import SiteName, TaskId
from hansa.common.tasks import Evaluate, Init, Train, UpdateFacts
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import SendTask, SetAlarm, StartMerge
from tests.unit.play import Play, dropped, endings, machine_of, plans, sent, withdrawn


def _stale(play: Play, happen: Callable[[], object]) -> None:
    """Check that something is refused as stale and leaves no trace."""
    before = play.picture()
    with pytest.raises(Stale):
        happen()
    assert play.picture() == before


# The plain course of a job.


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
    (plan,) = plans(play.update(first[0], n_train=10))
    assert (plan.version, plan.current) == (1, "j1/u1")
    assert [(part.site, part.model, part.weight) for part in plan.added] == [
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


def test_a_job_that_brings_its_model_starts_with_the_first_round() -> None:
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
    assert asked == [1, 2]
    play.round()
    asked = [t.work.version for t in play.machine.state.tasks.values() if isinstance(t.work, Evaluate)]
    assert asked == [1, 2, 6]
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
    _stale(play, lambda: play.join("a"))
    _stale(play, lambda: play.join("a", role="evaluator"))
    _stale(play, lambda: play.leave("z"))
    _stale(play, lambda: play.leave("z", role="evaluator"))


# Deadlines and quorum.


def test_at_the_deadline_a_round_with_a_quorum_is_merged_without_the_late() -> None:
    play = Play(pace={"deadline": 30, "quorum": 0.5})
    tasks = play.training("a", "b")
    assert play.machine.state.alarms == {"round-1-1": 30.0}
    play.update(tasks["a"])
    effects = play.ring("round-1-1")
    assert withdrawn(effects) == [tasks["b"].id]
    assert [part.site for part in plans(effects)[0].added] == ["a"]
    play.merged()
    assert play.machine.state.history[-1].lost == {"b": "late: no update by the deadline of 30 s"}


@pytest.mark.parametrize(
    ("quorum", "answers", "closes"), [(0.5, 1, False), (0.5, 2, True), (2, 1, False), (2, 2, True)]
)
def test_a_quorum_is_a_share_or_a_number(quorum: float, answers: int, closes: bool) -> None:
    play = Play(pace={"deadline": 30, "quorum": quorum})
    tasks = play.training("a", "b", "c")
    if len(tasks) == 2:  # c joined after the round had begun
        play.round()
        tasks = play.tasks(Train)
    for site in ["a", "b"][:answers]:
        play.update(tasks[site])
    assert bool(plans(play.ring(f"round-{play.machine.state.round}-1"))) is closes


def test_below_quorum_the_late_get_one_more_deadline_and_then_what_is_there_is_merged() -> None:
    play = Play(pace={"deadline": 30, "quorum": 1.0})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    effects = play.ring("round-1-1")
    assert effects == [SetAlarm("round-1-2", 60.0)]
    assert set(play.tasks(Train)) == {"b"}
    effects = play.ring("round-1-2")
    assert withdrawn(effects) == [tasks["b"].id]
    assert [part.site for part in plans(effects)[0].added] == ["a"]


def test_a_late_site_that_answers_within_the_second_deadline_counts() -> None:
    play = Play(pace={"deadline": 30, "quorum": 1.0})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.ring("round-1-1")
    (plan,) = plans(play.update(tasks["b"]))
    assert [part.site for part in plan.added] == ["a", "b"]
    assert play.ring("round-1-2") == []  # merging already


def test_a_round_without_any_answer_makes_a_version_without_contributions() -> None:
    play = Play(pace={"deadline": 30, "rounds": 2})
    play.training("a", "b")
    play.ring("round-1-1")
    (plan,) = plans(play.ring("round-1-2"))
    assert plan.added == ()
    assert [task.site for task in sent(play.merged())] == ["a", "b"]
    assert set(play.machine.state.history[-1].lost) == {"a", "b"}


def test_the_alarm_of_an_old_round_does_nothing() -> None:
    play = Play(pace={"deadline": 30})
    play.training("a", "b")
    play.round()
    assert play.machine.state.round == 2
    assert play.ring("round-1-1") == []
    assert set(play.tasks(Train)) == {"a", "b"}


def test_an_alarm_that_was_never_set_or_has_rung_is_stale() -> None:
    play = Play(pace={"deadline": 30})
    play.training("a", "b")
    _stale(play, lambda: play.ring("gather"))
    play.ring("round-1-1")
    _stale(play, lambda: play.ring("round-1-1"))


def test_an_alarm_that_rings_for_an_earlier_setting_of_it_is_stale() -> None:
    play = Play(sites={"min": 2, "wait": 60})  # the first alarm is set for 60 and goes off when the sites have gathered
    play.training("a", "b")
    play.now = 50.0
    play.leave("a")
    play.leave("b")
    assert play.machine.state.alarms == {"gather": 110.0}
    _stale(play, lambda: play.ring("gather", at=60.0))


# Sites that are lost.


def test_a_round_goes_on_without_a_site_that_left_if_the_others_make_a_quorum() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    effects = play.leave("b")
    assert withdrawn(effects) == [tasks["b"].id]
    assert [part.site for part in plans(effects)[0].added] == ["a"]
    play.merged()
    assert play.machine.state.history[-1].lost == {"b": "the site left"}


def test_a_site_that_leaves_while_others_work_keeps_its_task_and_may_answer_when_it_is_back() -> None:
    play = Play(pace={"quorum": 1.0})
    tasks = play.training("a", "b")
    assert play.leave("b") == []
    assert play.tasks(Train) == tasks
    assert SendTask(tasks["b"]) in play.machine.resume()
    play.join("b")
    play.update(tasks["a"])
    (plan,) = plans(play.update(tasks["b"]))
    assert [part.site for part in plan.added] == ["a", "b"]
    play.merged()
    assert play.machine.state.history[-1].lost == {}


def test_a_site_that_left_and_is_back_is_waited_for_again() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.leave("b")
    play.join("b")
    assert play.update(tasks["a"]) == []
    assert play.machine.state.plan is None


def test_an_update_counts_even_if_its_site_is_away() -> None:
    play = Play(pace={"quorum": 1.0})
    tasks = play.training("a", "b")
    play.leave("b")
    play.update(tasks["b"])
    assert plans(play.update(tasks["a"]))


def test_a_round_that_was_closed_while_a_site_was_away_does_not_want_its_update() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.leave("b")
    _stale(play, lambda: play.update(tasks["b"]))
    play.merged()
    _stale(play, lambda: play.update(tasks["b"]))


def test_a_failed_task_is_lost_and_the_others_are_merged() -> None:
    play = Play()
    tasks = play.training("a", "b")
    assert play.fail(tasks["a"]) == []
    (plan,) = plans(play.update(tasks["b"]))
    assert [part.site for part in plan.added] == ["b"]
    assert set(play.tasks(Train)) == set()
    effects = play.merged()
    assert play.machine.state.history[-1].lost == {"a": "out of memory"}
    assert [task.site for task in sent(effects)] == ["a", "b"]  # it is asked again in the next round


def test_a_quarantined_update_is_lost_with_its_reason_and_the_round_goes_on() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["b"])
    assert plans(play.quarantine(tasks["a"], "tensor w holds NaN"))
    play.merged()
    assert play.machine.state.history[-1].lost == {"a": "update quarantined: tensor w holds NaN"}
    assert play.machine.state.history[-1].contributions == {"b": 10.0}


def test_when_every_site_fails_the_job_fails_naming_one() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.fail(tasks["b"], "disk full")
    ((status, reason),) = endings(play.quarantine(tasks["a"], "NaN"))
    assert status == "failed"
    assert reason == "every site failed in round 1; a: update quarantined: NaN"


def test_a_final_failure_ends_the_job_naming_the_site() -> None:
    play = Play()
    tasks = play.training("a", "b")
    effects = play.fail(tasks["b"], "the data are gone", final=True)
    assert endings(effects) == [("failed", "site b: the data are gone")]
    assert set(withdrawn(effects)) == {tasks["a"].id, tasks["b"].id}


def test_a_site_where_the_app_cannot_be_used_fails_the_job() -> None:
    play = Play()
    play.join("a")
    effects = play.do(ev.SiteUnfit(at=1, site=SiteName("b"), role="evaluator", reason="app not allowed"))
    assert endings(effects) == [("failed", "site b (evaluator): app not allowed")]


# Waiting for sites.


def test_too_few_sites_after_the_wait_fail_the_job_naming_those_that_came() -> None:
    play = Play(sites={"min": 3, "wait": 20})
    play.join("a", "b")
    play.join("c", examples=0)
    ((status, reason),) = endings(play.ring("gather"))
    assert status == "failed"
    assert reason == "2 of the 3 sites needed attended after 20 s (a, b); without examples: c"


def test_when_too_few_sites_are_left_after_a_merge_the_job_waits_for_more() -> None:
    play = Play(sites={"min": 2, "wait": 20})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.now = 5.0
    play.leave("b")
    effects = play.merged()
    assert play.machine.state.phase == "gathering"
    assert SetAlarm("gather", 25.0) in effects
    assert [task.site for task in sent(play.join("c"))] == ["a", "c"]
    assert play.machine.state.alarms == {}
    assert play.machine.state.reason == ""


def test_when_all_sites_are_gone_the_job_waits_only_so_long() -> None:
    play = Play()
    play.training("a", "b")
    play.leave("a")
    assert play.leave("b") == [SetAlarm("gather", 60.0)]
    assert endings(play.ring("gather"))[0][0] == "failed"


def test_when_a_site_comes_back_the_job_no_longer_waits() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.leave("a")
    play.leave("b")
    play.join("b")
    assert play.machine.state.alarms == {}
    _stale(play, lambda: play.ring("gather"))
    assert plans(play.update(tasks["b"]))


def test_when_the_last_site_present_answers_below_quorum_the_job_waits_only_so_long_for_the_others() -> None:
    play = Play(pace={"quorum": 1.0})
    tasks = play.training("a", "b")
    play.leave("b")
    play.update(tasks["a"])
    assert play.machine.state.plan is None
    assert "gather" in play.machine.state.alarms


def test_when_the_last_site_present_fails_the_job_waits_only_so_long_for_the_others() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.leave("b")
    play.fail(tasks["a"])
    assert play.machine.state.plan is None
    assert "gather" in play.machine.state.alarms


def test_a_job_that_fails_because_the_sites_of_a_round_are_gone_does_not_blame_the_number_of_sites() -> None:
    play = Play(sites={"min": 1}, pace={"quorum": 1.0})
    play.training("a")
    play.leave("a")
    play.join("b")
    ((status, reason),) = endings(play.ring("gather"))
    assert status == "failed"
    assert "1 of the 1 sites" not in reason


# The first model.


@pytest.mark.parametrize("how", ["fails", "sends nonsense", "leaves"])
def test_the_first_model_comes_from_another_site_if_one_cannot_build_it(how: str) -> None:
    play = Play()
    play.join("a", "b")
    (init,) = play.tasks(Init).values()
    if how == "leaves":
        effects = play.leave(init.site)
    else:
        effects = play.fail(init) if how == "fails" else play.quarantine(init)
    (again,) = sent(effects)
    assert (init.site, again.site) == ("a", "b")
    assert again.id != init.id
    _stale(play, lambda: play.update(init))
    play.update(again)
    assert play.machine.state.current == "j1/u2"


def test_when_no_site_can_build_the_first_model_the_job_fails_naming_one() -> None:
    play = Play()
    play.join("a", "b")
    play.fail(play.tasks(Init)["a"])
    ((status, reason),) = endings(play.fail(play.tasks(Init)["b"], "no such layer"))
    assert status == "failed"
    assert reason == "site b could not build the first model: no such layer"


def test_a_site_that_joins_while_nobody_is_there_builds_the_first_model() -> None:
    play = Play(sites={"min": 1})
    play.join("a")
    assert play.leave("a") == [SetAlarm("gather", 60.0)]
    (init,) = sent(play.join("b"))
    assert init.site == "b"


def test_the_wait_for_somebody_to_build_the_first_model_is_over_when_somebody_does() -> None:
    play = Play(sites={"min": 1})
    play.join("a")
    play.leave("a")
    play.join("b")
    assert "gather" not in play.machine.state.alarms


def test_a_site_without_examples_does_not_end_the_wait_for_the_first_model() -> None:
    play = Play(sites={"min": 1})
    play.join("a")
    play.leave("a")
    assert endings(play.join("empty", examples=0)) == []
    assert [task.site for task in sent(play.join("b"))] == ["b"]


def test_a_site_that_leaves_while_another_builds_the_first_model_changes_nothing() -> None:
    play = Play()
    play.join("a", "b", "c")
    init = play.tasks(Init)["a"]
    assert play.leave("c") == []
    assert play.tasks(Init) == {"a": init}


def test_a_site_that_hangs_over_the_first_model_does_not_hold_up_the_job() -> None:
    play = Play()
    play.join("a", "b", "c")
    (hanging,) = play.tasks(Init).values()
    (second,) = sent(play.ring("first-model"))
    assert (hanging.site, second.site) == ("a", "b")
    assert "has not come from a in 60 s" in play.machine.state.reason
    (third,) = sent(play.ring("first-model"))
    assert third.site == "c"
    assert sent(play.ring("first-model")) == []  # all of them are at it
    play.save()
    play.machine = play.again()
    assert endings(play.fail(third)) == []
    effects = play.update(second)
    assert withdrawn(effects) == [hanging.id]
    assert [task.site for task in sent(effects)] == ["a", "b", "c"]
    assert play.machine.state.reason == ""
    _stale(play, lambda: play.update(hanging))


def test_a_site_that_comes_while_the_others_hang_over_the_first_model_is_asked() -> None:
    play = Play(sites={"min": 1})
    play.join("a")
    assert sent(play.join("b")) == []  # a has just been asked
    assert [task.site for task in sent(play.ring("first-model"))] == ["b"]
    assert sent(play.ring("first-model")) == []
    (late,) = sent(play.join("c"))
    assert late.site == "c"
    for site in ("a", "b"):
        assert endings(play.fail(play.tasks(Init)[site])) == []
    ((status, reason),) = endings(play.fail(late, "no such layer"))
    assert (status, reason) == ("failed", "site c could not build the first model: no such layer")


def test_the_slow_builder_of_the_first_model_may_still_be_the_first() -> None:
    play = Play()
    play.join("a", "b")
    slow = play.tasks(Init)["a"]
    (second,) = sent(play.ring("first-model"))
    assert withdrawn(play.update(slow)) == [second.id]
    assert play.machine.state.current == "j1/u1"


def test_nobody_builds_the_first_model_before_the_time_is_up() -> None:
    play = Play(stop={"seconds": 100})
    play.join("a", "b")
    play.ring("first-model")
    ((status, reason),) = endings(play.ring("time"))
    assert (status, reason) == ("failed", "time limit of 100 s reached before there was a model")


def test_after_the_first_model_the_job_waits_again_if_sites_have_left() -> None:
    play = Play(sites={"min": 2, "wait": 9})
    play.join("a", "b")
    init = play.tasks(Init)["a"]
    play.leave("b")
    play.now = 1.0
    assert play.update(init) == [SetAlarm("gather", 10.0)]
    assert [task.site for task in sent(play.join("c"))] == ["a", "c"]


# Endings.


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
    _stale(play, play.cancel)
    _stale(play, lambda: play.join("z"))
    _stale(play, lambda: play.merged(1))


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
    _stale(play, lambda: play.merged(2))
    play.report(play.tasks(Evaluate)["a"])
    assert (play.machine.state.status, play.machine.state.version) == ("completed", 1)


def test_a_merge_that_was_given_up_cannot_fail_the_job_any_more() -> None:
    play = _closing_with_a_merge_given_up()
    _stale(play, lambda: play.do(ev.MergeFailed(at=101, version=2, reason="model j1/u4 is gone")))


def test_a_merge_that_fails_fails_the_job() -> None:
    play = Play()
    for task in play.training("a", "b").values():
        play.update(task)
    effects = play.do(ev.MergeFailed(at=1, version=1, reason="disk full"))
    assert endings(effects) == [("failed", "merging version 1: disk full")]


def test_an_engine_that_failed_ends_the_job() -> None:
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


def test_a_target_is_judged_by_all_evaluators_together() -> None:
    play = Play(stop={"target": {"metric": "accuracy", "value": 0.75}})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    play.round()
    tasks = play.tasks(Evaluate)
    assert play.report(tasks["a"], right=10, n=10) == []
    ((_, reason),) = endings(play.report(tasks["b"], right=5, n=10))
    assert reason == "target reached: accuracy 0.7500 at version 1"


@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_a_target_is_judged_without_an_evaluator_that_will_not_answer(how: str) -> None:
    play = Play(stop={"target": {"metric": "accuracy", "value": 0.75}})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    play.round()
    tasks = play.tasks(Evaluate)
    play.report(tasks["a"], right=9, n=10)
    effects = play.fail(tasks["b"]) if how == "fails" else play.leave("b", role="evaluator")
    assert endings(effects) == [("completed", "target reached: accuracy 0.9000 at version 1")]


def test_when_evaluators_do_not_answer_the_last_time_the_job_completes_without_them() -> None:
    play = Play(pace={"rounds": 1}, evaluate={"timeout": 5})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    play.now = 10.0
    play.round()
    play.report(play.tasks(Evaluate)["a"])
    assert play.machine.state.alarms == {"evaluation": 15.0}
    effects = play.ring("evaluation")
    assert endings(effects) == [("completed", "all 1 rounds are done (not all evaluators answered)")]
    assert len(withdrawn(effects)) == 1


@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_an_evaluator_that_fails_or_leaves_does_not_hold_up_the_end(how: str) -> None:
    play = Play(pace={"rounds": 1})
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    task = play.tasks(Evaluate)["a"]
    effects = play.fail(task) if how == "fails" else play.leave("a", role="evaluator")
    assert endings(effects) == [("completed", "all 1 rounds are done")]
    _stale(play, lambda: play.report(task))


# What comes too late, twice or from the wrong site.


def test_an_update_that_comes_twice_is_stale_the_second_time() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    _stale(play, lambda: play.update(tasks["a"]))
    _stale(play, lambda: play.quarantine(tasks["a"]))
    _stale(play, lambda: play.fail(tasks["a"], final=True))


def test_an_update_that_comes_after_its_round_is_stale() -> None:
    play = Play(pace={"deadline": 30})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.ring("round-1-1")
    _stale(play, lambda: play.update(tasks["b"]))
    play.merged()
    _stale(play, lambda: play.update(tasks["b"]))
    _stale(play, lambda: play.fail(tasks["b"]))


def test_an_answer_to_a_task_nobody_gave_is_stale() -> None:
    play = Play()
    tasks = play.training("a", "b")
    unknown = tasks["a"].model_copy(update={"id": TaskId("j1-99")})
    other_job = tasks["a"].model_copy(update={"id": TaskId("j2-2")})
    for task in (unknown, other_job):
        _stale(play, lambda task=task: play.update(task))  # type: ignore[misc]
        _stale(play, lambda task=task: play.quarantine(task))  # type: ignore[misc]
        _stale(play, lambda task=task: play.fail(task))  # type: ignore[misc]
        _stale(play, lambda task=task: play.report(task))  # type: ignore[misc]


def test_an_answer_from_a_site_that_was_not_asked_is_stale() -> None:
    play = Play()
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    task, evaluation = play.tasks(Train)["a"], play.tasks(Evaluate)["a"]
    _stale(play, lambda: play.update(task, site="b"))
    for foreign in (task.model_copy(update={"site": "b"}), evaluation.model_copy(update={"site": "b"})):
        _stale(play, lambda foreign=foreign: play.fail(foreign))  # type: ignore[misc]
        _stale(play, lambda foreign=foreign: play.fail(foreign, final=True))  # type: ignore[misc]
        _stale(play, lambda foreign=foreign: play.quarantine(foreign))  # type: ignore[misc]
        _stale(play, lambda foreign=foreign: play.report(foreign))  # type: ignore[misc]


def test_an_update_does_not_answer_an_evaluation_nor_a_report_a_training_task() -> None:
    play = Play()
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    _stale(play, lambda: play.update(play.tasks(Evaluate)["a"]))
    _stale(play, lambda: play.report(play.tasks(Train)["a"]))


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_merge_nobody_asked_for_is_stale(version: int) -> None:
    play = Play()
    tasks = play.training("a", "b")
    _stale(play, lambda: play.merged(1))
    for task in tasks.values():
        play.update(task)
    _stale(play, lambda: play.merged(version))
    play.merged(1)
    _stale(play, lambda: play.merged(1))


# Models that may go.


def test_the_base_of_an_open_evaluation_is_kept_until_it_is_answered() -> None:
    play = Play()
    play.join("a", role="evaluator")
    play.training("a", "b")
    play.round()
    slow = play.tasks(Evaluate)["a"]
    play.round()
    play.round()
    assert "j1/v1" not in dropped(play.effects)
    assert "j1/v1" in play.machine.state.models
    assert "j1/v1" in dropped(play.report(slow))


def test_the_last_merges_contributions_stay_and_older_ones_go() -> None:
    play = Play()
    play.training("a", "b")
    play.round()
    first = {part.model for part in plans(play.effects)[-1].added}
    assert not first & dropped(play.effects)
    play.round()
    second = {part.model for part in plans(play.effects)[-1].added}
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


def test_a_resumed_job_goes_on_with_what_was_under_way() -> None:
    play = Play(pace={"deadline": 30})
    play.join("a", role="evaluator")
    tasks = play.training("a", "b")
    assert play.machine.resume() == [SetAlarm("round-1-1", 30.0), SendTask(tasks["a"]), SendTask(tasks["b"])]
    play.update(tasks["a"])
    assert play.machine.resume() == [SetAlarm("round-1-1", 30.0), SendTask(tasks["b"])]
    (plan,) = plans(play.update(tasks["b"]))
    assert play.machine.resume() == [SetAlarm("round-1-1", 30.0), StartMerge(plan)]


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
    event = ev.UpdateArrived(at=1.5, task=TaskId("j1-2"), site=SiteName("a"), facts=facts, digest="d", tensors=3)
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
