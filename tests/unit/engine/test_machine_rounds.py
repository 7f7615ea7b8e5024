"""Rounds with deadlines, a quorum, and sites that are lost."""

import pytest

from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, SendTask, SetAlarm
from tests.unit.engine.play import Play, endings, merges, sent, stale, withdrawn

# Deadlines and quorum.


def test_at_the_deadline_a_round_with_a_quorum_is_merged_without_the_late() -> None:
    play = Play(pace={"deadline": 30, "quorum": 0.5})
    tasks = play.training("a", "b")
    assert play.machine.state.alarms == {"round-1-1": 30.0}
    play.update(tasks["a"])
    effects = play.ring("round-1-1")
    assert withdrawn(effects) == [tasks["b"].id]
    assert [part.site for part in merges(effects)[0].added] == ["a"]
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
    assert bool(merges(play.ring(f"round-{play.machine.state.round}-1"))) is closes


def test_a_share_of_sites_that_is_a_whole_number_is_that_number() -> None:
    names = [f"s{number:02}" for number in range(25)]
    # In binary, 0.28 · 25 is a little more than 7.
    play = Play(pace={"deadline": 30, "quorum": 0.28}, sites={"min": 25})
    tasks = play.training(*names)
    for site in names[:7]:
        play.update(tasks[site])
    assert merges(play.ring("round-1-1"))


def test_below_quorum_the_late_get_one_more_deadline_and_then_what_is_there_is_merged() -> None:
    play = Play(pace={"deadline": 30, "quorum": 1.0})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    effects = play.ring("round-1-1")
    assert effects == [SetAlarm("round-1-2", 60.0)]
    assert set(play.tasks(Train)) == {"b"}
    effects = play.ring("round-1-2")
    assert withdrawn(effects) == [tasks["b"].id]
    assert [part.site for part in merges(effects)[0].added] == ["a"]


def test_a_late_site_that_answers_within_the_second_deadline_counts() -> None:
    play = Play(pace={"deadline": 30, "quorum": 1.0})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.ring("round-1-1")
    (merge,) = merges(play.update(tasks["b"]))
    assert [part.site for part in merge.added] == ["a", "b"]
    assert play.ring("round-1-2") == []  # merging already


def test_a_round_without_any_answer_makes_a_version_without_contributions() -> None:
    play = Play(pace={"deadline": 30, "rounds": 2})
    play.training("a", "b")
    play.ring("round-1-1")
    (merge,) = merges(play.ring("round-1-2"))
    assert merge.added == ()
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
    stale(play, lambda: play.ring("gather"))
    play.ring("round-1-1")
    stale(play, lambda: play.ring("round-1-1"))


def test_an_alarm_that_rings_for_an_earlier_setting_of_it_is_stale() -> None:
    # The first alarm is set for 60 s and cancelled when the sites have gathered.
    play = Play(sites={"min": 2, "wait": 60})
    play.training("a", "b")
    play.now = 50.0
    play.leave("a")
    play.leave("b")
    assert play.machine.state.alarms == {"gather": 110.0}
    stale(play, lambda: play.ring("gather", at=60.0))


# Sites that are lost.


def test_a_round_goes_on_without_a_site_that_left_if_the_others_make_a_quorum() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    effects = play.leave("b")
    assert withdrawn(effects) == [tasks["b"].id]
    assert [part.site for part in merges(effects)[0].added] == ["a"]
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
    (merge,) = merges(play.update(tasks["b"]))
    assert [part.site for part in merge.added] == ["a", "b"]
    play.merged()
    assert play.machine.state.history[-1].lost == {}


def test_a_site_that_left_is_not_called_late() -> None:
    play = Play(pace={"rounds": 2, "deadline": 10.0, "quorum": 1.0}, sites={"min": 3})
    tasks = play.training("a", "b", "c")
    play.update(tasks["a"])
    play.leave("c")
    play.ring("round-1-1")
    play.ring("round-1-2")
    play.merged()
    assert play.machine.state.history[-1].lost == {
        "b": "late: no update by the deadline of 10 s",
        "c": "the site left",
    }


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
    assert merges(play.update(tasks["a"]))


