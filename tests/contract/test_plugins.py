"""What every plugin of the controller must do, whoever wrote it: the contract of each point, for each kind."""

import json
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

import hansa.controller.rules  # noqa: F401 - registers the plugins
from hansa.common.job.spec import JobSpec
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.registry import POINTS, Plugin
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.tasks import Evaluation, OptimizerSpec, Task, Train, UpdateFacts, ValidationSpec
from hansa.controller.plugin.arithmetic import (
    Aggregator,
    Coordinatewise,
    MergeInfo,
    Selecting,
    ServerUpdate,
    TooFew,
)
from hansa.controller.plugin.parts import EvalPlan, Pacer, Part, Policy, Sampler, Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rulebook.compose import compose
from tests.unit.engine import evaluated_updates, examined

CLASSES: dict[str, type[Part]] = {
    "pace": Pacer,
    "sample": Sampler,
    "local": Policy,
    "layers": Policy,
    "weigh": Weigher,
    "merge": Aggregator,
    "server": ServerUpdate,
    "evaluate": EvalPlan,
}
SITES = tuple(SiteName(name) for name in "abcdefg")
OFTEN = 20
KEEPING = (evaluated_updates.__name__, examined.__name__)  # whose plugins keep the contract, too


def every(point: str) -> list[Any]:
    """Return a plugin of each kind at a point, made of its defaults."""
    return [pytest.param(cls(), id=kind) for kind, cls in sorted(registered(point).items())]


def registered(point: str) -> dict[str, type[plugins.Plugin]]:
    """Return the plugins of Hansa and of installed packages; some tests register odd ones of their own."""
    odd = {kind for kind, cls in plugins.kinds(point).items() if cls.__module__.startswith("tests.")}
    return {
        kind: cls
        for kind, cls in plugins.kinds(point).items()
        if kind not in odd or cls.__module__ in KEEPING
    }


def everywhere() -> list[Any]:
    kinds = [(point, kind, cls) for point in POINTS for kind, cls in sorted(registered(point).items())]
    return [pytest.param(point, cls(), id=f"{point}-{kind}") for point, kind, cls in kinds]


def view(round_: int = 1, version: int = 3, sites: tuple[SiteName, ...] = SITES) -> View:
    return View(
        sites=sites,
        busy=frozenset(),
        examples={site: 10 * (i + 1) for i, site in enumerate(sites)},
        evaluators=sites,
        version=version,
        round=round_,
        steps=100,
        seed=7,
        now=1000.0,
    )


def work() -> Train:
    return Train(
        model=ModelKey("j/v3"),
        version=3,
        committed=90,
        epochs=2,
        batch_size=8,
        optimizer=OptimizerSpec(lr=0.1),
    )


def contribution(site: SiteName, number: int, n_train: int = 10) -> Contribution:
    task = Task(
        id=TaskId(f"j-{number}"),
        job=JobId("j"),
        site=site,
        round=1,
        app="app.py:app",
        seed=7,
        validation=ValidationSpec(),
        work=work(),
    )
    facts = UpdateFacts(n_train=n_train, n_used=n_train, steps=3, epochs=1, seconds=0.1, loss=0.5)
    found = Evaluation(n=4, loss_sum=2.0, confusion=((2, 1), (0, 1)))
    reports = {other: found for other in SITES if other != site}
    return Contribution(
        task=task, model=ModelKey(f"j/u{number}"), digest="d", facts=facts, reports=reports, staleness=(2, 30)
    )


# All points.


@pytest.mark.parametrize(("point", "plugin"), everywhere())
def test_a_plugin_is_a_frozen_value_that_explains_itself(point: str, plugin: Plugin) -> None:
    assert isinstance(plugin, CLASSES[point])
    assert (plugin.point, plugin.kind) == (
        point,
        next(k for k, c in plugins.kinds(point).items() if c is type(plugin)),
    )
    assert (type(plugin).__doc__ or "").strip(), "its docstring is what `hansa rules show` prints"
    for name, field in type(plugin).model_fields.items():
        assert field.description, f"{name}: what it means is what `hansa rules show` prints"
    assert type(plugin).model_validate(plugin.model_dump(by_alias=True)) == plugin
    with pytest.raises(ValidationError):
        type(plugin).model_validate({"no_such_parameter": 1})
    with pytest.raises(ValidationError):
        plugin.anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("point", "plugin"), everywhere())
