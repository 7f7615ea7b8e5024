"""The auxiliary tensors of the next community model: they have means and sums of their own.

Numbers are added in float64 in the order of the sites, so the order in which updates arrived does not matter.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hansa.common.models.auxiliary import auxiliary_infos
from hansa.common.models.frames import FRAME, numbers
from hansa.common.models.model import ModelSpec
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import ModelKey
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.excerpts import Zeros, auxiliary_part
from hansa.controller.community.reading import Library, Means, ordered
from hansa.controller.community.robust import Rows
from hansa.controller.plugin.auxiliary import Auxiliary
from hansa.controller.storage.stores import StoredModel
from hansa.controller.values.members import Change, Member


@dataclass(frozen=True)
class Beside:
    """What a merge must know about the tensors beside the model."""

    declared: Sequence[Auxiliary] = ()
    sites: int = 1  # of the job
    resets: Collection[str] = ()  # names of those that start from zero again

    @property
    def names(self) -> list[str]:
        """Their names, in the order in which models have them."""
        return [each.name for each in self.declared]


def frames_beside(
    beside: Beside, change: Change, current: StoredModel, means: Means
) -> Generator[np.ndarray, None, None]:
    """Yield the payload of the next auxiliary tensors, in pieces of any size."""
    for each in beside.declared:
        spec = ModelSpec(tuple(auxiliary_infos(current.manifest.spec, each.name)))
        known = each.name not in beside.resets and current.manifest.spec.index.keys() >= set(spec.names)
        before = auxiliary_part(current, each.name) if known else Zeros(spec)
        counting = change.members if each.merge == "mean" else change.newest
        members = sorted((m for m in counting if m.weight > 0), key=lambda m: (m.slot, m.site, m.task))
        if change.still or not members or not each.up:
            yield from (np.frombuffer(before.read(i), dtype=np.uint8) for i in range(before.layout.frames))
        else:
            yield from _merged(each, members, before, beside.sites, means)


def _merged(
    each: Auxiliary, members: Sequence[Member], before: StoredModel, sites: int, means: Means
) -> Iterator[np.ndarray]:
    def open_part(key: ModelKey) -> StoredModel:
        return auxiliary_part(means.open_model(key), each.name)

    if each.merge == "mean":
        whole = Change(tuple(members), (), members, tuple(members))
        sums = Accumulator(before.manifest.spec, kept=False, memory=means.memory)
        yield from sums.frames(whole, open_part, before, means.pool)
    else:
        with Library(open_part) as library:
            yield from _added(members, library, before, sites, means)


def _added(
    members: Sequence[Member], library: Library, before: StoredModel, sites: int, means: Means
) -> Iterator[np.ndarray]:
    """Yield the frames of: before + Σ contributions / sites."""
    tensors, layout = before.manifest.spec.tensors, before.layout
    rows = Rows(members, library, before, means.memory)

    def compute(index: int) -> np.ndarray:
        frame, standing = layout.blank(index), before.read(index)
        for span in layout.spans(index):
            info = tensors[span.tensor]
            room, current = numbers(info, span, frame), numbers(info, span, standing)
            for start, piece in rows.of(span):
                total = np.zeros(piece.shape[1])
                for row in piece:
                    total += row
                place = slice(start, start + len(total))
                with np.errstate(over="ignore"):
                    room[place] = current[place] + total / sites
            if not np.isfinite(room).all():
                raise HansaError(f"auxiliary tensor {info.name} became infinite; try a smaller lr")
        return frame

    if tensors:
        rows.carriers.of(0)  # computed before threads ask for it
    yield from ordered(means.pool, compute, layout.frames)


def reframed(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the frames of a payload that comes in pieces of any size."""
    room = bytearray()
    for piece in pieces:
        if not room and len(piece) == FRAME:
            yield piece
            continue
        room += piece.data
        while len(room) >= FRAME:
            yield np.frombuffer(bytes(room[:FRAME]), dtype=np.uint8)
            del room[:FRAME]
    if room:
        yield np.frombuffer(bytes(room), dtype=np.uint8)
