"""Covertype: forest cover types by terrain; 10 measured columns, then 4 + 40 columns of zeros and ones."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples
from hansa.common.data.partition.table import Key
from hansa.common.data.readers.files import damaged, read_bytes
from hansa.common.values.errors import InvalidData

CLASSES = (
    "spruce/fir",
    "lodgepole pine",
    "ponderosa pine",
    "cottonwood/willow",
    "aspen",
    "douglas-fir",
    "krummholz",
)
AREAS = ("Rawah", "Neota", "Comanche-Peak", "Cache-la-Poudre")
NUMERIC = (
    "elevation",
    "aspect",
    "slope",
    "horizontal_distance_to_hydrology",
    "vertical_distance_to_hydrology",
    "horizontal_distance_to_roadways",
    "hillshade_9am",
    "hillshade_noon",
    "hillshade_3pm",
    "horizontal_distance_to_fire_points",
)
SOILS = tuple(f"soil-{number}" for number in range(1, 41))


def read_npz(files: dict[str, Path]) -> DataSet:
    """Read the compact form: `numeric` (10 × n), `wilderness` and `soil` as numbers, `y` from 1 to 7."""
    (path,) = files.values()
    with damaged(path, "a compact Covertype file"), np.load(path, allow_pickle=False) as content:
        return _built(path, content["numeric"].T, content["wilderness"], content["soil"], content["y"])


def read_text(files: dict[str, Path]) -> DataSet:
    """Read UCI's text file of 55 columns."""
    (path,) = files.values()
    with damaged(path, "UCI's covtype.data"):
        table = np.loadtxt(io.BytesIO(read_bytes(path)), delimiter=",", dtype=np.int16, ndmin=2)
        if table.shape[1] != 55:
            raise InvalidData(f"{path}: {table.shape[1]} columns instead of 55")
        return _built(path, table[:, :10], table[:, 10:14].argmax(1), table[:, 14:54].argmax(1), table[:, 54])


def two_classes(read: Callable[[dict[str, Path]], DataSet]) -> Callable[[dict[str, Path]], DataSet]:
    """Return a reader of spruce/fir and lodgepole pine only, without soils on which they never grow.

    RADFed's COVCLS and COVFEAT have these 10 + 39 columns, but only 492,000 of the 495,141 rows; the paper
    does not say which it left out, or why.
    """

    def reader(files: dict[str, Path]) -> DataSet:
        data = read(files)
        rows = np.flatnonzero(data.examples.y < 2)
        content = data.examples.take(rows)
        kept = np.flatnonzero(
            [at < len(NUMERIC) or bool(content.x[:, at].any()) for at in range(content.x.shape[1])]
        )
        keys = {name: key.take(rows) for name, key in data.keys.items()}
        return DataSet(
            Examples(content.x[:, kept], content.y),
            0,
            keys,
            tuple(data.columns[at] for at in kept),
            data.classes[:2],
        )

    return reader


def _built(path: Path, numeric: np.ndarray, area: np.ndarray, soil: np.ndarray, y: np.ndarray) -> DataSet:
    labels = y.astype(np.int64) - 1
    if labels.min() < 0 or labels.max() > 6:
        raise InvalidData(f"{path}: labels must be 1 … 7")
    x = np.zeros((len(y), 54), np.float32)
    x[:, :10] = numeric
    x[np.arange(len(y)), 10 + area.astype(int)] = 1
    x[np.arange(len(y)), 14 + soil.astype(int)] = 1
    keys = {"wilderness": Key(area.astype(np.int64), AREAS), "soil": Key(soil.astype(np.int64), SOILS)}
    return DataSet(Examples(x, labels), 0, keys, (*NUMERIC, *AREAS, *SOILS), CLASSES)
