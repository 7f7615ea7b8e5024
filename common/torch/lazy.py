"""Batches that are read when they are needed, by this process or by reader processes ahead of it.

Every batch is read with a seed of its own, and the step that it is for has another one. So neither what a
Dataset draws nor what a network draws depends on who reads a batch: a learner with readers, one without, and
a simulation get the same numbers.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from hansa.common.app import App
from hansa.common.data.lazy import AnyExamples, LazyExamples
from hansa.common.torch.data import Batch, Data, to_tensors
from hansa.common.torch.readers import Readers
from hansa.common.torch.reading import Order, parted, read, require_read
from hansa.common.torch.seeding import mixed, seed_generators


class LazyData:
    """A part of a site's data of which only the next batches are in memory."""

    usual = 64  # examples: they may be large pictures

    def __init__(self, app: App, examples: LazyExamples, device: str, readers: Readers | None = None) -> None:
        """Without `readers` this process reads everything itself, whatever the app says."""
        self._app, self._examples, self._device, self._readers = app, examples, device, readers

    def __len__(self) -> int:
        return len(self._examples)

    def batches(self, rows: Iterable[torch.Tensor], seed: int = 0, augment: bool = False) -> Iterator[Batch]:
        """Yield the batches with these row numbers; readers may ask for some of them ahead."""
        self._examples.require_same_length()
        sizes: deque[int] = deque()

        def orders() -> Iterator[Order]:
            for number, chosen in enumerate(rows):
                sizes.append(len(chosen))
                numbers = self._examples.rows[chosen.cpu().numpy()]
                yield Order(mixed(seed, 2 * number), numbers, augment, self._examples.standard)

        for number, batch in enumerate(self._read(orders())):
            whole = parted(require_read(batch), sizes.popleft(), self._device, self._examples.origin)
            seed_generators(mixed(seed, 2 * number + 1))
            yield whole

    def in_order(self) -> Iterator[Batch]:
        """Yield every example once, in order."""
        starts = range(0, len(self), self.usual)
        return self.batches(torch.arange(each, min(each + self.usual, len(self))) for each in starts)

    def _read(self, orders: Iterator[Order]) -> Iterator[Any]:
        workers, origin = self._app.workers, self._examples.origin
        if workers and self._readers is not None and origin.app:
            ahead = self._readers.of(self._examples, workers)
            if ahead is not None:
                return ahead.read(orders)
        return (read(self._app, self._examples, order) for order in orders)


def to_data(app: App, examples: AnyExamples, device: str, readers: Readers | None = None) -> Data:
    """Return examples as batches: arrays are converted once, and Datasets stay where they are."""
    if isinstance(examples, LazyExamples):
        return LazyData(app, examples, device, readers)
    return to_tensors(app, examples, device)
