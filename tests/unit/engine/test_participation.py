"""Who took part in a job: sites that contributed nothing or little are named, with the reason; nobody else is."""

from typing import Any

import pytest

from hansa.common.ui.job_warnings import shortfall_line, shortfall_lines, warning_lines
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Init, Train
from hansa.common.values.views import JobView, Shortfall
from hansa.controller.engine import events as ev
from hansa.controller.engine.accounts import participation
from hansa.controller.engine.accounts.participation import shortfalls
from tests.unit.engine.play import Play, stale
from tests.unit.engine.travel import FIRST, SITES, Travel, noise, radfed


def short(play: Play) -> dict[str, Shortfall]:
    """Return the sites that are named, as the job's view has them; a job after a crash names the same."""
    rounds = "barrier" in play.machine.rule.pace.provides
    found = shortfalls(play.machine.state, rounds)
    assert shortfalls(play.again().state, rounds) == found
    return {each.site: each for each in found}


def unfit(play: Play, site: str, reason: str = "no such app", role: str = "learner") -> None:
    play.do(ev.SiteUnfit.model_validate({"at": play.now, "site": site, "role": role, "reason": reason}))


def play_rounds(play: Play, count: int, *failing: str, reason: str = "out of memory") -> None:
    """Play rounds in which some sites fail."""
    for _ in range(count):
        for site, task in play.tasks(Train).items():
            if site in failing:
                play.fail(task, reason)
            elif site in play.machine.state.learners:  # the tasks of those who left are withdrawn in the end
                play.update(task)
        play.merged()


# Common rounds.


@pytest.mark.parametrize("rule", ["fedavg", "semisync-fedavg"])
def test_a_site_that_fails_in_every_round_is_named_with_the_reason(rule: str) -> None:
    play = Play(rule=rule, pace={"rounds": 4}, sites={"min": 3})
    play.training("a", "b", "c")
    play_rounds(play, 4, "c")
    assert play.machine.state.status == "completed"
    found = short(play)
    assert list(found) == ["c"]
    assert (found["c"].contributed, found["c"].asked, found["c"].failures) == (0, 4, 4)
    assert found["c"].reason == "out of memory"


def test_a_site_that_contributes_to_half_of_its_rounds_is_not_named() -> None:
    play = Play(pace={"rounds": 4}, sites={"min": 3})
    play.training("a", "b", "c")
    play_rounds(play, 2, "c")
    play_rounds(play, 2)
    assert short(play) == {}


def test_a_quarantined_update_is_a_failure_and_counts_with_others() -> None:
    play = Play(pace={"rounds": 3}, sites={"min": 3})
    play.training("a", "b", "c")
    play_rounds(play, 2, "c")
    for site, task in play.tasks(Train).items():
        play.quarantine(task, "w is not finite") if site == "c" else play.update(task)
    play.merged()
    found = short(play)["c"]
    assert (found.contributed, found.failures) == (0, 3)
    assert found.reason == "update quarantined: w is not finite"


def test_a_site_that_misses_every_deadline_is_named_in_the_words_of_the_history() -> None:
    play = Play(pace={"rounds": 2, "deadline": 30}, sites={"min": 3})
    play.training("a", "b", "c")
    for number in (1, 2):
        for site, task in play.tasks(Train).items():
            if site != "c":
                play.update(task)
        play.ring(f"round-{number}-1")
        play.merged()
    found = short(play)["c"]
    assert (found.contributed, found.asked, found.failures) == (0, 2, 2)
    assert found.reason == "late: no update by the deadline of 30 s"


def test_a_round_that_is_issued_twice_counts_once_and_what_came_in_the_end_counts() -> None:
    play = Play(pace={"rounds": 2, "quorum": 1.0}, sites={"min": 2})
    play.training("a", "b")
    for _ in range(2):
        tasks = play.tasks(Train)
        play.update(tasks["a"])
        play.fail(tasks["b"])  # below the quorum: asked once more
        play.update(play.tasks(Train)["b"])
        play.merged()
    assert short(play) == {}
    account = play.machine.state.participation[SiteName("b")]
    assert (account.asked, account.answered, account.failures) == (2, 2, 2)


