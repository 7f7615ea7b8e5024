"""Waiting for sites and for the first model, and the contributions of sites that have left."""

import pytest

from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Init, Train
from hansa.controller.engine.effects import SetAlarm
from tests.unit.engine.play import Play, endings, merges, sent, stale, withdrawn

# Waiting for sites.


def test_sites_that_leave_while_the_job_waits_for_others_are_forgotten_if_the_rule_says_so() -> None:
    merge = {"kind": "incremental", "drop_on_leave": True}
    play = Play(merge=merge, sites={"min": 4, "wait": 100})
    play.training("a", "b", "c", "d")
    play.round()
    play.leave("a")
    play.merged()
    for site in "bcd":
        play.update(play.tasks(Train)[site])
    play.merged()
    assert play.machine.state.phase == "gathering"
    assert set(play.machine.state.members) == {"b", "c", "d"}
    (first,) = merges(play.leave("b"))
    assert [member.site for member in first.removed] == ["b"]
    assert merges(play.leave("c")) == []  # one merge at a time
    (second,) = merges(play.merged())
    assert [member.site for member in second.removed] == ["c"]
    play.merged()
    assert set(play.machine.state.members) == {"d"}
    assert play.machine.state.phase == "gathering"
    assert play.again().state == play.machine.state


def test_a_job_with_too_few_sites_after_the_wait_fails_and_names_those_that_joined() -> None:
    play = Play(sites={"min": 3, "wait": 20})
    play.join("a", "b")
    play.join("c", examples=0)
    ((status, reason),) = endings(play.ring("gather"))
    assert status == "failed"
    assert reason == "only 2 of the 3 sites needed were connected after 20 s (a, b); without examples: c"


def test_a_job_without_sites_says_which_are_not_connected_and_which_have_no_learner() -> None:
    play = Play(sites={"min": 1, "wait": 3, "names": ["a", "b"]})
    play.join("b", role="evaluator")
    ((_, reason),) = endings(play.ring("gather"))
    missing = "with an evaluator but no learner: b; named in sites.names but not connected: a"
    assert reason == f"no site was connected after 3 s; {missing}"


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
    stale(play, lambda: play.ring("gather"))
    assert merges(play.update(tasks["b"]))


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
    (again,) = sent(play.fail(tasks["a"]))
    play.fail(again)
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
    stale(play, lambda: play.update(init))
    play.update(again)
    assert play.machine.state.current == "j1/u2"


def test_when_no_site_can_build_the_first_model_the_job_fails_naming_one() -> None:
    play = Play()
    play.join("a", "b")
    play.fail(play.tasks(Init)["a"])
    ((status, reason),) = endings(play.fail(play.tasks(Init)["b"], "no such layer"))
    assert status == "failed"
    assert reason == "site b could not build the first model: no such layer"


def test_a_site_that_joins_while_no_other_is_connected_builds_the_first_model() -> None:
    play = Play(sites={"min": 1})
    play.join("a")
    assert play.leave("a") == [SetAlarm("gather", 60.0)]
    (init,) = sent(play.join("b"))
    assert init.site == "b"


def test_the_wait_for_a_site_to_build_the_first_model_ends_when_one_joins() -> None:
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
    assert (
        "the first model has not arrived from a in 60 s; another site was asked, too"
        in play.machine.state.reason
    )
    (third,) = sent(play.ring("first-model"))
    assert third.site == "c"
    assert sent(play.ring("first-model")) == []  # all of them have been asked
    play.save()
    play.machine = play.again()
    assert endings(play.fail(third)) == []
    effects = play.update(second)
    assert withdrawn(effects) == [hanging.id]
    assert [task.site for task in sent(effects)] == ["a", "b", "c"]
    assert play.machine.state.reason == ""
    stale(play, lambda: play.update(hanging))


def test_a_site_that_joins_while_the_others_hang_over_the_first_model_is_asked() -> None:
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


def test_a_job_fails_if_no_site_builds_the_first_model_in_time() -> None:
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


# The contributions of sites that have left.


@pytest.mark.parametrize("drops", [False, True])
def test_a_site_that_leaves_takes_its_contribution_with_it_only_if_asked(drops: bool) -> None:
    play = Play(rule="async-fedavg", merge={"drop_on_leave": drops})
    for task in play.training("a", "b").values():
        play.update(task)
        play.merged()
    effects = play.leave("b")
    if drops:
        (merge,) = merges(effects)
        assert ([member.site for member in merge.removed], merge.added) == (["b"], ())
        play.merged()
    assert set(play.machine.state.members) == ({"a"} if drops else {"a", "b"})
    assert play.machine.state.version == (3 if drops else 2)


def test_the_last_update_of_a_site_that_comes_back_counts_until_it_sends_another() -> None:
    play = Play(rule="async-fedavg")
    first = play.training("a", "b")
    for task in first.values():
        play.update(task)
        play.merged()
    play.leave("b")
    play.join("b")
    assert [member.task for member in play.machine.state.members[SiteName("b")]] == [first["b"].id]
    (merge,) = merges(play.update(play.tasks(Train)["b"]))
    assert [member.task for member in merge.removed] == [first["b"].id]
