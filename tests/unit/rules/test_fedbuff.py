"""FedBuff: buffers of updates, weights by staleness, and what does not go with them (fedbuff)."""

from typing import Any

import numpy as np
import pytest

from hansa.common.job.spec import JobSpec
from hansa.common.plugins.registry import fill, rules
from hansa.common.values.errors import InvalidJob, Stale
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine.effects import Effect
from hansa.controller.plugin.arithmetic import MergeInfo
from hansa.controller.plugin.samples import contribution, view
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.baselines.fedasync import Mix
from hansa.controller.rules.baselines.fedopt import Momentum
from hansa.controller.rules.baselines.staleness import ByStaleness
from tests.unit.engine.play import Play, dropped, endings, merges, sent

INFO = MergeInfo(1, 0, 1)
FIRST = "j1/u1"  # version 0, which a site has built
SCORED: dict[str, Any] = {"weigh": {"kind": "dvw", "min_coverage": 0}, "merge": {"normalise": "weights"}}


def started(*sites: str, buffer: int = 3, updates: int = 20, **more: Any) -> Play:
    play = Play(**{"rule": "fedbuff", "pace": {"updates": updates, "buffer": buffer}, **more})
    play.training(*sites)
    return play


def task_of(play: Play, site: str) -> Task:
    return play.tasks(Train)[site]


def base_of(play: Play, site: str) -> int:
    work = task_of(play, site).work
    assert isinstance(work, Train)
    return work.version


def update(play: Play, *sites: str) -> list[Effect]:
    """Let updates arrive one after another; return the effects of the last."""
    effects: list[Effect] = []
    for site in sites:
        effects = play.update(task_of(play, site))
    return effects


def asked(effects: list[Effect]) -> list[str]:
    return [task.site for task in sent(effects)]


def problems(**fields: Any) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        compose(JobSpec.model_validate({"app": "app.py:app", **fields}))
    return caught.value.problems


def warned(**fields: Any) -> list[str]:
    spec = JobSpec.model_validate({"app": "app.py:app", **fields})
    return [f"{'.'.join(map(str, place))}: {why}" for place, why in compose(spec).warnings(spec)]


# Buffers.


def test_updates_are_merged_when_the_buffer_is_full_no_matter_whose_they_are() -> None:
    play = started("a", "b")
    assert not merges(update(play, "a", "b"))
    (merge,) = merges(update(play, "a"))
    assert [member.site for member in merge.added] == ["a", "b", "a"]
    play.merged()
    record = play.machine.state.history[-1]
    assert [(u.site, u.weight, u.staleness[0]) for u in record.updates] == [
        ("a", 1.0, 0),
        ("b", 1.0, 0),
        ("a", 1.0, 0),
    ]
    assert len({u.task for u in record.updates}) == 3
    assert record.contributions == {"a": 2.0, "b": 1.0}


def test_a_site_goes_on_at_once_from_the_newest_model() -> None:
    play = started("a", "b")
    assert asked(update(play, "a")) == ["a"]
    assert (task_of(play, "a").round, base_of(play, "a")) == (2, 0)
    update(play, "a")
    assert asked(update(play, "a")) == [], "its update fills the buffer: the newest model is being made"
    assert asked(play.merged()) == ["a"], "and it is asked once, though three updates are its own"
    assert (task_of(play, "a").round, base_of(play, "a")) == (4, 1)


def test_a_site_that_returns_while_a_merge_is_under_way_does_not_wait_for_it() -> None:
    play = started("a", "b", "c", buffer=2)
    update(play, "a", "b")
    assert asked(update(play, "c")) == ["c"]
    assert base_of(play, "c") == 0
    assert asked(play.merged()) == ["b"], "a and c have gone on already"


def test_weights_fall_with_the_versions_that_were_made_meanwhile() -> None:
    play = started("a", "b", buffer=2)
    for _ in range(3):
        update(play, "a", "a")
        play.merged()
    assert (base_of(play, "b"), base_of(play, "a")) == (0, 3)
    (merge,) = merges(update(play, "b", "a"))
    assert [(m.site, m.weight, m.base) for m in merge.added] == [("b", 0.5, FIRST), ("a", 1.0, "j1/v3")]
    play.merged()
    assert [u.staleness[0] for u in play.machine.state.history[-1].updates] == [3, 0]


