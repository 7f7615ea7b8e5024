"""The adaptive trigger of learners, and what the controller tells them (metis-dvw §4, §5, §9.6)."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from hansa.common.job.check import parse_job
from hansa.common.methods.adaptive import ADAPTIVE, Adaptive
from hansa.common.values.errors import InvalidJob
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine.effects import Effect, Pulse
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.adaptive import Staleness, Until
from hansa.learner.plugins.adaptive import Diverged, Trigger, change, is_failure
from tests.unit.engine.play import Play, job_spec

LOSSES = [1.0, 0.9, 0.895, 0.9, 0.89]  # the first is the received model's


def _epochs(losses: Sequence[float | None], loss: float = 0, tombstones: int = 0, **more: Any) -> int | None:
    """Return after which epoch a trigger stops on these losses; None: it goes on past the last."""
    found: Iterator[float | None] = iter(losses)
    steps, newest = more.pop("steps", 0), more.pop("newest", None)
    given = Adaptive(vc_loss=loss, tombstones=tombstones, epochs=4, **more)
    trigger = Trigger(given, 100, lambda: next(found), lambda: newest)
    return next((epoch for epoch in range(1, len(losses)) if trigger.enough(epoch, epoch * steps)), None)


def test_the_percentages_are_those_of_the_specification() -> None:
    changes = [change(before, now) for before, now in pairwise(LOSSES)]
    assert [round(percent, 3) for percent in changes] == [-10, -0.556, 0.559, -1.111]


@pytest.mark.parametrize(
    ("loss", "tombstones", "epoch"), [(1, 0, 2), (1, 1, 3), (1, 2, None), (0, 0, 3), (0, 1, None)]
)
def test_failures_beyond_those_allowed_end_a_cycle(loss: float, tombstones: int, epoch: int | None) -> None:
    assert _epochs(LOSSES, loss, tombstones) == epoch


def test_failures_need_not_follow_one_another() -> None:
    assert _epochs([1.0, 1.0, 0.5, 0.5, 0.2, 0.1], tombstones=1) == 3


@pytest.mark.parametrize(
    ("before", "now", "percent"),
    [
        (0.0, 0.0, 0.0),
        (0.0, 0.1, math.inf),
        (math.inf, 2.0, -math.inf),
        (2.0, 1.0, -50.0),
        (-2.0, -1.0, 50.0),
    ],
)
def test_a_change_is_defined_from_any_loss(before: float, now: float, percent: float) -> None:
    assert change(before, now) == percent


def test_a_fall_of_exactly_the_threshold_is_a_failure_and_without_threshold_every_fall_counts() -> None:
    assert is_failure(-1.0, 1.0)
    assert not is_failure(-1.01, 1.0)
    assert not is_failure(-1e-9, 0.0)
    assert is_failure(0.0, 0.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_a_number_fails_the_task(loss: float) -> None:
    with pytest.raises(Diverged, match="after epoch 2"):
        _epochs([1.0, 0.9, loss], tombstones=9)


def test_a_site_without_validation_data_makes_the_jobs_epochs() -> None:
    assert _epochs([None] * 9) == 4


def test_staleness_beyond_the_limit_ends_a_cycle_whatever_the_loss() -> None:
    falling = [1 / 2**n for n in range(9)]
    # 65 steps were committed by others since; with 30 own steps the effective staleness is 95.
    assert _epochs(falling, steps=10, newest=165, limit=94) == 3
    assert _epochs(falling, steps=10, newest=165, limit=95) == 4
    assert _epochs(falling, steps=10, newest=100, limit=35) == 4  # alone in the federation: its own steps
    assert _epochs(falling, steps=10, newest=None, limit=1) is None  # out of reach
    assert _epochs(falling, steps=10, newest=10**6) is None  # no limit


# What the controller tells.


def _given(task: Task) -> Adaptive:
    assert isinstance(task.work, Train)
    (plugin,) = task.work.plugins
    assert plugin.name == ADAPTIVE
    return Adaptive.model_validate(dict(plugin.args))


def _play(**until: Any) -> Play:
    """Return a job of two sites that train until it is enough."""
    play = Play(rule="async-fedavg", evaluate={"every": 1000}, train={"epochs": 4, "until": until})
    play.training("a", "b")
    return play


def _cycle(play: Play, site: str, steps: int) -> list[Effect]:
    play.update(play.tasks(Train)[site], steps=steps)
    return play.merged()


def test_thresholds_may_differ_by_group() -> None:
    slow = {"sites": ["b"], "tombstones": 1}
    play = _play(
        vc_loss=0, tombstones=4, max_epochs=50, groups={"slow": slow, "odd": {"sites": ["z"], "vc_loss": 3}}
    )
    tasks = play.tasks(Train)
    assert _given(tasks["a"]) == Adaptive(vc_loss=0, tombstones=4, epochs=4)
    assert _given(tasks["b"]) == Adaptive(vc_loss=0, tombstones=1, epochs=4)
    assert all(isinstance(task.work, Train) and task.work.epochs == 50 for task in tasks.values())


def test_a_site_of_a_group_that_has_not_joined_is_warned_of_once() -> None:
    play = _play(groups={"slow": {"sites": ["b", "be"], "tombstones": 0}})
    for _ in range(2):
        _cycle(play, "a", 3)
    told = [record.diagnostics for record in play.machine.state.history]
    assert told == [
        {},
        {"train": {"warning": "train.until: be of group slow has not joined (did you mean 'b'?)"}},
        {},
    ]


def test_effective_staleness_is_what_others_committed_and_the_sites_own_steps() -> None:
    play = Play(rule="async-fedavg", evaluate={"every": 1000}, sites={"min": 3}, train={"until": {}})
    play.training("a", "b", "c")
    _cycle(play, "a", 100)  # S_c = 100, and a has just received its model
    _cycle(play, "b", 40)
    _cycle(play, "c", 25)
    _cycle(play, "a", 30)
    record = play.machine.state.history[-1]
    assert record.staleness[SiteName("a")] == (2, 95)
    assert play.machine.state.steps == 195


def test_the_limit_is_the_median_of_the_sites_first_cycles_and_stays() -> None:
    play = _play()
    memory = play.machine.memories["train"]
    assert isinstance(memory, Staleness)
    for number in range(1, 21):
        assert memory.limits == {}
        assert _given(play.tasks(Train)["a"]).limit is None
        _cycle(play, "a", 10 * number)  # b commits nothing: the staleness is a's own steps
    assert memory.cycles[SiteName("a")] == [10 * number for number in range(1, 21)]
    assert memory.limits == {"a": 105.0}
    assert _given(play.tasks(Train)["a"]).limit == 105.0
    _cycle(play, "a", 5000)
    assert memory.limits == {"a": 105.0}


def test_every_site_has_a_limit_of_its_own_and_steps_of_others_count() -> None:
    play = _play(cycles=2)
    for site, steps in (("a", 10), ("b", 40), ("a", 20), ("b", 5)):
        _cycle(play, site, steps)
    memory = play.machine.memories["train"]
    assert isinstance(memory, Staleness)
    assert memory.cycles == {"a": [10, 40 + 20], "b": [10 + 40, 20 + 5]}
    assert {site: _given(task).limit for site, task in play.tasks(Train).items()} == {"a": 35.0, "b": 37.5}


def test_a_rolling_limit_goes_on_with_all_cycles() -> None:
    play = _play(cycles=2, rolling=True)
    for steps in (10, 20, 90):
        _cycle(play, "a", steps)
    memory = play.machine.memories["train"]
    assert memory == Staleness(cycles={SiteName("a"): [10, 20, 90]}, limits={SiteName("a"): 20.0})


def test_sites_that_train_hear_of_every_merge_once_a_limit_is_set() -> None:
    play = _play(cycles=2)
    assert [effect for effect in _cycle(play, "a", 10) if isinstance(effect, Pulse)] == []
    assert [effect for effect in _cycle(play, "a", 20) if isinstance(effect, Pulse)] == [
        Pulse(SiteName("b"), 30)
    ]
    assert [effect for effect in _cycle(play, "b", 5) if isinstance(effect, Pulse)] == [
        Pulse(SiteName("a"), 35)
    ]


def test_limits_survive_a_restart() -> None:
    play = _play(cycles=2)
    _cycle(play, "a", 10)
    play.save()
    _cycle(play, "a", 20)
    again = play.again()
    assert again.memories == play.machine.memories
    assert again.state == play.machine.state


# The job file.


def test_the_adaptive_rule_needs_no_words_and_others_can_have_them() -> None:
    rule = compose(job_spec(rule="async-dvw-adaptive"))
    until = rule.train
    assert isinstance(until, Until)
    assert (until.until.vc_loss, until.until.tombstones, until.until.max_epochs, until.until.cycles) == (
        1,
        1,
        100,
        20,
    )
    assert not isinstance(compose(job_spec(rule="async-dvw")).train, Until)
    assert isinstance(compose(job_spec(rule="sync-dvw", train={"until": {}})).train, Until)


def test_semisynchronous_rounds_leave_nothing_to_decide() -> None:
    with pytest.raises(InvalidJob, match=r"train\.until: pace: semisync sets the steps of each site"):
        compose(job_spec(rule="semisync-fedavg", train={"until": {}}))


def test_without_validation_data_there_is_nothing_to_go_by() -> None:
    with pytest.raises(
        InvalidJob, match=r"validation\.fraction: train\.until needs validation data at the sites"
    ):
        compose(job_spec(rule="async-fedavg", train={"until": {}}, validation={"fraction": 0}))


def test_a_group_of_sites_that_the_job_does_not_have_is_refused() -> None:
    until = {"groups": {"slow": {"sites": ["west", "nort"], "vc_loss": 2}}}
    names = {"names": ["north", "west"], "min": 2}
    with pytest.raises(InvalidJob) as caught:
        compose(job_spec(train={"until": until}, sites=names))
    assert str(caught.value) == (
        "train.until.groups.slow.sites: nort is not among the job's sites.names (did you mean 'north'?)"
    )
    compose(job_spec(train={"until": until}))  # the sites are not known yet


@pytest.mark.parametrize(
    ("until", "problem"),
    [
        ({"tombstone": 1}, "train.until.tombstone: unknown key (did you mean 'tombstones'?)"),
        ({"vc_loss": -1}, "train.until.vc_loss: input should be greater than or equal to 0 (given: -1)"),
        (
            {"groups": {"x": {"sites": ["a"]}, "y": {"sites": ["a"]}}},
            "train.until: site a is in two groups: x and y",
        ),
        ({"groups": {"x": {"vc_loss": 1}}}, "train.until.groups.x.sites: is required"),
        (
            {"groups": {"x": {"sites": ["a"], "loss": 1}}},
            "train.until.groups.x.loss: unknown key (did you mean 'vc_loss'?)",
        ),
        ({"groups": {"x": 1}}, "train.until.groups.x: should be a section of keys and values (given: 1)"),
    ],
)
def test_wrong_words_are_named(until: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_job({"app": "a.py:app", "train": {"until": until}})
    assert caught.value.problems == [problem]
