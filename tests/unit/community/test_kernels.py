"""Compiled sums equal numpy's, bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hansa.controller.community import kernels
from tests.unit.samples import grid_of

FLOATS: dict[type[Any], Literal[32, 64]] = {np.float32: 32, np.float64: 64}
LENGTHS = st.sampled_from([1, 2, 7, 64, 1001])


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    before = kernels.loaded
    kernels.load()
    assert kernels.loaded
    yield
    kernels.loaded = before


@contextmanager
def numpy_alone() -> Iterator[None]:
    held, kernels.loaded = kernels.loaded, None
    try:
        yield
    finally:
        kernels.loaded = held


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


@settings(max_examples=150, deadline=None)
@given(st.data(), LENGTHS, st.lists(st.sampled_from(list(FLOATS)), min_size=1, max_size=3), st.booleans())
def test_terms_are_added_as_numpy_adds_them(
    data: st.DataObject, length: int, kinds: list[type[Any]], fresh: bool
) -> None:
    terms = []
    for kind in kinds:
        finite = st.floats(-(2.0**100), 2.0**100, width=FLOATS[kind])
        numbers = data.draw(arrays.arrays(kind, length, elements=finite))
        numbers.flags.writeable = False  # as frames of a store are
        terms.append((numbers, data.draw(st.floats(1e-3, 1e6)) * data.draw(st.sampled_from([1, -1]))))
    grid = grid_of(
        [abs(weight) for _, weight in terms], [float(np.abs(numbers).max()) for numbers, _ in terms]
    )
    total, divisor, kind = (
        np.zeros(length),
        data.draw(st.floats(1e-3, 1e6)),
        data.draw(st.sampled_from(kinds)),
    )
    room, expected = np.empty(length, kind), np.empty(length, kind)
    with numpy_alone():
        grid.add(total, terms[:1], fresh=True)
    again, at_once = total.copy(), total.copy()
    grid.add(again, terms, fresh)
    grid.add_and_mean(at_once, terms, fresh, divisor, room)
    with numpy_alone():
        grid.add(total, terms, fresh)
        grid.mean(total, divisor, expected)
    assert bits(again) == bits(total) == bits(at_once)
    assert bits(room) == bits(expected)


@given(st.data(), LENGTHS, st.sampled_from(list(FLOATS)), st.floats(1e-3, 1e6))
def test_means_are_rounded_as_numpy_rounds_them(
    data: st.DataObject, length: int, kind: type[Any], divisor: float
) -> None:
    total = data.draw(arrays.arrays(np.float64, length, elements=st.floats(-1e40, 1e40)))
    out: np.ndarray = np.empty(length, kind)
    expected: np.ndarray = np.empty(length, kind)
    loops = kernels.ready(total, out)
    assert loops
    loops.divide(total, divisor, out)
    with np.errstate(over="ignore"):
        np.divide(total, divisor, out=expected, casting="unsafe")
    assert bits(out) == bits(expected)


def test_arrays_that_the_loops_cannot_take_are_left_to_numpy() -> None:
    assert kernels.ready(np.zeros(4, np.float16)) is None
    assert kernels.ready(np.zeros(8)[::2]) is None
    assert kernels.ready(np.zeros(4)) is not None


def test_only_large_models_load_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Thread] = []
    monkeypatch.setattr(kernels, "loading", None)

    def start(thread: Thread) -> None:
        started.append(thread)

    monkeypatch.setattr(Thread, "start", start)
    kernels.preload(kernels.LARGE - 1)
    assert started == []
    kernels.preload(kernels.LARGE)
    kernels.preload(kernels.LARGE)
    assert len(started) == 1


def test_without_the_compiler_numpy_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> kernels.Kernels:
        raise ImportError("no numba")

    monkeypatch.setattr(kernels, "compiled", missing)
    monkeypatch.setattr(kernels, "loaded", None)
    kernels.load()
    assert kernels.ready(np.zeros(4)) is None
    assert "numpy, which is slower" in caplog.text
    total = np.zeros(3)
    grid_of([2.0], [4.0]).add(total, [(np.array([1.0, 2.0, 4.0], np.float32), 2.0)], fresh=True)
    assert total.tolist() == [2.0, 4.0, 8.0]