def test_updates_are_counted_and_not_merges_and_the_last_merge_may_be_smaller() -> None:
    play = started("a", "b", buffer=3, updates=5)
    update(play, "a", "b", "a")
    late = task_of(play, "b")
    play.merged()
    update(play, "a")
    (merge,) = merges(update(play, "a"))
    assert [member.site for member in merge.added] == ["a", "a"]
    with pytest.raises(Stale, match="the job has its 5 updates"):
        play.update(late)
    assert endings(play.merged()) == [("completed", "all 5 updates are merged")]
    assert play.machine.rule.rounds_asked == 2
    assert play.machine.rule.pace.unit == "merge"


def test_a_site_that_left_with_an_update_in_the_buffer_is_asked_when_it_is_back() -> None:
    play = started("a", "b")
    task = task_of(play, "a")
    play.leave("a")
    assert asked(play.update(task)) == [], "it brought its update, and is not connected"
    assert asked(play.join("a")) == ["a"]
    (merge,) = merges(update(play, "b", "b"))
    assert [member.site for member in merge.added] == ["a", "b", "b"]


def test_a_job_fails_when_every_site_fails_though_there_are_updates_in_the_buffer() -> None:
    play = started("a", "b")
    update(play, "a")
    for site in ("a", "b"):
        for _ in range(3):
            effects = play.fail(task_of(play, site))
    assert endings(effects) == [("failed", "all sites failed 3 times in a row; a: out of memory")]


def evaluated(**more: Any) -> Play:
    """Return a job whose updates are evaluated at c before they are weighed."""
    play = Play(rule="fedbuff", pace={"updates": 9, "buffer": 2}, evaluate={"every": 100}, **SCORED, **more)
    play.join("c", role="evaluator")
    play.training("a", "b")
    return play


def test_updates_in_the_buffer_are_evaluated_as_they_arrive() -> None:
    play = evaluated()
    assert [type(task.work) for task in sent(update(play, "b"))] == [Evaluate, Train]


def test_two_updates_of_one_site_have_scores_of_their_own() -> None:
    play = evaluated()
    update(play, "b", "b")
    for right, task in zip((5, 10), play.evaluations(), strict=True):
        play.report(task, right=right)
    play.merged()
    record = play.machine.state.history[-1]
    assert {name: score.value for name, score in record.scores.items()} == {
        "b (update 1)": 0.5,
        "b (update 2)": 1.0,
    }
    assert [u.weight for u in record.updates] == [0.5, 1.0]


def test_an_update_too_stale_for_the_server_is_left_out_and_the_others_of_its_site_are_not() -> None:
    play = evaluated(server={"kind": "mix", "max_staleness": 0})
    update(play, "a", "a")
    waiting = play.evaluations()
    update(play, "b")  # from version 0, which is the newest: the merge waits for evaluations
    for task in waiting:
        play.report(task)
    play.merged()
    update(play, "b")  # from version 0, and refused
    effects = update(play, "b")  # from version 1
    for task in play.evaluations():
        effects = play.report(task)
    (merge,) = merges(effects)
    assert [(member.site, member.weight, member.base) for member in merge.added] == [
        ("b", 0.0, FIRST),
        ("b", 0.5, "j1/v1"),
    ]


# Bases.


def test_the_models_that_updates_started_from_are_kept_until_they_are_merged_and_can_be_checked() -> None:
    play = started("a", "b", buffer=1)
    play.update(task_of(play, "a"))
    play.merged()
    play.update(task_of(play, "a"))
    assert FIRST not in dropped(play.merged()), "b trains it"
    (merge,) = merges(play.update(task_of(play, "b")))
    assert FIRST in merge.reads
    assert FIRST not in dropped(play.merged()), "version 3 can be computed again"
    assert {"j1/v2", "j1/v3"} <= play.machine.state.models
    update(play, "a")
    assert FIRST in dropped(play.merged())


