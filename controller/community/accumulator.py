"""The community accumulator: exact un-normalised sums of models (Metis's caching tier; methods/README §4).

For every tensor it knows which terms are in the sum W = Σ p·w. A commit adds and removes a few contributions
and costs O(model), however many others are in the sum. The sums can always be rebuilt from the store and are
then the same, bit for bit: their grid follows from the set of contributions alone.

The mean of one round is the same, with nothing kept from the round before. COUNT tensors are never averaged:
they are copied from the newest contribution with the largest weight. A tensor that is the same in all
contributions is copied, too, and a tensor that no contribution carries comes from the current model.

Only the ratios of weights matter: a factor that all weights have in common is divided out first (`scale`).
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from hansa.common.models.frames import Sealer, Span, numbers
from hansa.common.models.model import DTYPES, Manifest, ModelSpec, Role
from hansa.common.values.errors import HansaError, StoreFailed
from hansa.common.values.ids import ModelKey
from hansa.controller.community import kernels
from hansa.controller.community.column import Column
from hansa.controller.community.grid import Grid
from hansa.controller.community.reading import GROUP, Cache, Carriers, Library, carried, ordered, read_numbers
from hansa.controller.community.scale import Scale
from hansa.controller.storage.stores import Draft, StoredModel
from hansa.controller.values.members import Change, Member


@dataclass
class _Plan:
    """How one tensor is computed: without a grid, its bytes are copied; with one, a sum is divided."""

    grid: Grid | None = None
    total: float = 1.0
    fresh: bool = False  # whether the sum starts at zero
    terms: dict[ModelKey, float] = field(default_factory=dict)  # weights; negative ones remove a term
    copied: ModelKey | None = None  # the model that bytes are copied from; None for the current model

    @property
    def averages(self) -> bool:
        """Whether the tensor's numbers are computed from the sum."""
        return self.grid is not None and self.copied is None


class Accumulator:
    """The sums of one job's model. If they are `kept`, the next commit goes on from them."""

    def __init__(self, spec: ModelSpec, kept: bool, memory: int = 1 << 40) -> None:
        self._spec = spec
        self._memory = memory  # bytes; larger sums are mapped from a scratch file
        self._kept = kept
        kernels.preload(sum(info.elements for info in spec.tensors))
        self._scale = Scale()
        self._clear()
        self._sums: list[np.ndarray] | None = self._room() if kept else None

    def _clear(self) -> None:
        """Forget the terms in the sums; the next terms overwrite the numbers."""
        self._columns = [Column() for _ in self._spec.tensors]
        self._grids: list[Grid | None] = [None] * len(self._spec.tensors)

    def _room(self) -> list[np.ndarray]:
        """Return sums of zero for every tensor that is averaged."""
        counts = [0 if info.role is Role.COUNT else info.elements for info in self._spec.tensors]
        total = sum(counts)
        numbers = np.zeros(total) if 8 * total <= self._memory else _mapped(total)
        return np.split(numbers, np.cumsum(counts)[:-1])

    def commit(
        self,
        change: Change,
        open_model: Callable[[ModelKey], StoredModel],
        current: StoredModel,
        draft: Draft,
        pool: Executor,
    ) -> tuple[Manifest, list[float]]:
        """Change the sums and write the new mean into a draft, which the caller publishes.

        After an error the sums are invalid: make a new accumulator and commit all members to it.
        """
        sealer = Sealer(self._spec, pool=pool)
        for index, frame in enumerate(self.frames(change, open_model, current, pool)):
            sealer.feed(frame)
            draft.write(index, frame)
        return sealer.manifest(), sealer.peaks

    def frames(
        self,
        change: Change,
        open_model: Callable[[ModelKey], StoredModel],
        current: StoredModel,
        pool: Executor,
    ) -> Iterator[np.ndarray]:
        """Change the sums and yield the frames of the new mean; the sums are invalid until all are taken."""
        with Library(open_model) as library:
            plans = self._plan(change, library)
            terms = sorted({key for plan in plans for key in plan.terms})
            copied = sorted({plan.copied for plan in plans if plan.copied is not None})
            groups = [terms[i : i + GROUP] for i in range(0, len(terms), GROUP)] or [[]]
            sums = self._sums or (self._room() if len(groups) > 1 else None)
            for number, group in enumerate(groups):
                last = number == len(groups) - 1
                sources = library.models(copied) if last else {}
                step = _Step(plans, library.models(group), sources, current, sums, number == 0, last)
                for frame in ordered(pool, step.frame, current.layout.frames):
                    if last:
                        yield frame

    def _plan(self, change: Change, library: Library) -> list[_Plan]:
        """Enter the change into the columns and decide how each tensor is computed."""
        self._scale.change(change.added, 1)
        self._scale.change(change.removed, -1)
        if self._scale.settle():  # all terms are different now
            self._clear()
            added, removed = self._enter(change.members, 1, library), self._enter((), -1, library)
        else:
            added, removed = self._enter(change.added, 1, library), self._enter(change.removed, -1, library)
        weight = self._scale
        carriers = Carriers(change.members, self._spec, library)
        newest = {member.model for member in change.newest}
        plans = []
        for tensor, info in enumerate(self._spec.tensors):
            column, before = self._columns[tensor], self._grids[tensor]
            if info.role is Role.COUNT or not column.count:
                self._grids[tensor] = None
                counted = added[tensor] if info.role is Role.COUNT else ()
                candidates = [member for member in counted if member.model in newest]
                # `max` returns the first of several equal ones.
                chosen = max(candidates, key=lambda member: member.weight, default=None)
                plans.append(_Plan(copied=chosen.model if chosen else None))
                if self._sums is not None:
                    self._sums[tensor].fill(0)
                continue
            grid = self._grids[tensor] = column.grid()
            try:
                total = column.total(grid)
            except OverflowError:
                raise HansaError(
                    f"tensor {info.name}: the weights of its {column.count} updates are too large: their sum"
                    " exceeds the largest float64; the weigher must give smaller ones"
                ) from None
            plan = _Plan(grid, total, fresh=grid != before or not self._kept)
            if column.alike:
                # Σp·w / Σp is w itself, not w rounded to the grid.
                plan.copied = (added[tensor] or carriers.of(tensor))[0].model
            if plan.fresh:
                plan.terms = {member.model: weight(member) for member in carriers.of(tensor)}
            else:
                plan.terms = {member.model: -weight(member) for member in removed[tensor]}
                plan.terms |= {member.model: weight(member) for member in added[tensor]}
            plans.append(plan)
        return plans

    def _enter(self, members: Iterable[Member], sign: int, library: Library) -> list[list[Member]]:
        """Enter contributions into the columns of the tensors they carry; return them by tensor."""
        by_tensor: list[list[Member]] = [[] for _ in self._spec.tensors]
        for member in members:
            if member.weight <= 0:
                continue
            model = library.get(member.model)
            for tensor in carried(member, model, self._spec):
                at = model.manifest.spec.index[self._spec.tensors[tensor].name]
                self._columns[tensor].change(
                    self._scale(member), model.peaks[at], model.manifest.digests[at], sign
                )
                by_tensor[tensor].append(member)
        return by_tensor


