"""Buffers are used again, but never while somebody holds a part of them."""

import numpy as np

from hansa.common.process.memory import Buffers


def test_a_buffer_comes_back_when_its_last_view_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(64)
    address = first.ctypes.data
    view = first[8:16].view(np.float32).reshape(2, 1)
    del first
    assert buffers.take(64).ctypes.data != address, "a view is still held"
    del view
    assert address in {taken.ctypes.data for taken in (buffers.take(64), buffers.take(64))}


def test_another_size_is_another_buffer() -> None:
    buffers = Buffers()
    buffers.take(64)
    assert len(buffers.take(32)) == 32


def test_no_more_buffers_are_kept_than_allowed() -> None:
    buffers = Buffers(most=2)
    held = [buffers.take(16) for _ in range(4)]
    for i, buffer in enumerate(held):
        buffer[:] = i
    assert [buffer[0] for buffer in held] == [0, 1, 2, 3]


def test_a_buffer_can_be_written() -> None:
    assert Buffers().take(16).flags.writeable
