"""What confusion matrices and losses say of a model in one number: the larger, the better (metis-dvw §1).

Row = true class, column = predicted class. Matrices of several sites are pooled first and scored then: the mean of
scores is another number.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

EPSILON = 1e-6  # keeps the inverse of a loss finite


def micro_f1(confusion: np.ndarray) -> float:
    """Return 2TP / (2TP + FP + FN) over all classes; with one label per example that is the accuracy, exactly."""
    right = int(np.trace(confusion))
    false_positives = int((confusion.sum(axis=0) - np.diag(confusion)).sum())
    false_negatives = int((confusion.sum(axis=1) - np.diag(confusion)).sum())
    return 2 * right / (2 * right + false_positives + false_negatives)


def macro_f1(confusion: np.ndarray) -> float:
    """Return the mean F1 of the classes that occur, as truth or as prediction."""
    right = np.diag(confusion).astype(np.float64)
    seen = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float((2 * right[seen > 0] / seen[seen > 0]).mean())


def mcc(confusion: np.ndarray) -> float:
    """Return Matthews' correlation for any number of classes (Gorodkin, 2004); below chance counts as 0."""
    # In whole numbers: where nearly all is one class, rounding could leave less than nothing to take the root of.
    predicted, true = confusion.sum(axis=0).astype(object), confusion.sum(axis=1).astype(object)
    total = int(confusion.sum())
    covariance = int(np.trace(confusion)) * total - int(predicted @ true)
    spread = math.sqrt(total**2 - int(predicted @ predicted)) * math.sqrt(total**2 - int(true @ true))
    return min(max(covariance / spread, 0.0), 1.0) if spread else 0.0


def gmean(confusion: np.ndarray) -> float:
    """Return the geometric mean of the recalls of the classes that occur; 0 if one is never found."""
    true = confusion.sum(axis=1)
    recalls = np.diag(confusion)[true > 0] / true[true > 0]
    return float(np.exp(np.log(recalls).mean())) if (recalls > 0).all() else 0.0


def inverse_loss(mean: float) -> float:
    """Return 1 / (ε + mean loss); nothing for a loss that is no number."""
    return 1 / (EPSILON + max(mean, 0.0)) if math.isfinite(mean) else 0.0


CLASSIFICATION: Mapping[str, Callable[[np.ndarray], float]] = {
    "micro_f1": micro_f1,
    "macro_f1": macro_f1,
    "mcc": mcc,
    "gmean": gmean,
}