def _mapped(total: int) -> np.ndarray:
    """Return zeros in a scratch file: derived data, which need not outlive the process."""
    try:
        with tempfile.TemporaryFile() as scratch:
            scratch.truncate(8 * total)
            if hasattr(os, "posix_fallocate"):  # a full disk fails here, not by a fatal signal later
                os.posix_fallocate(scratch.fileno(), 0, 8 * total)
            return np.memmap(scratch, dtype=np.float64, mode="r+", shape=(total,))
    except OSError as error:
        raise StoreFailed(
            f"no room for sums of {8 * total >> 20} MiB in {tempfile.gettempdir()}: {error.strerror}"
        ) from error


@dataclass(frozen=True)
class _Step:
    """One pass over the frames with a group of open models."""

    plans: Sequence[_Plan]
    models: dict[ModelKey, StoredModel]
    copied: dict[ModelKey, StoredModel]
    current: StoredModel
    sums: list[np.ndarray] | None
    first: bool
    last: bool

    def frame(self, index: int) -> np.ndarray:
        """Add this group's terms to one frame's sums; in the last pass return the frame of the mean.

        It runs on a worker thread; numpy releases the interpreter lock.
        """
        layout, tensors = self.current.layout, self.current.manifest.spec.tensors
        spans = [(span, self.plans[span.tensor]) for span in layout.spans(index)]
        frame = layout.blank(index) if self.last else np.empty(0, dtype=np.uint8)
        rooms = [numbers(tensors[span.tensor], span, frame) for span, _ in spans] if self.last else []
        sums = [self._sum(span, plan) for span, plan in spans]
        fresh = [plan.fresh and self.first for _, plan in spans]
        open_means = {i for i, (_, plan) in enumerate(spans) if self.last and plan.averages}
        pairs = list(self._pairs())
        for pair in pairs:
            caches: dict[ModelKey, Cache] = {key: {} for key in pair}
            for i, (span, plan) in enumerate(spans):
                terms = [
                    (self._read(model, span, caches[key]), plan.terms[key])
                    for key, model in pair.items()
                    if key in plan.terms
                ]
                if plan.grid is None or not terms:
                    continue
                if pair is pairs[-1] and i in open_means:
                    plan.grid.add_and_mean(sums[i], terms, fresh[i], plan.total, rooms[i])
                    open_means.remove(i)
                else:
                    plan.grid.add(sums[i], terms, fresh[i])
                fresh[i] = False
        for total, untouched in zip(sums, fresh, strict=True):
            if untouched:  # its terms are in later groups
                total.fill(0)
        for i, room in enumerate(rooms):
            span, plan = spans[i]
            if not plan.averages:
                source = self.copied[plan.copied] if plan.copied is not None else self.current
                room[...] = self._read(source, span, {})
            elif i in open_means and plan.grid is not None:
                plan.grid.mean(sums[i], plan.total, room)
        return frame

    def _pairs(self) -> Iterator[dict[ModelKey, StoredModel]]:
        """Yield the group's models in pairs: only two frames are in memory, however many models there are."""
        models = iter(self.models.items())
        while pair := dict(islice(models, 2)):
            yield pair

    def _sum(self, span: Span, plan: _Plan) -> np.ndarray:
        """Return the array of a span's sum; the first terms of a fresh sum overwrite it."""
        width = DTYPES[self.current.manifest.spec.tensors[span.tensor].dtype].itemsize
        if plan.grid is None:
            return np.empty(0)
        if self.sums is None:
            return np.empty(span.size // width)
        return self.sums[span.tensor][span.start // width : span.stop // width]

    def _read(self, model: StoredModel, span: Span, cache: Cache) -> np.ndarray:
        """Return a span of a tensor from a model, which may be laid out differently (a partial update)."""
        info = self.current.manifest.spec.tensors[span.tensor]
        width = DTYPES[info.dtype].itemsize
        return read_numbers(model, info.name, span.start // width, span.stop // width, cache)
