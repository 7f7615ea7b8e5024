"""The contract of aggregators and server updates as checks: see `hansa.plugin.testing`."""

from typing import Any

import numpy as np
from pydantic import JsonValue

from hansa.common.plugins.testing import require
from hansa.common.values.errors import PluginFailed
from hansa.controller.plugin.arithmetic import (
    Additive,
    Aggregator,
    Coordinatewise,
    MergeInfo,
    Selecting,
    ServerUpdate,
    TooFew,
)
from hansa.controller.plugin.checks import require_prepared
from hansa.controller.plugin.parts import Part
from hansa.controller.plugin.samples import SITES, contribution, view
from hansa.controller.plugin.view import Contribution


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
    for array in (current, proposal, *moments.values()):
        array.setflags(write=False)
    for number, prepared in enumerate(_prepared(server), 1):
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


def _prepared(server: ServerUpdate[Any]) -> list[JsonValue]:
    """Return what a server update prepares for merges in which everything, something or nothing counts."""
    updates = [contribution(site, number) for number, site in enumerate(SITES[:3])]
    merges: list[tuple[list[Contribution], list[float]]] = [(updates, [1.0, 0.5, 0.0]), (updates, [0.0] * 3)]
    if type(server).question is not Part.question:  # without the findings of an examination there is no step
        merges = []
    prepared = []
    for contributions, weights in (*merges, ([], []), ([], [])):
        returned = server.prepare(server.begin(), contributions, np.array(weights), view())
        try:
            prepared.append(require_prepared(server, returned))
        except PluginFailed as failure:
            require(server, False, failure.why)
    return prepared


def is_plain_only_if_it_can_be_skipped(server: ServerUpdate[Any]) -> None:
    """A plain server update returns the proposal and has no moments, and every one accepts a fresh update."""
    proposal = np.arange(5.0)
    if server.plain:
        numbers, _ = server.step(np.zeros(5), proposal, {}, MergeInfo(1, 0, 1))
        require(server, numbers.tobytes() == proposal.tobytes(), "it is plain, but changes the proposal")
        require(server, not server.moments, "it is plain, but has moments")
    require(server, not server.refuses(0), "it refuses an update that is not stale")
