"""The contract of the controller's plugins as checks that run on any of them: see `hansa.plugin.testing`."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from hansa.common.job.duration import SPELLING
from hansa.common.plugins.registry import Plugin
from hansa.common.plugins.testing import require
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Train
from hansa.controller.plugin.arithmetic import (
    Additive,
    Aggregator,
    Coordinatewise,
    MergeInfo,
    Selecting,
    ServerUpdate,
    TooFew,
)
from hansa.controller.plugin.auxiliary import Auxiliary
from hansa.controller.plugin.parts import Nothing, Pacer, Part, Sampler, Weigher
from hansa.controller.plugin.plans import EvalPlan
from hansa.controller.plugin.policies import Duration, Policy
from hansa.controller.plugin.samples import SITES, contribution, view, work

Check = Callable[[Any], None]
ROUNDS = 20


# Every point.


def explains_itself(part: Part[Any]) -> None:
    """Every parameter of a part has a description, which `hansa rules show` prints."""
    for name, field in type(part).model_fields.items():
        require(part, bool(field.description), f"{name} has no description")


def remembers_through_a_snapshot(part: Part[Any]) -> None:
    """A part's memory has the type that it names, belongs to one job, and survives a snapshot."""
    memory = part.begin()
    require(part, isinstance(memory, BaseModel), f"begin() returned {memory!r:.100}, not a pydantic model")
    expected = memory_type(type(part))
    require(part, isinstance(memory, expected), f"begin() returned {memory!r:.100}, not {expected.__name__}")
    require(part, part.begin() is not memory, "two jobs share a memory")
    text = memory.model_dump_json()
    json.loads(text)
    require(
        part, type(memory).model_validate_json(text) == memory, "its memory changes on the way through JSON"
    )


def declares_auxiliary_tensors_once(part: Part[Any]) -> None:
    """A part declares sets of auxiliary tensors with different names."""
    declared = part.auxiliary
    kinds = isinstance(declared, tuple) and all(isinstance(each, Auxiliary) for each in declared)
    require(part, kinds, f"its auxiliary tensors are {declared!r:.100}, not a tuple of Auxiliary")
    names = [each.name for each in declared]
    require(part, len(set(names)) == len(names), f"two of its sets of auxiliary tensors are called {names}")


def memory_type(cls: type[Part[Any]]) -> type[BaseModel]:
    """Return the type parameter of a plugin: `Worth` of `class Dvw(Weigher[Worth])`."""
    for base in cls.__mro__:
        arguments = getattr(base, "__pydantic_generic_metadata__", {}).get("args", ())
        if arguments and isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
            return arguments[0]
    return Nothing


# Each point.


def draws_connected_sites(sampler: Sampler[Any]) -> None:
    """A sampler draws connected sites, none twice, and the same ones when it is asked again."""
    for round_ in range(1, ROUNDS):
        chosen = list(sampler.choose(sampler.begin(), view(round_)))
        require(sampler, bool(chosen), "it drew no site")
        require(sampler, set(chosen) <= set(SITES), f"it drew {chosen}: not all of them are connected")
        require(sampler, len(set(chosen)) == len(chosen), f"it drew {chosen}: one of them twice")
        again = list(sampler.choose(sampler.begin(), view(round_)))
        require(sampler, chosen == again, f"it drew {chosen} and then {again} in the same round")
        without = sampler.choose(sampler.begin(), view(round_), exclude=frozenset(SITES[:3]))
        require(sampler, not set(without) & set(SITES[:3]), f"it drew {without}: some were excluded")
        require(sampler, not sampler.takes_all or set(chosen) == set(SITES), "it does not take all sites")


def probes_connected_sites(sampler: Sampler[Any]) -> None:
    """A sampler has connected sites probed, none twice, and draws sites whatever they have found."""
    for round_ in range(1, ROUNDS):
        state = sampler.begin()
        asked = list(sampler.to_probe(state, view(round_)))
        sound = set(asked) <= set(SITES) and len(set(asked)) == len(asked)
        require(sampler, sound, f"it probes {asked}: one of them twice, or one that is not connected")
        require(sampler, not asked or sampler.probe is not None, "it probes sites, but names no plugin")
        for site, result in zip(asked, (1.0, -1.0, 1e300, float("nan")), strict=False):
            sampler.probed(state, site, result)
        sampler.draw(state, view(round_))


