"""How far apart models are: the mean of 1 − cos over all pairs of models (radfed §5).

It is computed from one matrix of inner products. Only parameters count, and of partial updates only those
that all of them carry. It is a diagnosis: nothing else is computed from it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np

from hansa.common.models.model import Role
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.community.reading import Library, ordered
from hansa.controller.community.robust import Rows
from hansa.controller.storage.stores import StoredModel
from hansa.controller.values.members import Member

Compared = Sequence[tuple[ModelKey, ModelKey | None]]  # models, and what to subtract from each


def divergence(
    compared: Compared,
    open_model: Callable[[ModelKey], StoredModel],
    current: StoredModel,
    pool: Executor,
    memory: int,
) -> float | None:
    """Return the mean over pairs, or None if there are fewer than two models."""
    if len(compared) < 2:
        return None
    return mean_distance(_products(compared, open_model, current, pool, memory))


def mean_distance(products: np.ndarray) -> float:
    """Return the mean of 1 − cos over all pairs, from the vectors' inner products.

    A vector of zeros has no direction: two of them count as equal, and one of them and any other vector count
    as orthogonal.
    """
    lengths = np.sqrt(np.diag(products))
    zero = lengths == 0
    scale = np.where(zero, 1.0, lengths)
    apart = 1 - np.clip(products / scale[:, None] / scale[None, :], -1.0, 1.0)
    apart[np.ix_(zero, zero)] = 0.0
    pairs = np.triu_indices(len(products), 1)
    return float(apart[pairs].mean())


def _products(
    compared: Compared,
    open_model: Callable[[ModelKey], StoredModel],
    current: StoredModel,
    pool: Executor,
    memory: int,
) -> np.ndarray:
    count = len(compared)
    spec, layout = current.manifest.spec, current.layout
    with Library(open_model) as library, Library(open_model) as others:
        rows = Rows(_members([key for key, _ in compared]), library, current, memory // 2)
        bases = [base for _, base in compared if base is not None]
        before = Rows(_members(bases), others, current, memory // 2) if bases else None
        carried = [len(rows.carriers.of(at)) == count for at in range(len(spec.tensors))]
        if before:
            before.carriers.of(0)  # computed before threads ask for it

        def partial(index: int) -> np.ndarray:
            products = np.zeros((count, count))
            for span in layout.spans(index):
                if not carried[span.tensor] or spec.tensors[span.tensor].role is not Role.PARAM:
                    continue
                pieces = before.of(span) if before else None
                for _, piece in rows.of(span):
                    vectors = piece - next(pieces)[1] if pieces else piece
                    products += vectors @ vectors.T
            return products

        total = np.zeros((count, count))
        for products in ordered(pool, partial, layout.frames):
            total += products
    return total


def _members(keys: Sequence[ModelKey]) -> list[Member]:
    return [Member(site=SiteName(""), task=TaskId(""), model=key, weight=1.0) for key in keys]
