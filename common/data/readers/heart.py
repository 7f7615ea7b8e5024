"""UCI heart disease, by hospital: is there a narrowing of the coronary vessels?

Three of the thirteen columns (slope, ca, thal) are missing almost everywhere outside Cleveland and are left
out, as are rows with other missing values: 740 of 920 patients remain, as in FLamby's Fed-Heart-Disease.
Switzerland recorded no cholesterol (0 for every patient), which is kept.
"""

from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples
from hansa.common.data.partition.table import Key
from hansa.common.data.readers.files import damaged
from hansa.common.values.errors import InvalidData

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = ("age", "trestbps", "chol", "thalach", "oldpeak", "sex", "fbs", "exang")
AT = (0, 3, 4, 7, 9, 1, 5, 8)  # their positions in the file
PAIN, ECG, DISEASE = 2, 6, 13


def read_heart(files: dict[str, Path]) -> DataSet:
    """Read one file per hospital; measured columns come first, then columns of zeros and ones."""
    x, y, codes = [], [], []
    for number, path in enumerate(files.values()):
        with damaged(path, "one of UCI's processed heart-disease files"):
            table = np.genfromtxt(path, delimiter=",", missing_values="?", ndmin=2)
        if table.shape[1] != 14:
            raise InvalidData(f"{path}: {table.shape[1]} columns instead of 14")
        known = table[np.isfinite(table[:, [*range(10), DISEASE]]).all(axis=1)]
        pain = known[:, [PAIN]] == np.arange(1, 5)
        ecg = known[:, [ECG]] == np.arange(3)
        x.append(np.concatenate([known[:, AT], pain, ecg], axis=1).astype(np.float32))
        y.append((known[:, DISEASE] > 0).astype(np.int64))
        codes.append(np.full(len(known), number))
    names = (*COLUMNS, *(f"pain-{n}" for n in range(1, 5)), *(f"ecg-{n}" for n in range(3)))
    hospital = Key(np.concatenate(codes), HOSPITALS)
    examples = Examples(np.concatenate(x), np.concatenate(y))
    return DataSet(examples, 0, {"hospital": hospital}, names, ("healthy", "disease"))