def gives_every_contribution_a_weight(weigher: Weigher[Any]) -> None:
    """A weigher gives every contribution one finite weight, whatever their order."""
    for count in (1, 2, 7):
        contributions = [contribution(site, i, n_train=5 + i) for i, site in enumerate(SITES[:count])]
        weights = weigher.weigh(weigher.begin(), contributions, view())
        require(weigher, weights.shape == (count,), f"{weights} are not {count} weights")
        require(weigher, bool(np.isfinite(weights).all()), f"{weights} are not finite")
        require(weigher, bool((weights >= 0).all()), f"{weights} are not all ≥ 0")
        require(weigher, not weigher.equal or len(set(weights.tolist())) == 1, f"{weights} are not equal")
        reversed_ = weigher.weigh(weigher.begin(), contributions[::-1], view())
        require(weigher, reversed_.tolist() == weights[::-1].tolist(), "the order of contributions matters")
    for loss in (0.0, math.inf, math.nan):  # NaN: the app trains by a function of its own
        odd = [contribution(SITES[0], 0), contribution(SITES[1], 1, loss=loss)]
        weights = weigher.weigh(weigher.begin(), odd, view())
        require(
            weigher,
            bool(np.isfinite(weights).all() and (weights >= 0).all()),
            f"a site that reports the loss {loss} leads to the weights {weights}",
        )
    for request in weigher.requests(weigher.begin(), contributions[0], view()):
        require(weigher, request.seconds > 0, f"{request} leaves no time")


def shapes_a_task_that_can_be_sent(policy: Policy[Any]) -> None:
    """A policy shapes a task that can be done and sent, and shapes it the same way every time."""
    before = work()
    shaped = policy.shape(policy.begin(), SITES[0], before, view())
    same_start = (shaped.model, shaped.version) == (before.model, before.version)
    require(policy, same_start, "it changed the model that a task starts from")
    again = policy.shape(policy.begin(), SITES[0], before, view())
    require(policy, shaped == again, "it shaped the same task in two ways")
    require(policy, Train.model_validate_json(shaped.model_dump_json()) == shaped, "its task cannot be sent")


def speaks_the_language_of_job_files(duration: Duration[Any]) -> None:
    """A duration has a usual number of epochs, and only parameters that job files can set."""
    require(duration, duration.usual_epochs >= 1, f"{duration.usual_epochs} epochs are too few")
    unknown = set(type(duration).model_fields) - set(SPELLING)
    words = ", ".join(SPELLING)
    require(duration, not unknown, f"job files cannot set {sorted(unknown)}; they can only set {words}")


def states_how_many_merges_it_makes(pacer: Pacer[Any]) -> None:
    """A pacer states how many merges it makes, and how many trainings precede each."""
    require(pacer, pacer.rounds_asked() >= 1, f"{pacer.rounds_asked()} rounds are too few")
    require(pacer, pacer.trainings >= 1, f"{pacer.trainings} trainings before a merge are too few")
    require(
        pacer,
        pacer.travels or pacer.trainings == 1,
        "it has several trainings before a merge, but its models do not travel",
    )


def ignores_the_order_of_contributions(aggregator: Aggregator[Any]) -> None:
    """An aggregator ignores the order of contributions and stays within their range."""
    rng = np.random.default_rng(1)
    consistent = not aggregator.kept or aggregator.remembers
    require(aggregator, consistent, "it keeps sums, but does not remember contributions")
    if isinstance(aggregator, Coordinatewise):
        for count in range(2, 9):
            _check_combine(aggregator, rng.standard_normal((count, 40)), rng)
    if isinstance(aggregator, Selecting):
        for count in range(1, 12):
            _check_select(aggregator, rng.standard_normal((count, 3)), rng)
    if isinstance(aggregator, Additive):
        for count in range(1, 12):
            weights = rng.random(count) + 0.1
            divisor = aggregator.divisor(weights)
            require(aggregator, 0 < divisor < np.inf, f"its divisor is {divisor}")
            same = divisor == aggregator.divisor(rng.permutation(weights))
            require(aggregator, same, "the order of contributions matters")


def _check_combine(aggregator: Coordinatewise[Any], rows: np.ndarray, rng: np.random.Generator) -> None:
    count = len(rows)
    combined = aggregator.combine(rows.copy())
    require(aggregator, combined.shape == (40,), f"it returned the shape {combined.shape} for 40 columns")
    within = (combined >= rows.min(axis=0)) & (combined <= rows.max(axis=0))
    require(aggregator, bool(within.all()), "it returned numbers outside the range of the contributions")
    shuffled = aggregator.combine(rows[rng.permutation(count)].copy())
    require(aggregator, combined.tobytes() == shuffled.tobytes(), "the order of contributions matters")
    of_equals = aggregator.combine(np.repeat(rows[:1], count, axis=0))
    np.testing.assert_array_max_ulp(of_equals, rows[0], 1)


def _check_select(aggregator: Selecting[Any], points: np.ndarray, rng: np.random.Generator) -> None:
    count = len(points)
    distances = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    try:
        chosen = list(aggregator.select(distances))
    except TooFew:
        return
    require(aggregator, bool(chosen), "it chose nothing")
    require(aggregator, len(set(chosen)) == len(chosen), f"it chose {chosen}: one of them twice")
    require(aggregator, set(chosen) <= set(range(count)), f"it chose {chosen} of {count}")
    order = rng.permutation(count)
    shuffled = aggregator.select(distances[np.ix_(order, order)])
    same = {int(order[i]) for i in shuffled} == set(chosen)
    require(aggregator, same, "the order of contributions matters")


