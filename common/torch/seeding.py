"""Seeds, and the random generators that a whole process shares: PyTorch's, numpy's and Python's."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock

import numpy as np
import torch

from hansa.common.values.tasks import Task

_lock = RLock()  # two threads must not borrow the generators at the same time


def task_seed(task: Task) -> int:
    """Return the seed of a task, from the job's seed, the site, the round and, if it is not 1, the hop."""
    words = [task.seed, zlib.crc32(task.site.encode()), task.round, *([task.hop] if task.hop > 1 else [])]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


def seed_generators(seed: int) -> None:
    """Seed all shared generators, so that what an app draws from any of them is the same every time."""
    if _has_accelerator():
        torch.manual_seed(seed)
    else:  # `torch.manual_seed` does the same, but spends most of its time on GPUs that are not there
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)


def mixed(seed: int, number: int) -> int:
    """Return the seed of one of many things that follow from a seed, such as of a batch (SplitMix64)."""
    word = (seed + (number + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (word ^ (word >> 31)) >> 1


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the states of the shared generators afterwards; other threads wait if they want that, too."""
    with _lock:
        plain, arrays = random.getstate(), np.random.get_state()
        # A GPU that nobody has used yet has no state, and asking for one would take some of its memory.
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        devices = range(torch.cuda.device_count()) if used else ()
        try:
            with torch.random.fork_rng(devices=devices):
                yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)


@cache
def _has_accelerator() -> bool:
    """Whether this machine may have a GPU; before PyTorch 2.6 there is no simple way to know."""
    return not hasattr(torch, "accelerator") or torch.accelerator.is_available()
