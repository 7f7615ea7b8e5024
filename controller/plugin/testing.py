"""The contract of the controller's plugins, as checks that run over any of them: see `hansa.plugin.testing`."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from hansa.common.job.duration import SPELLING
from hansa.common.plugins.registry import Plugin
from hansa.common.plugins.testing import require
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import Evaluation, UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.common.values.training import OptimizerSpec, ValidationSpec
from hansa.controller.plugin.arithmetic import (
    Aggregator,
    Coordinatewise,
    MergeInfo,
    Selecting,
    ServerUpdate,
    TooFew,
)
from hansa.controller.plugin.parts import Nothing, Pacer, Part, Sampler, Weigher
from hansa.controller.plugin.plans import EvalPlan
from hansa.controller.plugin.policies import Duration, Policy
from hansa.controller.plugin.view import Contribution, View

Check = Callable[[Any], None]
SITES = tuple(SiteName(name) for name in "abcdefg")
OFTEN = 20


def view(round_: int = 1, version: int = 3, sites: tuple[SiteName, ...] = SITES) -> View:
    """Return what plugins see of a job with seven sites."""
    examples = {site: 10 * (i + 1) for i, site in enumerate(sites)}
    at: dict[str, Any] = {"version": version, "round": round_, "steps": 100, "seed": 7, "now": 1000.0}
    return View(sites=sites, busy=frozenset(), examples=examples, evaluators=sites, **at)


def work() -> Train:
    """Return what a site is asked for before policies have shaped it."""
    optimizer = OptimizerSpec(lr=0.1)
    return Train(model=ModelKey("j/v3"), version=3, committed=90, epochs=2, batch_size=8, optimizer=optimizer)


def contribution(site: SiteName, number: int, n_train: int = 10) -> Contribution:
    """Return an update that the other sites have evaluated."""
    place: dict[str, Any] = {"job": JobId("j"), "site": site, "round": 1, "app": "app.py:app", "seed": 7}
    task = Task(id=TaskId(f"j-{number}"), validation=ValidationSpec(), work=work(), **place)
    facts = UpdateFacts(n_train=n_train, n_used=n_train, steps=3, epochs=1, seconds=0.1, loss=0.5)
    found = Evaluation(n=4, loss_sum=2.0, confusion=((2, 1), (0, 1)))
    reports = {other: found for other in SITES if other != site}
    return Contribution(
        task=task, model=ModelKey(f"j/u{number}"), digest="d", facts=facts, reports=reports, staleness=(2, 30)
    )


# All points.


def explains_itself(part: Part[Any]) -> None:
    """A part and its parameters say what they mean: `hansa rules show` prints it."""
    for name, field in type(part).model_fields.items():
        require(part, bool(field.description), f"{name} has no description")


def remembers_through_a_snapshot(part: Part[Any]) -> None:
    """What a part remembers is of the type that it names, its job's own, and the same after a snapshot."""
    memory = part.begin()
    require(part, isinstance(memory, BaseModel), f"begin() returned {memory!r:.100}, not a pydantic model")
    named = memory_type(type(part))
    require(part, isinstance(memory, named), f"begin() returned {memory!r:.100}, not a {named.__name__}")
    require(part, part.begin() is not memory, "two jobs share a memory")
    text = memory.model_dump_json()
    json.loads(text)
    require(part, type(memory).model_validate_json(text) == memory, "its memory is not the same as JSON")


def memory_type(cls: type[Part[Any]]) -> type[BaseModel]:
    """Return the type parameter of a plugin: `Worth` of `class Dvw(Weigher[Worth])`."""
    for base in cls.__mro__:
        arguments = getattr(base, "__pydantic_generic_metadata__", {}).get("args", ())
        if arguments and isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
            return arguments[0]
    return Nothing


# Each point.


def draws_sites_that_are_there(sampler: Sampler[Any]) -> None:
    """A sampler draws sites that are there, none twice, and the same ones when it is asked again."""
    for round_ in range(1, OFTEN):
        chosen = list(sampler.choose(sampler.begin(), view(round_)))
        require(sampler, bool(chosen), "it drew nobody")
        require(sampler, set(chosen) <= set(SITES), f"it drew {chosen}: not all of them are there")
        require(sampler, len(set(chosen)) == len(chosen), f"it drew {chosen}: one of them twice")
        again = list(sampler.choose(sampler.begin(), view(round_)))
        require(sampler, chosen == again, f"it drew {chosen}, and {again} in the same round")
        without = sampler.choose(sampler.begin(), view(round_), exclude=frozenset(SITES[:3]))
        require(sampler, not set(without) & set(SITES[:3]), f"it drew {without}: some were excluded")
        require(sampler, not sampler.takes_all or set(chosen) == set(SITES), "it does not take all sites")