def test_what_a_plugin_remembers_survives_a_snapshot(point: str, plugin: Part) -> None:
    memory = plugin.begin()
    assert isinstance(memory, BaseModel)
    assert plugin.begin() is not memory, "two jobs must not share a memory"
    text = memory.model_dump_json()
    assert type(memory).model_validate_json(text) == memory
    json.loads(text)


@pytest.mark.parametrize("name", sorted(plugins.rules()))
def test_a_rule_fills_every_point_and_has_nothing_against_itself(name: str) -> None:
    rule = plugins.rules()[name]
    assert rule.summary
    assert rule.paper
    composed = compose(JobSpec(app="app.py:app", rule=name))
    assert set(composed.parts) >= set(POINTS)
    for point, part in composed.parts.items():
        assert part.point == point
    assert JobSpec.model_validate_json(JobSpec(app="app.py:app", rule=name).model_dump_json()).rule == name


# Each point.


@pytest.mark.parametrize("sampler", every("sample"))
def test_a_sampler_draws_sites_that_are_there_without_repeating_any_and_always_the_same(
    sampler: Sampler,
) -> None:
    for round_ in range(1, OFTEN):
        chosen = list(sampler.choose(sampler.begin(), view(round_)))
        assert set(chosen) <= set(SITES)
        assert len(set(chosen)) == len(chosen)
        assert chosen
        assert chosen == list(sampler.choose(sampler.begin(), view(round_)))
        without = sampler.choose(sampler.begin(), view(round_), exclude=frozenset(SITES[:3]))
        assert not set(without) & set(SITES[:3])


@pytest.mark.parametrize("weigher", every("weigh"))
def test_a_weigher_gives_one_finite_weight_for_each_contribution_whatever_their_order(
    weigher: Weigher,
) -> None:
    for count in (1, 2, 7):
        given = [contribution(site, i, n_train=5 + i) for i, site in enumerate(SITES[:count])]
        weights = weigher.weigh(weigher.begin(), given, view())
        assert weights.shape == (count,)
        assert np.isfinite(weights).all()
        assert (weights >= 0).all()
        turned = weigher.weigh(weigher.begin(), given[::-1], view())
        assert turned.tolist() == weights[::-1].tolist()
    for request in weigher.requests(weigher.begin(), given[0], view()):
        assert request.seconds > 0


@pytest.mark.parametrize("policy", [*every("local"), *every("layers")])
def test_a_policy_leaves_a_task_that_can_be_done(policy: Policy) -> None:
    before = work()
    shaped = policy.shape(policy.begin(), SITES[0], before, view())
    assert (shaped.model, shaped.version) == (before.model, before.version)
    assert shaped == policy.shape(policy.begin(), SITES[0], before, view())
    assert Train.model_validate_json(shaped.model_dump_json()) == shaped


@pytest.mark.parametrize("pacer", every("pace"))
def test_a_pacer_says_how_much_there_is_to_do(pacer: Pacer) -> None:
    assert pacer.rounds_asked() >= 1
    assert pacer.provides <= {"barrier", "slots"}


