"""Scores: one number for a confusion matrix, counts of labels, or a loss; the larger, the better.

A matrix (metis-dvw §1) has a row for each true and a column for each predicted class. Where an example may
have several labels (metis-dvw §7) there are TP, FP and FN of each label instead. Counts of several sites are
pooled first and then scored: the mean of the sites' scores would be a different number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Literal

import numpy as np

from hansa.common.values.results import Evaluation

EPSILON = 1e-6  # keeps the inverse of a loss finite
Kind = Literal["classes", "labels"]
Shape = tuple[int, Kind]


def shape_of(report: Evaluation) -> Shape:
    """Return how many classes or labels a report counts; reports of one shape can be pooled."""
    return (len(report.labels), "labels") if report.labels else (len(report.confusion), "classes")


def unlike(shape: Shape, usual: Shape) -> str:
    """Say how a report differs from most."""
    (size, kind), (others, their) = shape, usual
    if kind == their == "classes":
        return f"its matrix has {size} classes, most have {others}"
    return f"it counts {size} {kind}, most count {others} {their}"


def pooled(reports: Sequence[Evaluation]) -> np.ndarray:
    """Add up the matrices, or the counts of labels, of reports of one shape."""
    return reduce(np.add, ((report.labels or report.confusion).array() for report in reports))


def micro_f1(confusion: np.ndarray) -> float:
    """Return 2TP / (2TP + FP + FN) over all classes; with one label per example this equals the accuracy."""
    return micro_f1_of_labels(by_class(confusion))


def macro_f1(confusion: np.ndarray) -> float:
    """Return the mean F1 of the classes that occur, as truth or as prediction."""
    return macro_f1_of_labels(by_class(confusion))


def weighted_f1(confusion: np.ndarray) -> float:
    """Return the mean F1 of the classes, each weighted by the number of its examples."""
    return weighted_f1_of_labels(by_class(confusion))


def by_class(confusion: np.ndarray) -> np.ndarray:
    """Return TP, FP and FN of each class."""
    right = np.diag(confusion)
    return np.stack([right, confusion.sum(axis=0) - right, confusion.sum(axis=1) - right], axis=1)


def micro_f1_of_labels(counts: np.ndarray) -> float:
    """Return 2TP / (2TP + FP + FN) over all labels; 1 if no label occurs and none is predicted."""
    right, *wrong = counts.astype(object).sum(axis=0)  # Python integers do not overflow
    return 2 * right / (2 * right + sum(wrong)) if right or any(wrong) else 1.0


def macro_f1_of_labels(counts: np.ndarray) -> float:
    """Return the mean F1 of the labels that occur, as truth or as prediction; 1 if none does."""
    occurring = counts[counts.any(axis=1)]
    return float((2 * occurring[:, 0] / (occurring @ [2, 1, 1])).mean()) if len(occurring) else 1.0


def weighted_f1_of_labels(counts: np.ndarray) -> float:
    """Return the mean F1 of the labels, each weighted by how often it occurs.

    If none occurs, it is 1 if none is predicted, and 0 otherwise.
    """
    occurring = counts[counts[:, 0] + counts[:, 2] > 0]
    if not len(occurring):
        return 0.0 if counts.any() else 1.0
    occurrences = occurring[:, 0] + occurring[:, 2]
    scores = 2 * occurring[:, 0] / (occurring @ [2, 1, 1])
    total: int = occurrences.astype(object).sum()  # Python integers do not overflow
    return math.fsum(occurrences * scores) / total


def mcc(confusion: np.ndarray) -> float:
    """Return Matthews' correlation for any number of classes (Gorodkin, 2004); below chance counts as 0."""
    # In Python integers: if nearly all examples are of one class, rounding could make the radicands negative.
    predicted, true = confusion.sum(axis=0).astype(object), confusion.sum(axis=1).astype(object)
    total = int(confusion.sum())
    covariance = int(np.trace(confusion)) * total - int(predicted @ true)
    spread = math.sqrt(total**2 - int(predicted @ predicted)) * math.sqrt(total**2 - int(true @ true))
    return min(max(covariance / spread, 0.0), 1.0) if spread else 0.0


def gmean(confusion: np.ndarray) -> float:
    """Return the geometric mean of the recalls of the classes that occur; 0 if one is never recognised."""
    true = confusion.sum(axis=1)
    recalls = np.diag(confusion)[true > 0] / true[true > 0]
    return float(np.exp(np.log(recalls).mean())) if (recalls > 0).all() else 0.0


def inverse_loss(mean: float) -> float:
    """Return 1 / (ε + mean loss); 0 for a loss that is not finite."""
    return 1 / (EPSILON + max(mean, 0.0)) if math.isfinite(mean) else 0.0


SCORES: Mapping[Kind, Mapping[str, Callable[[np.ndarray], float]]] = {
    "classes": {
        "micro_f1": micro_f1,
        "macro_f1": macro_f1,
        "weighted_f1": weighted_f1,
        "mcc": mcc,
        "gmean": gmean,
    },
    "labels": {
        "micro_f1": micro_f1_of_labels,
        "macro_f1": macro_f1_of_labels,
        "weighted_f1": weighted_f1_of_labels,
    },
}