def gives_one_weight_for_each(weigher: Weigher[Any]) -> None:
    """A weigher gives one finite weight for each contribution, whatever their order."""
    for count in (1, 2, 7):
        given = [contribution(site, i, n_train=5 + i) for i, site in enumerate(SITES[:count])]
        weights = weigher.weigh(weigher.begin(), given, view())
        require(weigher, weights.shape == (count,), f"{weights} are not {count} weights")
        require(weigher, bool(np.isfinite(weights).all()), f"{weights} are not finite")
        require(weigher, bool((weights >= 0).all()), f"{weights} are not all ≥ 0")
        require(weigher, not weigher.equal or len(set(weights.tolist())) == 1, f"{weights} are not equal")
        turned = weigher.weigh(weigher.begin(), given[::-1], view())
        require(weigher, turned.tolist() == weights[::-1].tolist(), "the order of contributions matters")
    for request in weigher.requests(weigher.begin(), given[0], view()):
        require(weigher, request.seconds > 0, f"{request} leaves no time")


def leaves_a_task_that_can_be_done(policy: Policy[Any]) -> None:
    """A policy leaves a task that can be done and sent, the same whenever it is asked."""
    before = work()
    shaped = policy.shape(policy.begin(), SITES[0], before, view())
    same = (shaped.model, shaped.version) == (before.model, before.version)
    require(policy, same, "it changed the model that a task starts from")
    again = policy.shape(policy.begin(), SITES[0], before, view())
    require(policy, shaped == again, "it shaped the same task in two ways")
    require(policy, Train.model_validate_json(shaped.model_dump_json()) == shaped, "its task cannot be sent")


def says_how_long_in_the_words_of_job_files(duration: Duration[Any]) -> None:
    """A duration has a number of epochs to start from, and no parameter that a job file has no word for."""
    require(duration, duration.usual_epochs >= 1, f"{duration.usual_epochs} epochs are too few")
    strange = set(type(duration).model_fields) - set(SPELLING)
    require(
        duration, not strange, f"job files have no word for {sorted(strange)}: {', '.join(SPELLING)} only"
    )


def says_how_much_there_is_to_do(pacer: Pacer[Any]) -> None:
    """A pacer says how many merges there are to be, and how many trainings come before each."""
    require(pacer, pacer.rounds_asked() >= 1, f"{pacer.rounds_asked()} rounds are too few")
    require(pacer, pacer.trainings >= 1, f"{pacer.trainings} trainings before a merge are too few")
    require(pacer, pacer.travels or pacer.trainings == 1, "several trainings need models that travel")


def does_not_care_for_the_order(aggregator: Aggregator[Any]) -> None:
    """An aggregator does not care for the order of contributions and stays within what it is given."""
    rng = np.random.default_rng(1)
    sound = not aggregator.kept or aggregator.remembers
    require(aggregator, sound, "sums can be kept only of what is remembered")
    if isinstance(aggregator, Coordinatewise):
        for count in range(2, 9):
            _combines(aggregator, rng.standard_normal((count, 40)), rng)
    if isinstance(aggregator, Selecting):
        for count in range(1, 12):
            _selects(aggregator, rng.standard_normal((count, 3)), rng)


def _combines(aggregator: Coordinatewise[Any], rows: np.ndarray, rng: np.random.Generator) -> None:
    count = len(rows)
    made = aggregator.combine(rows.copy())
    require(aggregator, made.shape == (40,), f"it made {made.shape} of 40 columns")
    within = (made >= rows.min(axis=0)) & (made <= rows.max(axis=0))
    require(aggregator, bool(within.all()), "it left the range of what it was given")
    turned = aggregator.combine(rows[rng.permutation(count)].copy())
    require(aggregator, made.tobytes() == turned.tobytes(), "the order of contributions matters")
    alike = aggregator.combine(np.repeat(rows[:1], count, axis=0))
    np.testing.assert_array_max_ulp(alike, rows[0], 1)


def _selects(aggregator: Selecting[Any], points: np.ndarray, rng: np.random.Generator) -> None:
    count = len(points)
    apart = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    try:
        chosen = list(aggregator.select(apart))
    except TooFew:
        return
    require(aggregator, bool(chosen), "it chose nothing")
    require(aggregator, len(set(chosen)) == len(chosen), f"it chose {chosen}: one of them twice")
    require(aggregator, set(chosen) <= set(range(count)), f"it chose {chosen} of {count}")
    order = rng.permutation(count)
    turned = aggregator.select(apart[np.ix_(order, order)])
    require(aggregator, {int(order[i]) for i in turned} == set(chosen), "the order of contributions matters")


