"""Proposals that are no mean of all contributions: medians and the like, and means of those that are near one another.

Everything goes frame by frame: of each contribution only a part of one frame is in memory at a time, however
many there are. Distances between models are sums over frames, added in the frames' order, so that threads do
not matter.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

import numpy as np

from hansa.common.models.frames import Span, numbers
from hansa.common.models.model import DTYPES, Role
from hansa.controller.community.reading import WINDOW, Carriers, Library, ordered, read_numbers
from hansa.controller.plugin.arithmetic import Coordinatewise
from hansa.controller.plugin.checks import require_array, require_finite
from hansa.controller.storage.stores import StoredModel
from hansa.controller.values.members import Member

LEAST = 1024  # columns that are worked on at once, however little memory there is


class Rows:
    """The numbers of many models at the same place, one row for each."""

    def __init__(
        self, members: Sequence[Member], library: Library, current: StoredModel, memory: int
    ) -> None:
        self.carriers = Carriers(members, current.manifest.spec, library)
        self._library, self._current, self._memory = library, current, memory
        self._reading = threading.Lock()  # the library opens and closes models; only arithmetic runs at once

    def of(self, span: Span) -> Iterator[tuple[int, np.ndarray]]:
        """Yield rows of a span piece by piece, with where each piece begins, in numbers from the span's start."""
        info = self._current.manifest.spec.tensors[span.tensor]
        width = DTYPES[info.dtype].itemsize
        first, count = span.start // width, span.size // width
        members = self.carriers.of(span.tensor)
        columns = max(LEAST, self._memory // WINDOW // (8 * max(1, len(members))))
        for start in range(0, count, columns):
            stop = min(start + columns, count)
            rows = np.empty((len(members), stop - start))
            for row, member in zip(rows, members, strict=True):
                with self._reading:
                    model = self._library.get(member.model)
                    row[...] = read_numbers(model, info.name, first + start, first + stop, {})
            yield start, rows

    def first(self, span: Span) -> np.ndarray:
        """Return a span from the first that carries its tensor, or from the current model."""
        info = self._current.manifest.spec.tensors[span.tensor]
        width = DTYPES[info.dtype].itemsize
        members = self.carriers.of(span.tensor)
        with self._reading:
            source = self._library.get(members[0].model) if members else self._current
            return read_numbers(source, info.name, span.start // width, span.stop // width, {})


def coordinatewise(
    aggregator: Coordinatewise,
    members: Sequence[Member],
    library: Library,
    current: StoredModel,
    pool: Executor,
    memory: int,
) -> Iterator[np.ndarray]:
    """Yield the frames of a proposal each of whose numbers is made from the contributions' numbers at its place."""
    spec, layout = current.manifest.spec, current.layout
    rows = Rows(members, library, current, memory)

    def frame(index: int) -> np.ndarray:
        made = layout.blank(index)
        for span in layout.spans(index):
            info = spec.tensors[span.tensor]
            room = numbers(info, span, made)
            if info.role is Role.COUNT or len(rows.carriers.of(span.tensor)) < 2:
                room[...] = rows.first(span)
                continue
            for start, piece in rows.of(span):
                columns = piece.shape[1]
                with np.errstate(over="ignore"):  # what is too large for the tensor's type is found below
                    room[start : start + columns] = require_array(
                        aggregator, aggregator.combine(piece), columns
                    )
            require_finite(aggregator, info.name, room)
        return made

    rows.carriers.of(0)  # worked out before threads ask
    yield from ordered(pool, frame, layout.frames)


def distances(
    members: Sequence[Member], library: Library, current: StoredModel, pool: Executor, memory: int
) -> np.ndarray:
    """Return the squared distances between contributions, over all tensors that are averaged and that all carry."""
    spec, layout = current.manifest.spec, current.layout
    rows = Rows(members, library, current, memory)
    count = len(members)
    compared = {
        at
        for at, info in enumerate(spec.tensors)
        if info.role is not Role.COUNT and len(rows.carriers.of(at)) == count
    }

    def partial(index: int) -> np.ndarray:
        found = np.zeros((count, count))
        with np.errstate(over="ignore"):  # infinitely far is far; every thread must say so for itself
            for span in layout.spans(index):
                if span.tensor in compared:
                    for _, piece in rows.of(span):
                        found += _apart(piece)
        return found

    total = np.zeros((count, count))
    with np.errstate(over="ignore"):
        for found in ordered(pool, partial, layout.frames):
            total += found
    return total + total.T


def _apart(rows: np.ndarray) -> np.ndarray:
    """Return the squared distances of each row from those after it."""
    found = np.zeros((len(rows), len(rows)))
    for i in range(len(rows) - 1):
        apart = rows[i + 1 :] - rows[i]
        found[i, i + 1 :] = np.einsum("ij,ij->i", apart, apart)  # no BLAS: its order may vary
    return found
