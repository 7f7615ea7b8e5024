"""Reader processes: they read the batches of a Dataset ahead of the process that trains.

A reader loads the app and calls its loader again, so nothing that a Dataset holds is pickled: a memory map or
an open file would not survive that. The processes are those of torch's DataLoader, started by a fork server,
because a process with gRPC's threads must not be forked.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hansa.common.app import App, load_app
from hansa.common.data.lazy import LazyExamples, Origin
from hansa.common.torch.reading import Order, Unread, read
from hansa.common.values.errors import InvalidData, Refused, reason

PRELOADED = ["torch", "hansa.common.torch.readers"]


class _Opened(Dataset[Any]):
    """The Dataset in a reader process, opened when the first batch is read."""

    def __init__(self, origin: Origin, length: int, folder: Path) -> None:
        self._origin, self._length, self._folder = origin, length, folder
        self._here: tuple[App, LazyExamples] | None = None

    def __getitem__(self, order: Order) -> Any:
        try:
            app, examples = self._here = self._here or self._open()
        except Exception as error:
            return Unread(reason(error), isinstance(error, InvalidData), "")
        return read(app, examples, order)

    def _open(self) -> tuple[App, LazyExamples]:
        os.chdir(self._folder)  # a reader begins where the fork server was started
        app = load_app(self._origin.app)
        examples = app.load(self._origin.path, self._origin.split)
        if not isinstance(examples, LazyExamples) or examples.length != self._length:
            raise InvalidData(
                f"{self._origin}: the Dataset had {self._length} examples when it was loaded, and has"
                f" {len(examples)} in a reader process; its length must not change"
            )
        return app, examples


class _Orders(Sampler[Any]):
    """The batches to read next."""

    orders: Iterable[Order] = ()

    def __iter__(self) -> Iterator[Order]:
        return iter(self.orders)


class Ahead:
    """The readers of one Dataset. They live on between passes over the data."""

    def __init__(self, origin: Origin, length: int, workers: int) -> None:
        self._origin, self._orders = origin, _Orders()
        self._loader: DataLoader[Any] = DataLoader(
            _Opened(origin, length, Path.cwd()),
            batch_size=None,  # an order is for a whole batch
            sampler=self._orders,
            num_workers=workers,
            collate_fn=_unchanged,
            worker_init_fn=_begin,
            multiprocessing_context="forkserver",
            generator=torch.Generator(),  # else it would draw from the one that training uses
            persistent_workers=True,
        )
        self.busy = False
        self.broken = False

    def read(self, orders: Iterable[Order]) -> Iterator[Any]:
        """Yield batches in the order in which they are asked for."""
        self.busy = True
        self._orders.orders = orders
        try:
            yield from self._loader
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            self.broken = True
            raise Refused(
                f"{self._origin}: a reader process of the Dataset ended unexpectedly; if the machine ran out"
                " of memory, use fewer readers (workers= of the app), or none"
            ) from error
        finally:
            self.busy = False


class Readers:
    """The reader processes of a daemon, by Dataset."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[Origin, int], Ahead] = {}

    def of(self, examples: LazyExamples, workers: int) -> Ahead | None:
        """Return the readers of a Dataset; None if they are in the middle of another pass over it."""
        key = examples.origin, workers
        if key not in self._ahead or self._ahead[key].broken:
            multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
            self._ahead[key] = Ahead(examples.origin, examples.length, workers)
        return None if self._ahead[key].busy else self._ahead[key]


def _unchanged(batch: Any) -> Any:
    return batch


def _begin(_number: int) -> None:
    """Let a reader end when its learner does, however that happens, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
