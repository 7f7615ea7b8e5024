"""Proposals that are not the mean of all contributions: medians and the like, and means of close ones.

Everything goes frame by frame: only a part of one frame of each contribution is in memory at a time, however
many contributions there are. Distances between models are sums over frames, added in the order of the frames,
so that threads do not matter.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from hansa.common.models.frames import Span, numbers
from hansa.common.models.model import DTYPES, Role
from hansa.common.plugins.calling import calling
from hansa.controller.community.reading import WINDOW, Carriers, Library, ordered, read_numbers
from hansa.controller.plugin.arithmetic import Coordinatewise
from hansa.controller.plugin.checks import require_array, require_finite
from hansa.controller.storage.stores import StoredModel
from hansa.controller.values.members import Member

LEAST = 1024  # columns that are processed at once, however little memory there is


class Rows:
    """The numbers of many models at the same place, one row for each."""

    def __init__(
        self, members: Sequence[Member], library: Library, current: StoredModel, memory: int
    ) -> None:
        self.carriers = Carriers(members, current.manifest.spec, library)
        self._library, self._current, self._memory = library, current, memory
        self._reading = threading.Lock()  # the library opens and closes models; only arithmetic is parallel

    def of(self, span: Span) -> Iterator[tuple[int, np.ndarray]]:
        """Yield rows of a span piece by piece, with the offset of each piece from the span's start."""
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
        """Return a span from the first member that carries its tensor, or from the current model."""
        info = self._current.manifest.spec.tensors[span.tensor]
        width = DTYPES[info.dtype].itemsize
        members = self.carriers.of(span.tensor)
        with self._reading:
            source = self._library.get(members[0].model) if members else self._current
            return read_numbers(source, info.name, span.start // width, span.stop // width, {})


def coordinatewise(
    aggregator: Coordinatewise[Any],
    members: Sequence[Member],
    library: Library,
    current: StoredModel,
    pool: Executor,
    memory: int,
) -> Iterator[np.ndarray]:
    """Yield the frames of a proposal; each number is combined from the contributions' numbers there."""
    spec, layout = current.manifest.spec, current.layout
    rows = Rows(members, library, current, memory)

    def compute(index: int) -> np.ndarray:
        frame = layout.blank(index)
        for span in layout.spans(index):
            info = spec.tensors[span.tensor]
            room = numbers(info, span, frame)
            if info.role is Role.COUNT or len(rows.carriers.of(span.tensor)) < 2:
                room[...] = rows.first(span)
                continue
            for start, piece in rows.of(span):
                columns = piece.shape[1]
                with np.errstate(over="ignore"):  # numbers too large for the tensor's type are found below
                    with calling(aggregator):
                        combined = aggregator.combine(piece)
                    room[start : start + columns] = require_array(aggregator, combined, columns)
            require_finite(aggregator, info.name, room)
        return frame

    rows.carriers.of(0)  # computed before threads ask for it
    yield from ordered(pool, compute, layout.frames)


def distances(
    members: Sequence[Member], library: Library, current: StoredModel, pool: Executor, memory: int
) -> np.ndarray:
    """Return the squared distances between contributions, over the averaged tensors that all carry."""
    spec, layout = current.manifest.spec, current.layout
    rows = Rows(members, library, current, memory)
    count = len(members)
    compared = {
        at
        for at, info in enumerate(spec.tensors)
        if info.role is not Role.COUNT and len(rows.carriers.of(at)) == count
    }

    def partial(index: int) -> np.ndarray:
        squares = np.zeros((count, count))
        with np.errstate(over="ignore"):  # infinitely far is far; the setting holds for one thread only
            for span in layout.spans(index):
                if span.tensor in compared:
                    for _, piece in rows.of(span):
                        squares += _apart(piece)
        return squares

    total = np.zeros((count, count))
    with np.errstate(over="ignore"):
        for squares in ordered(pool, partial, layout.frames):
            total += squares
    return total + total.T


def _apart(rows: np.ndarray) -> np.ndarray:
    """Return the squared distances of each row from those after it."""
    squares = np.zeros((len(rows), len(rows)))
    for i in range(len(rows) - 1):
        apart = rows[i + 1 :] - rows[i]
        squares[i, i + 1 :] = np.einsum("ij,ij->i", apart, apart)  # no BLAS: its order may vary
    return squares