def test_a_base_is_kept_for_an_update_that_waits_in_the_buffer() -> None:
    play = started("a", "b", buffer=3)
    update(play, "b", "a", "a")
    slow = task_of(play, "b")
    play.merged()
    play.update(slow)
    assert list(play.machine.state.bases.values()) == [FIRST]
    update(play, "a", "a")
    play.merged()
    assert play.machine.state.bases == {}
    assert play.machine.outdated_indices() == []


# Company.


def test_a_buffer_waits_for_as_many_sites_as_a_model_needs() -> None:
    play = started("a", "b", "c", buffer=3, sites={"min": 3, "together": 3})
    assert asked(update(play, "a", "b")) == ["b"]
    assert update(play, "a") == [], "three updates of two sites: a waits"
    assert asked(update(play, "b")) == []
    (merge,) = merges(update(play, "c"))
    assert [member.site for member in merge.added] == ["a", "b", "a", "b", "c"]
    assert asked(play.merged()) == ["a", "b", "c"]


def test_a_site_that_waits_for_others_is_not_asked_when_an_earlier_merge_is_done() -> None:
    play = started("a", "b", buffer=2, sites={"min": 2, "together": 2})
    update(play, "a", "b")  # a merge starts, and a has gone on
    update(play, "a", "a")  # which fills the next buffer alone
    assert asked(play.merged()) == ["b"]
    assert merges(update(play, "b"))


def test_a_buffer_does_not_count_the_sites_of_the_last_one() -> None:
    play = started("a", "b", buffer=2, sites={"min": 2, "together": 2})
    update(play, "a", "b")
    play.merged()
    update(play, "a")
    assert not merges(update(play, "a"))
    assert merges(update(play, "b"))


def test_the_last_updates_wait_for_enough_sites_too() -> None:
    play = started("a", "b", buffer=2, updates=3, sites={"min": 2, "together": 2})
    update(play, "a", "b")
    play.merged()
    assert not merges(update(play, "a")), "the job has its three updates, but the last is of one site"
    assert merges(update(play, "b"))
    assert endings(play.merged()) == [("completed", "all 3 updates are merged")]
    assert {u.site for u in play.machine.state.history[-1].updates} == {"a", "b"}


# Weights and the server's learning rate.


@pytest.mark.parametrize("function", ["constant", "polynomial", "hinge"])
@pytest.mark.parametrize("more", [{}, {"a": 0.25}, {"b": 1}])
def test_weights_fall_as_the_shares_of_fedasync_do(function: str, more: dict[str, Any]) -> None:
    weigher = ByStaleness.model_validate({"function": function, **more})
    mix = Mix.model_validate({"alpha": 1.0, "staleness": function, **more})
    updates = [contribution("a", t).model_copy(update={"staleness": (t, 9)}) for t in range(9)]  # type: ignore[arg-type]
    weights = weigher.weigh(weigher.begin(), updates, view())
    assert weights.tolist() == [mix.share(t) for t in range(9)]


def test_the_rule_weighs_by_one_over_the_root_of_staleness_plus_one() -> None:
    weigher = fill("weigh", rules()["fedbuff"], None)
    assert isinstance(weigher, ByStaleness)
    updates = [contribution("a", t).model_copy(update={"staleness": (t, 9)}) for t in (0, 3, 8)]  # type: ignore[arg-type]
    assert weigher.weigh(weigher.begin(), updates, view()) == pytest.approx([1, 1 / 2, 1 / 3])


def test_a_learning_rate_of_the_server_carries_nothing_on() -> None:
    server = fill("server", rules()["fedbuff"], {"lr": 0.5})
    assert isinstance(server, Momentum)
    assert server.moments == {}
    current, proposal = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    assert server.step(current, proposal, {}, INFO)[0].tolist() == [2.0, 1.5]


