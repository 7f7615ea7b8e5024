"""What plugins return of a merge must be before the merge is made; whoever returns something else is named."""

from contextlib import suppress
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue, TypeAdapter, ValidationError

from hansa.common.ids import SiteName
from hansa.common.job import located, problems
from hansa.common.views import Score
from hansa.controller.engine.parts import Part, Weigher

T = TypeVar("T")
SCORES = TypeAdapter(dict[SiteName, Score])
DIAGNOSTICS = TypeAdapter(dict[str, JsonValue])


def require(kind: TypeAdapter[T], told: object, part: Part) -> T:
    """Return what a part tells of a merge; it must fit into the history."""
    try:
        return kind.validate_python(told)
    except ValidationError as error:
        wrong = "; ".join(located(problem, {}) for problem in problems(error))
        raise ValueError(f"{part.point} {part.kind!r} says of the merge what cannot be kept: {wrong}") from None


def require_weights(weigher: Weigher, given: npt.ArrayLike, count: int) -> np.ndarray:
    """Return what a weigher gave as one weight for each."""
    weights = require_numbers(weigher, given, count)
    if np.isfinite(weights).all() and (weights >= 0).all():
        return weights
    raise _impossible(weigher, given)


def require_numbers(weigher: Weigher, given: npt.ArrayLike, count: int) -> np.ndarray:
    """Return what a weigher gave as one number for each, finite or not."""
    with suppress(TypeError, ValueError):
        numbers = np.asarray(given, dtype=np.float64)
        if numbers.shape == (count,):
            return numbers
    raise _impossible(weigher, given)


def _impossible(weigher: Weigher, given: npt.ArrayLike) -> ValueError:
    return ValueError(f"the weigher {weigher.kind!r} returned impossible weights: {given!r:.200}")