def treats_every_number_alike(server: ServerUpdate[Any]) -> None:
    """A server update treats every number alike and changes nothing that it is given."""
    rng = np.random.default_rng(2)
    current, proposal = rng.standard_normal((2, 50))
    moments = {name: np.full(50, first) for name, first in server.moments.items()}
    for array in (current, proposal, *moments.values()):
        array.setflags(write=False)
    for number in range(1, 4):
        info = MergeInfo(version=number, staleness=number, contributions=1)
        made, after = server.step(current, proposal, moments, info)
        sound = made.shape == (50,) and made.dtype == np.float64
        require(server, sound, "it did not make 50 float64 numbers")
        require(server, bool(np.isfinite(made).all()), "it made numbers that are not finite")
        require(server, set(after) == set(server.moments), f"it returned the moments {sorted(after)}")
        halves = [
            server.step(current[part], proposal[part], {n: m[part] for n, m in moments.items()}, info)
            for part in (slice(0, 13), slice(13, 50))
        ]
        whole = np.concatenate([half[0] for half in halves])
        require(server, whole.tobytes() == made.tobytes(), "a number depends on where it stands")
        for name in after:
            moment = np.concatenate([half[1][name] for half in halves])
            require(server, moment.tobytes() == after[name].tobytes(), f"{name} depends on where it stands")
        moments = dict(after)
    same, _ = server.step(current, current, {n: np.full(50, f) for n, f in server.moments.items()}, info)
    np.testing.assert_allclose(same, current, rtol=1e-12)  # where nobody wants to go anywhere, nobody goes


def may_be_skipped_only_if_plain(server: ServerUpdate[Any]) -> None:
    """A plain server update returns the proposal and carries nothing on; any takes an update of the newest model."""
    proposal = np.arange(5.0)
    if server.plain:
        made, _ = server.step(np.zeros(5), proposal, {}, MergeInfo(1, 0, 1))
        require(server, made.tobytes() == proposal.tobytes(), "it is plain, but changes the proposal")
        require(server, not server.moments, "it is plain, but has moments")
    require(server, not server.refuses(0), "it refuses an update of the newest model")


def asks_who_is_here(plan: EvalPlan[Any]) -> None:
    """An evaluation plan asks evaluators that are here, and does not care who answers first."""
    for version in range(1, OFTEN):
        wanted = list(plan.due(plan.begin(), view(version=version)))
        require(plan, set(wanted) <= set(SITES), f"it asks {wanted}: not all of them are there")
        require(plan, len(set(wanted)) == len(wanted), f"it asks {wanted}: one of them twice")
    require(plan, not list(plan.due(plan.begin(), view(sites=()))), "it asks where nobody is there")
    require(plan, plan.timeout > 0, "it leaves no time")
    require(plan, plan.min_coverage == 1, "metrics count over all examples, unless a job says otherwise")
    require(plan, plan.combine({}) == {}, "it makes metrics of no reports")
    for counts in ({"confusion": ((2, 1), (0, 1))}, {"labels": ((2, 1, 0), (0, 0, 4))}, {}):
        reports = {
            site: Evaluation(n=4, loss_sum=0.1 * (i + 1), metrics={"auc": 0.1 * i}, **counts)
            for i, site in enumerate(SITES)
        }
        metrics = plan.combine(reports)
        require(
            plan, plan.combine(dict(reversed(reports.items()))) == metrics, "the order of reports matters"
        )
        require(plan, all(isinstance(value, float) for value in metrics.values()), f"{metrics}: not floats")
    lost = [Evaluation(n=1, loss_sum=float(loss)) for loss in ("inf", "-inf")]
    plan.combine(dict(zip(SITES, lost, strict=False)))
    plan.combine({SITES[0]: Evaluation(n=0, loss_sum=0.0)})


CHECKS: Sequence[tuple[type[Part[Any]], Check]] = (
    (Part, explains_itself),
    (Part, remembers_through_a_snapshot),
    (Sampler, draws_sites_that_are_there),
    (Weigher, gives_one_weight_for_each),
    (Policy, leaves_a_task_that_can_be_done),
    (Duration, says_how_long_in_the_words_of_job_files),
    (Pacer, says_how_much_there_is_to_do),
    (Aggregator, does_not_care_for_the_order),
    (ServerUpdate, treats_every_number_alike),
    (ServerUpdate, may_be_skipped_only_if_plain),
    (EvalPlan, asks_who_is_here),
)


def checks_of(part: Plugin) -> list[Check]:
    """Return the checks for the contract that a part is derived from."""
    return [check for contract, check in CHECKS if isinstance(part, contract)]