def test_a_learning_rate_of_1_takes_the_proposal_as_it_is() -> None:
    server = fill("server", rules()["fedbuff"], None)
    assert isinstance(server, Momentum)
    current, proposal = np.array([1.0]), np.array([1e-30])
    assert server.step(current, proposal, {}, INFO)[0].tolist() == [1e-30]


# What does not go together.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rule": "async-fedavg", "pace": {"buffer": 2}},
            "merge: incremental does not go with pace async: only a site's last update counts, but a buffer",
        ),
        (
            {"rule": "fedbuff", "merge": {"kind": "latest"}},
            "merge: latest does not go with pace async: only a site's last update counts",
        ),
        (
            {"rule": "fedbuff", "weigh": {"kind": "examples"}},
            "weigh: examples does not go with merge delta: its weights are not factors of at most 1",
        ),
        (
            {"rule": "radfed", "merge": {"kind": "delta"}},
            "pace: redistribute does not go with merge delta: the last hop is only a part",
        ),
        (
            {"rule": "fedbuff", "pace": {"buffer": 2}, "sites": {"min": 3, "together": 3}},
            "sites.together: pace async with merge delta makes a model of 2 updates; use pace.buffer 3",
        ),
        (
            {"rule": "fedbuff", "pace": {"updates": 2}, "sites": {"min": 3, "together": 3}},
            "pace.updates: 2 updates cannot come from 3 sites",
        ),
        (
            {"rule": "fedbuff", "merge": {"kind": "median"}},
            "pace: async does not go with merge median: without rounds, most updates of a merge may be one",
        ),
        ({"rule": "fedbuff", "sample": {"kind": "uniform"}}, "sample: uniform does not go with pace async"),
        ({"rule": "fedbuff", "weigh": {"kind": "fusion"}}, "merge: delta does not go with weigh fusion"),
        (
            {"rule": "divide", "merge": {"kind": "delta"}, "layers": {"restart": True}},
            "merge: delta does not go with layers divide: after a restart",
        ),
        (
            {"rule": "fedbuff", "pace": {"buffer": 0}},
            "pace.buffer: input should be greater than or equal to 1",
        ),
        ({"rule": "fedbuff", "merge": {"normalise": "sum"}}, "merge.normalise: input should be 'count' or"),
        ({"rule": "fedbuff", "weigh": {"function": "linear"}}, "weigh.function: input should be 'constant'"),
    ],
)
def test_what_does_not_go_with_a_buffer_or_with_differences_is_refused_with_the_reason(
    fields: dict[str, Any], message: str
) -> None:
    found = problems(**fields)
    assert any(problem.startswith(message) for problem in found), found


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rule": "fedbuff", "pace": {"buffer": 1}, "merge": {"normalise": "weights"}},
            "merge.normalise: of a single update the weight makes no difference",
        ),
        (
            {"rule": "fedavg", "weigh": {"kind": "staleness"}},
            "weigh: staleness: in a round no update is stale",
        ),
        (
            {"rule": "fedbuff", "pace": {"updates": 9}},
            "pace.buffer: 9 updates never fill it, so there is a single merge",
        ),
    ],
)
def test_what_makes_no_difference_is_warned_of(fields: dict[str, Any], message: str) -> None:
    found = warned(**fields)
    assert any(warning.startswith(message) for warning in found), found


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": "fedbuff"},
        {"rule": "fedbuff", "pace": {"buffer": 1}},
        {"rule": "fedbuff", "pace": {"buffer": 1}, "server": {"kind": "plain"}},
        {"rule": "fedbuff", "weigh": {"kind": "examples"}, "merge": {"normalise": "weights"}},
        {"rule": "fedbuff", "server": {"lr": 2.0, "beta": 0.3}},
        {"rule": "fedbuff", "server": {"kind": "adam"}},
        {"rule": "fedbuff", "merge": {"kind": "mean"}, "server": {"kind": "mix"}},
        {"rule": "fedavg", "merge": {"kind": "delta", "normalise": "weights"}},
    ],
)
def test_what_goes_together_is_accepted_without_a_word(fields: dict[str, Any]) -> None:
    assert warned(**fields) == []