@pytest.mark.parametrize("aggregator", every("merge"))
def test_an_aggregator_does_not_care_for_the_order_and_stays_within_what_it_is_given(
    aggregator: Aggregator,
) -> None:
    rng = np.random.default_rng(1)
    assert not aggregator.kept or aggregator.remembers, "sums can be kept only of what is remembered"
    if isinstance(aggregator, Coordinatewise):
        for count in range(2, 9):
            rows = rng.standard_normal((count, 40))
            made = aggregator.combine(rows.copy())
            assert made.shape == (40,)
            assert (made >= rows.min(axis=0)).all()
            assert (made <= rows.max(axis=0)).all()
            assert made.tobytes() == aggregator.combine(rows[rng.permutation(count)].copy()).tobytes()
            alike = np.repeat(rows[:1], count, axis=0)
            np.testing.assert_array_max_ulp(aggregator.combine(alike.copy()), rows[0], 1)
    if isinstance(aggregator, Selecting):
        for count in range(1, 12):
            points = rng.standard_normal((count, 3))
            apart = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
            try:
                chosen = list(aggregator.select(apart))
            except TooFew:
                continue
            assert chosen
            assert len(set(chosen)) == len(chosen)
            assert set(chosen) <= set(range(count))
            order = rng.permutation(count)
            turned = aggregator.select(apart[np.ix_(order, order)])
            assert {int(order[i]) for i in turned} == set(chosen)


@pytest.mark.parametrize("server", every("server"))
def test_a_server_update_treats_every_number_alike_and_changes_nothing_that_it_is_given(
    server: ServerUpdate,
) -> None:
    rng = np.random.default_rng(2)
    current, proposal = rng.standard_normal((2, 50))
    moments = {name: np.full(50, first) for name, first in server.moments.items()}
    for array in (current, proposal, *moments.values()):
        array.setflags(write=False)
    for number in range(1, 4):
        info = MergeInfo(version=number, staleness=number, contributions=1)
        made, after = server.step(current, proposal, moments, info)
        assert made.shape == (50,)
        assert made.dtype == np.float64
        assert np.isfinite(made).all()
        assert set(after) == set(server.moments)
        halves = [
            server.step(current[part], proposal[part], {n: m[part] for n, m in moments.items()}, info)
            for part in (slice(0, 13), slice(13, 50))
        ]
        assert np.concatenate([half[0] for half in halves]).tobytes() == made.tobytes()
        for name in after:
            assert np.concatenate([half[1][name] for half in halves]).tobytes() == after[name].tobytes()
        moments = dict(after)
    same, _ = server.step(current, current, {n: np.full(50, f) for n, f in server.moments.items()}, info)
    np.testing.assert_allclose(same, current, rtol=1e-12)  # where nobody wants to go anywhere, nobody goes


@pytest.mark.parametrize("server", every("server"))
def test_only_a_plain_server_update_may_be_skipped(server: ServerUpdate) -> None:
    proposal = np.arange(5.0)
    if server.plain:
        made, _ = server.step(np.zeros(5), proposal, {}, MergeInfo(1, 0, 1))
        assert made.tobytes() == proposal.tobytes()
        assert not server.moments
    assert not server.refuses(0), "an update of the newest model is always taken"


@pytest.mark.parametrize("plan", every("evaluate"))
def test_an_evaluation_plan_asks_who_is_here_and_does_not_care_who_answers_first(plan: EvalPlan) -> None:
    for version in range(1, OFTEN):
        wanted = list(plan.due(plan.begin(), view(version=version)))
        assert set(wanted) <= set(SITES)
        assert len(set(wanted)) == len(wanted)
    assert not list(plan.due(plan.begin(), view(sites=())))
    assert plan.timeout > 0
    assert plan.min_coverage == 1, "metrics count if they are over all examples, unless a job says otherwise"
    assert plan.combine({}) == {}
    for counts in ({"confusion": ((2, 1), (0, 1))}, {"labels": ((2, 1, 0), (0, 0, 4))}, {}):
        found = {
            site: Evaluation(n=4, loss_sum=0.1 * (i + 1), metrics={"auc": 0.1 * i}, **counts)
            for i, site in enumerate(SITES)
        }
        metrics = plan.combine(found)
        assert plan.combine(dict(reversed(found.items()))) == metrics
        assert all(isinstance(value, float) for value in metrics.values())
    plan.combine(
        {SITES[0]: Evaluation(n=1, loss_sum=float("inf")), SITES[1]: Evaluation(n=1, loss_sum=float("-inf"))}
    )
    plan.combine({SITES[0]: Evaluation(n=0, loss_sum=0.0)})
