"""Proposals that add differences to the current model: x + Σ w·(y − b) / D, each y with its own base b.

The frames of the mean come first. Parameters are left out of it, so that they are those of the current model,
and statistics and counters are as in any mean. The sums of differences are then added to the parameters.

If every contribution started from the current model and the divisor is the sum of the weights, the proposal
is the mean. Such tensors are left in the mean, which computes them exactly: bit for bit as FedAvg does.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hansa.common.models.frames import Span, numbers
from hansa.common.models.model import Role
from hansa.common.plugins.calling import calling
from hansa.common.values.ids import ModelKey
from hansa.controller.community.reading import Carriers, Library, ordered
from hansa.controller.community.robust import Rows
from hansa.controller.plugin.arithmetic import Additive
from hansa.controller.plugin.checks import require_divisor, require_finite
from hansa.controller.storage.stores import StoredModel
from hansa.controller.values.members import Member


@dataclass(frozen=True)
class Plan:
    """Which tensors differences are added to, with their divisors; the others are in the mean."""

    divisors: Mapping[int, float]
    averaged: frozenset[str]

    def averaging(self, members: Sequence[Member]) -> tuple[Member, ...]:
        """Return what members contribute to the mean."""
        return tuple(
            replace(m, tensors=self.averaged if m.tensors is None else m.tensors & self.averaged)
            for m in members
        )


def plan_merge(
    aggregator: Additive[Any], members: Sequence[Member], library: Library, current: StoredModel
) -> Plan:
    """Decide for every tensor whether differences are added to it or it is in the mean."""
    spec = current.manifest.spec
    carriers = Carriers(members, spec, library)
    divisors: dict[int, float] = {}
    for at, info in enumerate(spec.tensors):
        if info.role is Role.PARAM and carriers.of(at):
            weights = [member.weight for member in carriers.of(at)]
            with calling(aggregator):
                divisor = aggregator.divisor(np.array(weights))
            divisor = require_divisor(aggregator, divisor)
            bases = {_digest(member, info.name, library) for member in carriers.of(at)}
            if bases != {current.manifest.digests[at]} or divisor != math.fsum(weights):
                divisors[at] = divisor
    averaged = frozenset(info.name for at, info in enumerate(spec.tensors) if at not in divisors)
    return Plan(divisors, averaged)


def _digest(member: Member, name: str, library: Library) -> bytes:
    """Return the digest of a tensor in the model that a member's site started from."""
    assert member.base is not None
    manifest = library.get(member.base).manifest
    return manifest.digests[manifest.spec.index[name]]


def with_differences(
    aggregator: Additive[Any],
    frames: Iterator[np.ndarray],
    plan: Plan,
    members: Sequence[Member],
    current: StoredModel,
    open_model: Callable[[ModelKey], StoredModel],
    pool: Executor,
    memory: int,
) -> Iterator[np.ndarray]:
    """Yield frames in which the differences have been added to the current model's parameters."""
    spec, layout = current.manifest.spec, current.layout
    bases = [replace(member, model=member.base) for member in members if member.base is not None]
    with Library(open_model) as of_updates, Library(open_model) as of_bases:
        updates, origins = (
            Rows(given, library, current, memory // 2)
            for given, library in ((members, of_updates), (bases, of_bases))
        )
        for rows in (updates, origins):
            rows.carriers.of(0)  # computed before threads ask for it

        def steps(index: int) -> list[tuple[Span, np.ndarray]]:
            """Return the steps of the parameters in a frame."""
            return [
                (span, _step(updates, origins, span, plan.divisors[span.tensor]))
                for span in layout.spans(index)
                if span.tensor in plan.divisors
            ]

        for frame, moved in zip(frames, ordered(pool, steps, layout.frames), strict=True):
            for span, step in moved:
                info = spec.tensors[span.tensor]
                room = numbers(info, span, frame)
                with np.errstate(over="ignore", invalid="ignore"):
                    room[...] = room.astype(np.float64) + step
                require_finite(aggregator, info.name, room)
            yield frame


def _step(updates: Rows, origins: Rows, span: Span, divisor: float) -> np.ndarray:
    """Return Σ w·(y − b) / D of a span. Members are in the order of their sites, however they arrived."""
    weights = [member.weight for member in updates.carriers.of(span.tensor)]
    pieces = []
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found later
        for (_, ends), (_, starts) in zip(updates.of(span), origins.of(span), strict=True):
            total = np.zeros(ends.shape[1])
            for weight, end, start in zip(weights, ends, starts, strict=True):
                total += weight * (end - start)  # no BLAS: its order may vary
            pieces.append(total / divisor)
    return np.concatenate(pieces)
