"""What plugins make of an update before it is returned."""

from collections.abc import Mapping

import numpy as np

from hansa.common.models.model import ModelSpec
from hansa.common.values.errors import Refused
from hansa.common.values.wording.words import listed
from hansa.learner.plugins.contract import Returned
from hansa.learner.plugins.selection import Company


def amend(
    company: Company,
    spec: ModelSpec,
    places: Mapping[str, np.ndarray],
    payload: np.ndarray,
    metrics: dict[str, float],
) -> dict[str, float]:
    """Let plugins change an update in its place in the payload; return the metrics that go with it.

    `spec` is that of the update itself; the auxiliary tensors that plugins return have places after it.
    """
    update = Returned({name: places[name] for name in spec.names}, spec.roles, metrics=metrics)
    beside = company.amend(update, spec)
    replaced = {name: array for name, array in update.tensors.items() if array is not places[name]} | beside
    missing = [name for name in places if name not in update.tensors and name not in beside]
    if missing:
        raise Refused(f"the rule asks for auxiliary tensors, but no plugin returned {listed(missing)}")
    # Copied first if they are parts of the payload itself: two tensors may have changed places.
    separate = {n: a.copy() if np.may_share_memory(a, payload) else a for n, a in replaced.items()}
    for name, array in separate.items():
        places[name][...] = array
    return update.metrics