def test_a_round_that_was_closed_while_a_site_was_away_does_not_want_its_update() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    play.leave("b")
    stale(play, lambda: play.update(tasks["b"]))
    play.merged()
    stale(play, lambda: play.update(tasks["b"]))


def test_a_failed_task_is_lost_and_the_others_are_merged() -> None:
    play = Play()
    tasks = play.training("a", "b")
    assert play.fail(tasks["a"]) == []
    (merge,) = merges(play.update(tasks["b"]))
    assert [part.site for part in merge.added] == ["b"]
    assert set(play.tasks(Train)) == set()
    effects = play.merged()
    assert play.machine.state.history[-1].lost == {"a": "out of memory"}
    assert [task.site for task in sent(effects)] == ["a", "b"]  # it is asked again in the next round


def test_a_quarantined_update_is_lost_with_its_reason_and_the_round_goes_on() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.update(tasks["b"])
    assert merges(play.quarantine(tasks["a"], "tensor w holds NaN"))
    play.merged()
    assert play.machine.state.history[-1].lost == {"a": "update quarantined: tensor w holds NaN"}
    assert play.machine.state.history[-1].contributions == {"b": 10.0}


@pytest.mark.parametrize("deadline", [None, 30])
def test_a_round_below_its_quorum_is_issued_once_more_to_those_that_failed(deadline: float | None) -> None:
    play = Play(pace={"quorum": 0.75, "deadline": deadline}, sites={"min": 4})
    tasks = play.training("a", "b", "c", "d")
    play.update(tasks["a"])
    for site in "bc":
        assert play.fail(tasks[site]) == []
    play.now = 7.0
    effects = play.update(tasks["d"])
    again: dict[str, Task] = {task.site: task for task in sent(effects)}
    assert set(again) == {"b", "c"}
    assert not merges(effects)
    if deadline:
        assert SetAlarm("round-1-2", 37.0) in effects
        assert play.ring("round-1-1") == []  # it has another one now
    stale(play, lambda: play.update(tasks["b"]))
    play.update(again["b"])
    (merge,) = merges(play.fail(again["c"], "disk full"))  # not a third time
    assert [part.site for part in merge.added] == ["a", "b", "d"]
    play.merged()
    assert play.machine.state.history[-1].lost == {"c": "disk full"}


def test_at_the_deadline_a_round_below_its_quorum_asks_sites_that_failed_again_and_waits_for_the_late() -> (
    None
):
    play = Play(pace={"quorum": 1.0, "deadline": 30}, sites={"min": 3})
    tasks = play.training("a", "b", "c")
    play.update(tasks["a"])
    play.fail(tasks["b"])
    effects = play.ring("round-1-1")
    (again,) = sent(effects)
    assert again.site == "b"
    assert withdrawn(effects) == []
    play.update(again)
    (merge,) = merges(play.update(tasks["c"]))
    assert [part.site for part in merge.added] == ["a", "b", "c"]


def test_a_failed_site_that_has_left_is_not_asked_again() -> None:
    play = Play(pace={"quorum": 1.0})
    tasks = play.training("a", "b")
    play.fail(tasks["b"])
    play.leave("b")
    (merge,) = merges(play.update(tasks["a"]))
    assert [part.site for part in merge.added] == ["a"]


def test_a_failed_site_that_comes_back_while_the_others_are_away_is_asked_again() -> None:
    play = Play(pace={"quorum": 1.0})
    tasks = play.training("a", "b")
    play.fail(tasks["a"])
    play.leave("a")
    assert sent(play.leave("b")) == []
    (again,) = sent(play.join("a"))
    assert again.site == "a"
    assert "gather" not in play.machine.state.alarms
    assert play.update(again) == [SetAlarm("gather", 60.0)]  # b may still come back
    play.join("b")
    (merge,) = merges(play.update(tasks["b"]))
    assert [part.site for part in merge.added] == ["a", "b"]