def test_a_site_that_is_never_drawn_is_not_at_fault() -> None:
    play = Play(pace={"rounds": 4}, sample={"kind": "uniform", "fraction": 0.1}, sites={"min": 6})
    play.training(*"abcdef")
    play_rounds(play, 4)
    asked = [account.asked for account in play.machine.state.participation.values()]
    assert sum(asked) == 4
    assert 0 in asked
    assert short(play) == {}


def test_of_a_site_that_is_drawn_seldom_only_the_rounds_that_it_was_drawn_for_count() -> None:
    names = [f"s{number}" for number in range(6)]
    play = Play(
        pace={"rounds": 9, "quorum": 0.1}, sample={"kind": "uniform", "fraction": 0.5}, sites={"min": 6}
    )
    play.training(*names)
    play_rounds(play, 9, "s0")
    account = play.machine.state.participation[SiteName("s0")]
    assert 0 < account.asked < 9
    assert list(short(play)) == ["s0"]
    assert short(play)["s0"].asked == account.asked


def test_a_site_that_joins_late_is_measured_by_the_rounds_since_then() -> None:
    play = Play(pace={"rounds": 10})
    play.training("a", "b")
    play_rounds(play, 9)
    play.join("late")
    play_rounds(play, 1)
    assert short(play) == {}


def test_a_site_that_joins_when_the_last_round_is_under_way_is_not_named() -> None:
    play = Play(pace={"rounds": 2})
    play.training("a", "b")
    play_rounds(play, 1)
    play.join("late")
    play_rounds(play, 1)
    assert play.machine.ended
    assert short(play) == {}


def test_a_site_that_left_early_is_named_as_away_and_one_that_left_late_is_not() -> None:
    play = Play(pace={"rounds": 10}, sites={"min": 2})
    play.training("a", "b")
    play.join("early", "late")
    play_rounds(play, 2)
    play.leave("early")
    play_rounds(play, 5)
    play.leave("late")
    play_rounds(play, 3)
    found = short(play)
    assert list(found) == ["early"]
    assert (found["early"].contributed, found["early"].missed, found["early"].known) == (1, 8, 10)
    assert found["early"].absence == "the site left"


def test_a_site_that_comes_back_is_away_no_more() -> None:
    play = Play(pace={"rounds": 10}, sites={"min": 2})
    play.training("a", "b")
    play.join("c")
    play_rounds(play, 2)
    play.leave("c")
    play_rounds(play, 2)
    play.join("c")
    play_rounds(play, 6)
    assert short(play) == {}
    account = play.machine.state.participation[SiteName("c")]
    assert (account.away, account.away_since) == (2, None)


def test_a_site_without_examples_is_named() -> None:
    play = Play(pace={"rounds": 2})
    play.training("a", "b")
    play.join("empty", examples=0)
    play_rounds(play, 2)
    assert short(play)["empty"].absence == "it has no examples to train on"


# Sites that cannot be used.


def test_a_site_that_cannot_be_used_while_a_job_runs_is_named_once_with_the_reason() -> None:
    play = Play(pace={"rounds": 4})
    play.training("a", "b")
    unfit(play, "c", "app 'app.py:app' is not allowed there")
    stale(play, lambda: unfit(play, "c", "app 'app.py:app' is not allowed there"))
    play_rounds(play, 4)
    found = short(play)["c"]
    assert (found.contributed, found.asked, found.missed, found.known) == (0, 0, 4, 4)
    assert found.absence == "app 'app.py:app' is not allowed there"


