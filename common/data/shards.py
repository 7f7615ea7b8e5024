"""From a job's `data:` section to one file per site."""

from pathlib import Path

import numpy as np

from hansa.common.data.partition import Iid, parse_partition, part
from hansa.common.data.sources import load_source
from hansa.common.errors import InvalidInput
from hansa.common.job import DataSpec


def write_shards(spec: DataSpec, sites: int, seed: int, folder: Path) -> list[Path]:
    """Write site-1.npz … with x, y and a share of the test set as x_test, y_test; together they hold all of it once."""
    data = load_source(spec.source, seed)
    train = part(parse_partition(spec.partition), data.train.y, sites, seed)
    test = part(Iid(), data.test.y, sites, seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be made: {error.strerror}") from None
    paths = []
    for number, (rows, test_rows) in enumerate(zip(train, test, strict=True), start=1):
        path = folder / f"site-{number}.npz"
        mine, held = data.train.take(rows), data.test.take(test_rows)
        np.savez(path, x=mine.x, y=mine.y, x_test=held.x, y_test=held.y)
        paths.append(path)
    return paths
