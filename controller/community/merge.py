"""One merge: computes the next community model and its moments from the current model and contributions.

    contributions ── aggregator ──► proposal ── server update ──► next model
                                                  ▲      │
                                     moments before      moments

Tensors beside the model have means and sums of their own (`auxiliary`) and follow it in the payload; whatever
is between contributions and next model sees only the model itself.

All of these are streams of frames; nothing here is as large as a model. The controller and `hansa job verify`
both compute a version with `make`, so that the same inputs give the same bits.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from hansa.common.models.auxiliary import with_auxiliary
from hansa.common.models.frames import FRAME, Sealer, numbers
from hansa.common.models.model import ALIGN, DTYPES, Manifest, ModelSpec, Role, TensorInfo
from hansa.common.plugins.calling import calling
from hansa.common.values.wording.words import listed
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.additive import plan_merge, with_differences
from hansa.controller.community.auxiliary import Beside, frames_beside, reframed
from hansa.controller.community.excerpts import own_part
from hansa.controller.community.reading import Cache, Library, Means, read_numbers
from hansa.controller.community.robust import coordinatewise, distances
from hansa.controller.community.statistics import with_pooled_variances
from hansa.controller.plugin.arithmetic import (
    Additive,
    Aggregator,
    Coordinatewise,
    MergeInfo,
    Moments,
    Selecting,
    ServerUpdate,
    TooFew,
)
from hansa.controller.plugin.checks import require_choice, require_finite, require_step, require_text
from hansa.controller.storage.stores import Draft, StoredModel
from hansa.controller.values.members import Change, Member

NOBODY = "no update counts; the previous model is kept"
ADVICE = "; try a smaller lr"
NOTHING_BESIDE = Beside()
OpenDraft = Callable[[str, ModelSpec], Draft]  # for the community model (no name) or a moment


@dataclass(frozen=True)
class Made:
    """A community model that is ready to be published, with its moments."""

    manifest: Manifest
    moments: Mapping[str, Manifest]
    note: str
    publish: Callable[[], None]


@dataclass(frozen=True)
class _Proposal:
    """The model that the aggregator proposes."""

    frames: Iterator[np.ndarray]
    touched: Collection[str]  # tensors with contributions
    note: str = ""


def make(
    aggregator: Aggregator[Any],
    server: ServerUpdate[Any],
    sums: Accumulator,
    change: Change,
    current: StoredModel,
    before: Mapping[str, StoredModel],  # moments of the current model; missing ones have their first values
    info: MergeInfo,
    means: Means,
    draft: OpenDraft,
    beside: Beside = NOTHING_BESIDE,
) -> Made:
    """Compute the next community model into drafts; `publish` of the result publishes them, moments first."""
    stored, current = current, own_part(current)
    spec = current.manifest.spec
    whole = with_auxiliary(spec, beside.names)
    with ExitStack() as stack:
        plain = replace(means, open_model=lambda key: own_part(means.open_model(key)))
        proposal = _propose(stack, aggregator, sums, change, current, plain)
        frames = stack.enter_context(closing(proposal.frames))  # type: ignore[type-var]
        sealer, main = Sealer(whole, pool=means.pool), draft("", whole)
        moments: dict[str, _Writer] = {}
        if not server.plain:
            carried = moment_spec(server, spec)
            with calling(server):
                names = server.moments if carried.tensors else {}
            moments = {name: _Writer(carried, draft(name, carried)) for name in names}
            frames = _updated(server, frames, proposal.touched, current, before, moments, info)
        if beside.declared:
            others = stack.enter_context(closing(frames_beside(beside, change, stored, means)))
            frames = reframed(chain(frames, others))
        for index, frame in enumerate(frames):
            sealer.feed(frame)
            main.write(index, frame)

    def publish() -> None:
        for writer in moments.values():
            writer.publish()
        main.publish(sealer.manifest(), sealer.peaks)

    manifests = {name: writer.finish() for name, writer in moments.items()}
    return Made(sealer.manifest(), manifests, proposal.note, publish)


def moment_spec(server: ServerUpdate[Any], spec: ModelSpec) -> ModelSpec:
    """Return the tensors of each of a server update's moments: those that it updates, in float64."""
    return ModelSpec(tuple(replace(info, dtype="float64") for info in spec.tensors if _updates(server, info)))


def _updates(server: ServerUpdate[Any], info: TensorInfo) -> bool:
    return info.role is Role.PARAM or (info.role is Role.STAT and server.statistics)