def test_a_learner_that_comes_back_unusable_has_left_and_nobody_waits_for_it() -> None:
    play = Play(pace={"rounds": 4}, sites={"min": 2})
    tasks = play.training("a", "b")
    play.join("c")
    play.update(tasks["a"])
    unfit(play, "b", "its data cannot be read")
    assert play.machine.state.plan is not None  # the round goes on with those who make a quorum
    play.merged()
    play_rounds(play, 3)
    assert short(play)["b"].absence == "its data cannot be read"


def test_a_site_that_becomes_usable_in_time_is_not_named() -> None:
    play = Play(pace={"rounds": 4})
    play.training("a", "b")
    unfit(play, "c")
    play_rounds(play, 1)
    play.join("c")
    play_rounds(play, 3)
    assert short(play) == {}


def test_an_evaluator_that_comes_back_unusable_has_left() -> None:
    play = Play(pace={"rounds": 4})
    play.training("a", "b")
    play.join("a", role="evaluator")
    unfit(play, "a", role="evaluator")
    assert play.machine.state.evaluators == set()
    stale(play, lambda: unfit(play, "a", role="evaluator"))


# Without rounds.


def play_async(**fields: Any) -> Play:
    play = Play(rule="async-fedavg", **fields)
    play.training("a", "b")
    return play


def commit(play: Play, site: str, times: int = 1) -> None:
    for _ in range(times):
        play.update(play.tasks(Train)[site])
        play.merged()


def test_without_rounds_failures_are_compared_with_updates() -> None:
    play = play_async(pace={"updates": 20})
    for _ in range(6):
        play.fail(play.tasks(Train)["b"])
        commit(play, "a", 2)
        play.fail(play.tasks(Train)["b"])
        commit(play, "b")
    found = short(play)
    assert list(found) == ["b"]
    assert (found["b"].contributed, found["b"].asked, found["b"].failures) == (6, 18, 12)


def test_a_slow_site_with_one_update_among_many_is_not_named() -> None:
    play = play_async(pace={"updates": 50})
    commit(play, "a", 30)
    commit(play, "b")
    commit(play, "a", 19)
    assert play.machine.ended
    assert short(play) == {}


def test_a_site_whose_first_update_never_came_is_named() -> None:
    play = play_async(pace={"updates": 10})
    commit(play, "a", 10)
    assert play.machine.ended
    found = short(play)["b"]
    assert found.unfinished
    assert (found.contributed, found.asked) == (0, 0)


def test_a_site_that_joins_late_and_is_at_work_at_the_end_is_not_named() -> None:
    play = play_async(pace={"updates": 10})
    commit(play, "a", 4)
    commit(play, "b", 4)
    play.join("late")
    commit(play, "a", 2)
    assert play.machine.ended
    assert short(play) == {}


def test_a_site_that_is_left_alone_after_its_failures_missed_the_rest() -> None:
    play = play_async(pace={"updates": 40})
    commit(play, "b", 5)
    for _ in range(3):
        play.fail(play.tasks(Train)["b"])
    commit(play, "a", 35)
    found = short(play)["b"]
    assert (found.contributed, found.asked, found.missed, found.known) == (5, 8, 35, 40)
    assert found.absence == "it was not asked again after its failures"


def test_a_site_that_leaves_with_its_task_and_never_returns_is_named() -> None:
    play = play_async(pace={"updates": 10})
    play.leave("b")
    commit(play, "a", 10)
    found = short(play)["b"]
    assert (found.contributed, found.asked, found.reason) == (0, 1, "the site left")
    assert found.missed == 10


def test_updates_that_are_too_stale_are_failures() -> None:
    play = Play(rule="fedasync", pace={"updates": 30}, server={"max_staleness": 2})
    play.training("a", "b")
    for _ in range(3):
        commit(play, "a", 4)
        play.update(play.tasks(Train)["b"])
    found = short(play)["b"]
    assert (found.contributed, found.asked, found.failures) == (0, 3, 3)
    assert "stale" in found.reason


# Models that travel.


