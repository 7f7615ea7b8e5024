"""Split the digits across sites: write site-1.npz, site-2.npz … into a folder.

python examples/digits/make_sites.py FOLDER [SITES] [DIGITS_PER_SITE]
"""

import sys
from pathlib import Path

import numpy as np

from hansa.data import DataSpec, write_shards


def main(folder: str, sites: str = "2", digits: str = "5") -> None:
    """Write one file per site and say what is in it; sites × digits must be a multiple of 10."""
    data = DataSpec(source="digits", partition={"kind": "non-iid-l", "labels": int(digits)})
    for path in write_shards(data, int(sites), seed=1990, folder=Path(folder)):
        with np.load(path) as data_file:
            y, y_test = data_file["y"], data_file["y_test"]
        print(f"{path}: {len(y)} images of {np.unique(y)}, {len(y_test)} test images")


if __name__ == "__main__":
    main(*sys.argv[1:])
