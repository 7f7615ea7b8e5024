"""An app whose data are 20 GB of features in a sparse file, which are read row by row from a memory map."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hansa import App

GB = float(os.environ.get("HANSA_BENCH_GB", "20"))
FEATURES = 12_288  # such as 3 × 64 × 64 pixels
ROWS = int(GB * 1e9) // (4 * FEATURES)


class Mapped:
    """Rows of a file. Each row has a map of its own: pages of one that stays open would count as memory."""

    def __init__(self, path: Path, split: str) -> None:
        self._file = path / "features.f32"
        with self._file.open("ab") as file:
            file.truncate(4 * FEATURES * ROWS)
        self.targets = np.arange(ROWS, dtype=np.uint8) % 10

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        mapped = np.memmap(self._file, np.float32, "r", 4 * FEATURES * row, (FEATURES,))
        return torch.from_numpy(mapped + np.float32(row % 10)), int(self.targets[row])


def build() -> nn.Module:
    """Return a small network."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 10))


app = App(model=build, classes=10, data=Mapped)
ahead = App(model=build, classes=10, data=Mapped, workers=1)
