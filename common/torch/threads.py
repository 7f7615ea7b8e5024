"""How many threads PyTorch computes with: sums, and so the bits of models, depend on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def wait_without_spinning() -> None:
    """Keep threads that wait from taking the cores of others; must be called before PyTorch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use this many threads in the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
