"""How far a community model is from the job's reference. Nothing in training depends on it."""

import numpy as np

from hansa.common.models.distance import distance, misfit
from hansa.common.models.model import ModelSpec
from hansa.common.values.errors import InvalidJob
from hansa.common.values.ids import ModelKey
from hansa.controller.community.excerpts import own_part
from hansa.controller.community.reading import Cache, read_numbers
from hansa.controller.storage.stores import Store

HELD = 16  # frames of a reference in memory: its tensors may be in another order than the model's


def require_reference(model: ModelSpec, reference: ModelSpec) -> None:
    """Refuse a reference whose tensors are not those of the job's model."""
    wrong = misfit(model, reference)
    if wrong:
        raise InvalidJob(f"reference: it does not fit the job's model: {wrong}")


def distance_between(store: Store, model: ModelKey, reference: ModelKey) -> float:
    """Return how far a stored model is from a reference, with only a few frames of both in memory."""
    with own_part(store.open(model)) as here, store.open(reference) as there:
        require_reference(here.manifest.spec, there.manifest.spec)
        cache: Cache = {}

        def numbers(name: str, start: int, stop: int) -> np.ndarray:
            while len(cache) > HELD:
                del cache[next(iter(cache))]
            return read_numbers(there, name, start, stop, cache)

        frames = (here.read(index) for index in range(here.layout.frames))
        return distance(here.layout, frames, numbers)
