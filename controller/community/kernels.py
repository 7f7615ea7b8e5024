"""The compiled inner loops of exact sums: they do in one pass over memory what takes numpy eight.

They round and add exactly as numpy does, operation by operation (no fused multiply-add, no reordering), so
that it does not matter which of the two has computed a model. Loading the compiler takes seconds and memory,
and on a new machine the loops are compiled first: `preload` does this on a thread of its own, for large
models only. Until it is done, or if the compiler is not available, numpy does the work.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGE = 1_000_000  # numbers of a model from which on loading pays off
log = logging.getLogger(__name__)
Numbers = np.ndarray


@dataclass(frozen=True)
class Kernels:
    """Compiled loops over one-dimensional, contiguous float32 or float64 arrays."""

    add_one: Callable[[Numbers, Numbers, float, float, bool], None]  # total, numbers, factor, constant, fresh
    add_two: Callable[[Numbers, Numbers, float, Numbers, float, float, bool], None]
    divide: Callable[[Numbers, float, Numbers], None]  # total, divisor, output
    add_two_divide: Callable[[Numbers, Numbers, float, Numbers, float, float, bool, float, Numbers], None]


loaded: Kernels | None = None  # None until they are loaded
loading: threading.Thread | None = None
_lock = threading.Lock()


def preload(elements: int) -> None:
    """Begin to load the kernels if a model of `elements` numbers is large enough; return at once."""
    global loading  # noqa: PLW0603 - a process needs them once
    with _lock:
        if elements >= LARGE and loading is None:
            loading = threading.Thread(target=load, name="kernels", daemon=True)
            loading.start()


def load() -> None:
    """Load the kernels; compile them if this has never been done on this machine."""
    global loaded  # noqa: PLW0603
    try:
        loaded = compiled()
    except Exception:  # whatever it is, numpy can do the work
        log.exception("sums are computed by numpy, which is slower: the compiled loops cannot be loaded")


def ready(*arrays: Numbers) -> Kernels | None:
    """Return the kernels if they are loaded and can take these arrays."""
    if loaded is None:
        return None
    fit = all(array.dtype in (np.float32, np.float64) and array.flags.c_contiguous for array in arrays)
    return loaded if fit else None


def compiled() -> Kernels:
    """Return the kernels, from the cache of an earlier compilation if there is one."""
    from numba import njit, types

    double, flag, void = types.float64, types.boolean, types.void
    sums = types.Array(double, 1, "C")
    inputs = [types.Array(number, 1, "C", readonly=True) for number in (types.float32, types.float64)]
    outputs = [types.Array(number, 1, "C") for number in (types.float32, types.float64)]
    options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
    ones = [void(sums, a, double, double, flag) for a in inputs]
    twos = [void(sums, a, double, a, double, double, flag) for a in inputs]
    means = [void(sums, double, out) for out in outputs]
    commits = [
        void(sums, a, double, a, double, double, flag, double, out)
        for a, out in zip(inputs, outputs, strict=True)
    ]
    return Kernels(
        add_one=njit(ones, **options)(_add_one),
        add_two=njit(twos, **options)(_add_two),
        divide=njit(means, **options)(_divide),
        add_two_divide=njit(commits, **options)(_add_two_divide),
    )


def _add_one(total: Any, numbers: Any, factor: float, constant: float, fresh: bool) -> None:
    for i in range(total.size):
        term = (np.float64(numbers[i]) * factor + constant) - constant
        total[i] = term if fresh else total[i] + term


def _add_two(total: Any, a: Any, of_a: float, b: Any, of_b: float, constant: float, fresh: bool) -> None:
    for i in range(total.size):
        both = (np.float64(a[i]) * of_a + constant) + (np.float64(b[i]) * of_b - constant)
        total[i] = both if fresh else total[i] + both


def _add_two_divide(
    total: Any,
    a: Any,
    of_a: float,
    b: Any,
    of_b: float,
    constant: float,
    fresh: bool,
    divisor: float,
    out: Any,
) -> None:
    for i in range(total.size):
        both = (np.float64(a[i]) * of_a + constant) + (np.float64(b[i]) * of_b - constant)
        after = both if fresh else total[i] + both
        total[i] = after
        out[i] = after / divisor


def _divide(total: Any, divisor: float, out: Any) -> None:
    for i in range(total.size):
        out[i] = total[i] / divisor