def test_where_models_travel_every_hop_counts() -> None:
    play = Travel(noise, **radfed(rounds=3, hops=4))
    play.fails = lambda task: task.site == "s3"
    play.run(*SITES, first=FIRST)
    assert play.machine.state.status == "completed"
    found = short(play)
    assert list(found) == ["s3"]
    assert found["s3"].contributed == 0
    assert found["s3"].asked == found["s3"].failures > 0


def test_where_models_travel_and_all_is_well_nobody_is_named() -> None:
    assert short(Travel(noise, **radfed(rounds=3, hops=4)).run(*SITES, first=FIRST)) == {}


# The end of a job, restarts, bounds.


def test_a_job_that_is_cancelled_in_its_first_round_names_nobody() -> None:
    play = Play(pace={"rounds": 4})
    play.training("a", "b")
    play.cancel()
    assert short(play) == {}


def test_a_final_failure_is_counted() -> None:
    play = Play(pace={"rounds": 4})
    tasks = play.training("a", "b")
    play.fail(tasks["b"], "no such column", final=True)
    assert short(play)["b"].reason == "no such column"


def test_the_account_survives_a_snapshot_in_the_middle() -> None:
    play = Play(pace={"rounds": 6}, sites={"min": 3})
    play.training("a", "b", "c")
    play_rounds(play, 3, "c")
    play.save()
    play_rounds(play, 2, "c")
    assert short(play)["c"].failures == 5
    assert play.again().state.participation == play.machine.state.participation


def test_the_account_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participation, "MOST_SITES", 3)
    play = Play(pace={"rounds": 2})
    play.training("a", "b")
    for number in range(5):
        site = f"x{number}"
        if number:
            stale(play, lambda site=site: unfit(play, site))  # type: ignore[misc]
        else:
            unfit(play, site, "why\n" * 1000)
    assert set(play.machine.state.participation) == {"a", "b", "x0"}
    assert len(play.machine.state.participation[SiteName("x0")].absence) <= 300
    assert "\n" not in play.machine.state.participation[SiteName("x0")].absence


def test_a_site_that_could_not_build_the_first_model_but_trains_is_not_named() -> None:
    play = Play(pace={"rounds": 2})
    play.join("a", "b")
    (init,) = play.tasks(Init).values()
    play.fail(init)
    (init,) = play.tasks(Init).values()
    play.update(init)
    play_rounds(play, 2)
    assert short(play) == {}


# In words.


@pytest.mark.parametrize(
    ("shortfall", "line"),
    [
        (
            Shortfall(site="a", contributed=0, asked=20, failures=20, reason="out of memory", known=20),
            "a contributed no update (20 were asked for): 20 failures, the last: out of memory",
        ),
        (
            Shortfall(site="a", contributed=0, asked=1, failures=1, reason="out of memory", known=1),
            "a contributed no update (one was asked for): out of memory",
        ),
        (
            Shortfall(site="a", contributed=3, asked=3, missed=17, known=20, absence="the site left"),
            "a contributed 3 of the 3 updates it was asked for: it missed 17 of 20 versions (the site left)",
        ),
        (
            Shortfall(site="a", contributed=0, asked=0, unfinished=True),
            "a contributed no update: its first update had not arrived when training stopped",
        ),
    ],
)
def test_a_shortfall_in_words(shortfall: Shortfall, line: str) -> None:
    assert shortfall_line(shortfall) == line


def test_many_sites_make_few_lines() -> None:
    many = tuple(
        Shortfall(site=f"s{n:03}", contributed=0, asked=1, failures=1, reason="no") for n in range(100)
    )
    view = JobView(job="j1", name="n", status="completed", warnings=("weigh: odd",), shortfalls=many)
    lines = list(shortfall_lines(view))
    assert len(lines) == 6
    assert lines[-1].startswith("95 more sites contributed nothing or little: s005, s006,")
    assert "`hansa job show j1 --json`" in lines[-1]
    assert max(map(len, lines)) < 200
    assert warning_lines(view) == ["weigh: odd", *lines]