def test_a_site_that_was_asked_again_and_then_left_may_come_back_though_the_others_failed_twice() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.fail(tasks["a"])
    again: dict[str, Task] = {task.site: task for task in sent(play.fail(tasks["b"]))}
    play.fail(again["a"])
    assert not endings(play.leave("b"))
    play.join("b")
    (merge,) = merges(play.update(again["b"]))
    assert [part.site for part in merge.added] == ["b"]


def test_when_every_site_fails_twice_the_job_fails_naming_one() -> None:
    play = Play()
    tasks = play.training("a", "b")
    play.fail(tasks["b"], "disk full")
    again: dict[str, Task] = {task.site: task for task in sent(play.quarantine(tasks["a"], "NaN"))}
    play.fail(again["b"], "disk full")
    ((status, reason),) = endings(play.quarantine(again["a"], "NaN"))
    assert status == "failed"
    assert reason == "all sites failed in round 1; a: update quarantined: NaN"


def test_a_site_that_fails_when_it_is_drawn_alone_does_not_end_the_job_of_the_others() -> None:
    play = Play(sample={"kind": "uniform", "fraction": 0.5}, pace={"rounds": 40})
    ((first, task),) = play.training("a", "b").items()
    (again,) = sent(play.fail(task))
    (merge,) = merges(play.fail(again, "disk full"))
    assert merge.added == ()
    play.merged()
    assert play.machine.state.history[-1].lost == {first: "disk full"}
    while set(play.tasks(Train)) == {first}:
        for _ in range(2):
            play.fail(play.tasks(Train)[first], "disk full")
        play.merged()
    play.round()
    assert list(play.machine.state.history[-1].contributions) == sorted({"a", "b"} - {first})
    assert play.machine.state.status == "running"


def test_when_every_site_has_failed_whenever_it_was_drawn_the_job_fails() -> None:
    play = Play(sample={"kind": "uniform", "fraction": 0.5}, pace={"rounds": 40})
    play.training("a", "b")
    play.round()  # earlier updates do not matter
    seen: set[str] = set()
    effects: list[Effect] = []
    while not endings(effects):
        (site,) = play.tasks(Train)
        seen.add(site)
        for _ in range(2):
            effects = play.fail(play.tasks(Train)[site], f"no disk at {site}")
        if merges(effects):
            play.merged()
    assert seen == {"a", "b"}
    reason = f"all sites failed in round {play.machine.state.round}; a: no disk at a"
    assert endings(effects) == [("failed", reason)]


def test_sites_that_fail_while_they_are_away_do_not_end_the_job() -> None:
    play = Play(pace={"rounds": 2}, sites={"min": 1})
    task = play.training("a")["a"]
    play.leave("a")
    (merge,) = merges(play.quarantine(task))
    assert merge.added == ()
    play.merged()
    assert [task.site for task in sent(play.join("a"))] == ["a"]


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


# Schedules of the learning rate.


def test_a_schedule_by_round_sets_the_rate_of_each_rounds_tasks() -> None:
    schedule = {"kind": "step", "every": 1, "factor": 0.5}
    play = Play(pace={"rounds": 3}, train={"optimizer": {"lr": 0.8}, "schedule": schedule})
    rates = []
    play.training("a", "b")
    for _ in range(3):
        works = [task.work for task in play.tasks(Train).values()]
        rates += [work.optimizer.lr for work in works if isinstance(work, Train)]
        assert not any(work.schedule.changes for work in works if isinstance(work, Train))
        play.round()
    assert rates == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]


def test_a_schedule_by_step_goes_to_the_sites_as_it_is() -> None:
    schedule = {"kind": "cosine", "by": "step"}
    play = Play(train={"schedule": schedule, "clip": 2, "accumulate": 3, "precision": "bf16"})
    (work, _) = (task.work for task in play.training("a", "b").values())
    assert isinstance(work, Train)
    assert (work.schedule.kind, work.clip, work.accumulate, work.precision) == ("cosine", 2, 3, "bf16")