def _propose(
    stack: ExitStack,
    aggregator: Aggregator[Any],
    sums: Accumulator,
    change: Change,
    current: StoredModel,
    means: Means,
) -> _Proposal:
    if change.still:
        return _Proposal(_copied(current), ())
    if aggregator.kept:  # every change must reach the sums
        touched = _touched(change.members, change.scope, current)
        frames = sums.frames(change, means.open_model, current, means.pool)
        return _Proposal(frames, touched, "" if any(m.weight > 0 for m in change.members) else NOBODY)
    counting = [member for member in change.members if member.weight > 0]
    touched = _touched(counting, change.scope, current)
    if not counting:
        return _Proposal(_copied(current), (), NOBODY)
    if isinstance(aggregator, Coordinatewise):
        library = stack.enter_context(Library(means.open_model))
        frames = coordinatewise(aggregator, counting, library, current, means.pool, means.memory)
        with calling(aggregator):
            remark = aggregator.remark(len(counting))
        return _Proposal(frames, touched, require_text(aggregator, remark))
    if isinstance(aggregator, Additive):
        return _Proposal(_added(aggregator, sums, change, counting, current, means), touched)
    note = ""
    if isinstance(aggregator, Selecting):
        with Library(means.open_model) as library:
            apart = distances(counting, library, current, means.pool, means.memory)
        try:
            with calling(aggregator, TooFew):
                selected = aggregator.select(apart)
        except TooFew as error:
            return _Proposal(_copied(current), (), f"{aggregator.kind}: {error}; the previous model is kept")
        chosen = require_choice(aggregator, selected, len(counting))
        sites = listed((counting[i].site for i in chosen), 10)
        note = f"{aggregator.kind} took {sites} of {len(counting)} updates"
        counting = [counting[i] for i in chosen]
    whole = Change(tuple(counting), (), counting, change.newest)
    frames = sums.frames(whole, means.open_model, current, means.pool)
    with calling(aggregator):
        pools = aggregator.pools
    if pools:
        frames = with_pooled_variances(
            frames, counting, stack.enter_context(Library(means.open_model)), current
        )
    return _Proposal(frames, touched, note)


def _added(
    aggregator: Additive[Any],
    sums: Accumulator,
    change: Change,
    counting: Sequence[Member],
    current: StoredModel,
    means: Means,
) -> Iterator[np.ndarray]:
    """Return the frames of a proposal to which contributions have added their differences."""
    with Library(means.open_model) as library:
        plan = plan_merge(aggregator, counting, library, current)
    averaged = plan.averaging(counting)
    frames = sums.frames(Change(averaged, (), averaged, change.newest), means.open_model, current, means.pool)
    return with_differences(
        aggregator, frames, plan, counting, current, means.open_model, means.pool, means.memory
    )


def _copied(current: StoredModel) -> Iterator[np.ndarray]:
    for index in range(current.layout.frames):
        yield np.frombuffer(bytearray(current.read(index)), dtype=np.uint8)


def _touched(
    members: Iterable[Member], scope: frozenset[str] | None, current: StoredModel
) -> Collection[str]:
    """Return the tensors that the merge is about and that have contributions."""
    names = frozenset(current.manifest.spec.names) if scope is None else scope
    touched: set[str] = set()
    for member in members:
        if member.weight > 0:
            if member.tensors is None:
                return names
            touched |= member.tensors
    return touched & names


def _updated(
    server: ServerUpdate[Any],
    frames: Iterator[np.ndarray],
    touched: Collection[str],
    current: StoredModel,
    before: Mapping[str, StoredModel],
    moments: "Mapping[str, _Writer]",
    info: MergeInfo,
) -> Iterator[np.ndarray]:
    """Yield the frames of the next model; they are computed in place, in the frames of the proposal."""
    with calling(server):
        first = server.moments
    caches: dict[str, Cache] = {name: {} for name in moments}
    for index, frame in enumerate(frames):
        before_step = current.read(index)
        for span in current.layout.spans(index):
            tensor = current.manifest.spec.tensors[span.tensor]
            if not _updates(server, tensor):
                continue
            width = DTYPES[tensor.dtype].itemsize
            start, stop = span.start // width, span.stop // width
            carried: Moments = {
                name: _moment(before.get(name), tensor.name, start, stop, caches[name], first[name])
                for name in moments
            }
            room = numbers(tensor, span, frame)
            if tensor.name in touched:
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    standing = numbers(tensor, span, before_step).astype(np.float64)
                    with calling(server):
                        step = server.step(standing, room.astype(np.float64), carried, info)
                    room[...], carried = require_step(server, step, len(room), moments)
                require_finite(server, tensor.name, room, *carried.values(), advice=ADVICE)
            else:
                # The mean of the last updates is not the model that the steps have led to.
                room[...] = numbers(tensor, span, before_step)
            for name, writer in moments.items():
                writer.put(tensor, stop, carried[name])
        yield frame


def _moment(
    before: StoredModel | None, name: str, start: int, stop: int, cache: Cache, first: float
) -> np.ndarray:
    if before is None:
        return np.full(stop - start, first)
    for frame in [frame for frame in cache if len(cache) > 2]:
        del cache[frame]  # spans come in order: frames before the last ones are not needed again
    return read_numbers(before, name, start, stop, cache)


class _Writer:
    """Writes the tensors of a moment one after another."""

    def __init__(self, spec: ModelSpec, draft: Draft) -> None:
        self._draft = draft
        self._sealer = Sealer(spec)
        self._room = bytearray()
        self._written = 0

    def put(self, tensor: TensorInfo, stop: int, array: np.ndarray) -> None:
        """Write the next numbers, which end at `stop` in their tensor."""
        self._room += np.ascontiguousarray(array, dtype="<f8").data.cast("B")
        if stop == tensor.elements:
            self._room += bytes(-len(self._room) % ALIGN)
        while len(self._room) >= FRAME:
            self._flush(FRAME)

    def _flush(self, size: int) -> None:
        frame = bytes(self._room[:size])
        del self._room[:size]
        self._sealer.feed(frame)
        self._draft.write(self._written, frame)
        self._written += 1

    def finish(self) -> Manifest:
        """Write what is left and return the manifest."""
        if self._room:
            self._flush(len(self._room))
        return self._sealer.manifest()

    def publish(self) -> None:
        """Publish the moment."""
        self._draft.publish(self._sealer.manifest(), self._sealer.peaks)