def treats_every_number_alike(server: ServerUpdate[Any]) -> None:
    """A server update treats every number alike and does not change its arguments."""
    rng = np.random.default_rng(2)
    current, proposal = rng.standard_normal((2, 50))
    initial = {name: np.full(50, value) for name, value in server.moments.items()}
    moments = initial
    prepared = server.prepare(server.begin(), [], np.zeros(0), view())
    for array in (current, proposal, *moments.values()):
        array.setflags(write=False)
    for number in range(1, 4):
        info = MergeInfo(version=number, staleness=number, contributions=1, prepared=prepared)
        numbers, after = server.step(current, proposal, moments, info)
        fits = numbers.shape == (50,) and numbers.dtype == np.float64
        require(server, fits, "it did not return 50 float64 numbers")
        require(server, bool(np.isfinite(numbers).all()), "it returned numbers that are not finite")
        require(server, set(after) == set(server.moments), f"it returned the moments {sorted(after)}")
        halves = [
            server.step(current[part], proposal[part], {n: m[part] for n, m in moments.items()}, info)
            for part in (slice(0, 13), slice(13, 50))
        ]
        whole = np.concatenate([half[0] for half in halves])
        require(server, whole.tobytes() == numbers.tobytes(), "a number depends on where it stands")
        for name in after:
            moment = np.concatenate([half[1][name] for half in halves])
            require(server, moment.tobytes() == after[name].tobytes(), f"{name} depends on where it stands")
        moments = dict(after)
    # If the proposal is the current model, the model stays.
    same, _ = server.step(current, current, initial, info)
    np.testing.assert_allclose(same, current, rtol=1e-12)


def is_plain_only_if_it_can_be_skipped(server: ServerUpdate[Any]) -> None:
    """A plain server update returns the proposal and has no moments, and every one accepts a fresh update."""
    proposal = np.arange(5.0)
    if server.plain:
        numbers, _ = server.step(np.zeros(5), proposal, {}, MergeInfo(1, 0, 1))
        require(server, numbers.tobytes() == proposal.tobytes(), "it is plain, but changes the proposal")
        require(server, not server.moments, "it is plain, but has moments")
    require(server, not server.refuses(0), "it refuses an update that is not stale")


def asks_connected_evaluators(plan: EvalPlan[Any]) -> None:
    """An evaluation plan asks connected evaluators, and ignores the order of their reports."""
    for version in range(1, ROUNDS):
        wanted = list(plan.due(plan.begin(), view(version=version)))
        require(plan, set(wanted) <= set(SITES), f"it asks {wanted}: not all of them are connected")
        require(plan, len(set(wanted)) == len(wanted), f"it asks {wanted}: one of them twice")
    require(
        plan, not list(plan.due(plan.begin(), view(sites=()))), "it asks evaluators that are not connected"
    )
    require(plan, plan.timeout > 0, "it leaves no time")
    require(plan, plan.min_coverage == 1, "its default for min_coverage must be 1")
    require(plan, plan.combine({}) == {}, "it returns metrics without any report")
    for counts in ({"confusion": ((2, 1), (0, 1))}, {"labels": ((2, 1, 0), (0, 0, 4))}, {}):
        reports = {
            site: Evaluation(n=4, loss_sum=0.1 * (i + 1), metrics={"auc": 0.1 * i}, **counts)
            for i, site in enumerate(SITES)
        }
        metrics = plan.combine(reports)
        reversed_ = plan.combine(dict(reversed(reports.items())))
        require(plan, reversed_ == metrics, "the order of reports matters")
        require(
            plan, all(isinstance(value, float) for value in metrics.values()), f"{metrics} are not all floats"
        )
    infinite = [Evaluation(n=1, loss_sum=float(loss)) for loss in ("inf", "-inf")]
    plan.combine(dict(zip(SITES, infinite, strict=False)))
    plan.combine({SITES[0]: Evaluation(n=0, loss_sum=0.0)})


CHECKS: Sequence[tuple[type[Part[Any]], Check]] = (
    (Part, explains_itself),
    (Part, remembers_through_a_snapshot),
    (Part, declares_auxiliary_tensors_once),
    (Sampler, draws_connected_sites),
    (Sampler, probes_connected_sites),
    (Weigher, gives_every_contribution_a_weight),
    (Policy, shapes_a_task_that_can_be_sent),
    (Duration, speaks_the_language_of_job_files),
    (Pacer, states_how_many_merges_it_makes),
    (Aggregator, ignores_the_order_of_contributions),
    (ServerUpdate, treats_every_number_alike),
    (ServerUpdate, is_plain_only_if_it_can_be_skipped),
    (EvalPlan, asks_connected_evaluators),
)


def checks_of(part: Plugin) -> list[Check]:
    """Return the checks of the contracts that a part implements."""
    return [check for contract, check in CHECKS if isinstance(part, contract)]
