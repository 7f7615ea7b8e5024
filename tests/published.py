"""Small files in the formats in which data sets are published, so that tests need no real data."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an idx file of bytes."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    held = header + array.tobytes()
    path.write_bytes(gzip.compress(held) if path.suffix == ".gz" else held)


def write_mnist(
    folder: Path, ending: str = ".gz", train: int = 20, test: int = 10, writers: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Write a set like MNIST: noise with a bright row for the digit, optionally with writers."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    y = (np.arange(train + test) % 10).astype(np.uint8)
    x = rng.integers(0, 100, (train + test, 28, 28)).astype(np.uint8)
    x[np.arange(len(y)), 2 * y + 4] = 255
    for part, rows in (("train", slice(0, train)), ("t10k", slice(train, train + test))):
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", x[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", y[rows])
    if writers:
        hands = rng.integers(0, writers, train)
        np.savez(folder / "writers.npz", train_writer=hands, test_writer=np.full(test, 900))
    return x, y


def write_hospitals(root: Path, rows: int = 10) -> None:
    """Write a set like UCI's heart disease; the older the patient, the likelier the disease."""
    folder = root / "heart-disease"
    folder.mkdir(parents=True)
    for number, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        lines = [
            f"{40 + n},1,{1 + n % 4},120,200,0,{n % 3},150,0,1.5,?,?,?,{int(n > (rows + number) // 2)}"
            for n in range(rows + number)
        ]
        lines.append("50,1,2,?,200,0,0,150,0,1.5,2,0,3,1")  # no blood pressure: left out
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")


def write_covertype(folder: Path, rows: int = 300) -> None:
    """Write a set like Covertype: 35 soils and two classes, the first of which grows on high places."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    numeric = rng.integers(0, 3000, (10, rows)).astype(np.int16)
    np.savez(
        folder / "covertype.npz",
        numeric=numeric,
        wilderness=np.arange(rows, dtype=np.uint8) % 4,
        soil=np.arange(rows, dtype=np.uint8) % 35,
        y=np.where(numeric[0] > 1500, 1, 2).astype(np.uint8),
    )


def write_cifar(folder: Path, train: int = 100, test: int = 40) -> None:
    """Write a set like CIFAR-10 in binary batches: noise with a bright coloured bar for the class."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name in names:
        rows = test if name.startswith("test") else train // 5
        y = (np.arange(rows) % 10).astype(np.uint8)
        x = rng.integers(0, 80, (rows, 3, 32, 32)).astype(np.uint8)
        x[np.arange(rows), rng.integers(0, 3, rows), 3 * y + 1] = 255
        records = np.concatenate([y[:, None], x.reshape(rows, -1)], axis=1)
        (folder / name).write_bytes(records.tobytes())
