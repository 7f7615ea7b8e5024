"""What plugins return must be before it is used; whoever returns something else is named."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import index
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, JsonValue, TypeAdapter, ValidationError

from hansa.common.job.check import described, located
from hansa.common.models.frames import peaks
from hansa.common.values.documents import excess, finite
from hansa.common.values.errors import HansaError
from hansa.common.values.history import Score
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.arithmetic import Moments, Selecting, ServerUpdate
from hansa.controller.plugin.parts import EvalRequest, Part, Policy, Weigher

T = TypeVar("T")
SCORES = TypeAdapter(dict[SiteName, Score])
METRICS = TypeAdapter(dict[str, float])
REASONS = TypeAdapter(dict[SiteName, str])


def _storable(told: dict[str, JsonValue]) -> dict[str, JsonValue]:
    beyond = excess(told)
    if beyond:
        raise ValueError(located(beyond, {}))
    return told


DIAGNOSTICS = TypeAdapter(Annotated[dict[str, JsonValue], AfterValidator(_storable), AfterValidator(finite)])


def require(kind: TypeAdapter[T], told: object, part: Part) -> T:
    """Return what a part tells of a merge or a model; it must fit into the history."""
    try:
        return kind.validate_python(told)
    except ValidationError as error:
        raise ValueError(f"{part.point} {part.kind!r} says what cannot be kept: {described(error)}") from None


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


def require_requests(weigher: Weigher, given: Sequence[EvalRequest]) -> list[EvalRequest]:
    """Return whom a weigher wants to have an update measured by."""
    with suppress(TypeError):
        found = list(given)
        if all(isinstance(each, EvalRequest) and math.isfinite(each.seconds) for each in found):
            return found
    raise _wrong(weigher, f"it returned {given!r:.200}, which are no requests for evaluations")


def require_work(policy: Policy, shaped: Train) -> Train:
    """Return what a policy made of a training task."""
    if not isinstance(shaped, Train):
        raise _wrong(policy, f"it returned {shaped!r:.200}, which is no training")
    with sendable(policy):
        return Train.model_validate(shaped.model_dump(warnings=False))  # `model_copy` checks nothing


@contextmanager
def sendable(part: Part) -> Iterator[None]:
    """Refuse a task that no site could be told of: a part chose a number or a text that the wire does not carry."""
    try:
        yield
    except ValidationError as error:
        raise _wrong(part, f"it asks for a task that cannot be sent: {described(error)}") from None


def _impossible(weigher: Weigher, given: npt.ArrayLike) -> ValueError:
    return ValueError(f"the weigher {weigher.kind!r} returned impossible weights: {given!r:.200}")


# What merges compute with. Whoever asks is outside of the plugin, so the words name it.


def require_array(part: Part, made: object, count: int) -> np.ndarray:
    """Return what a part made of numbers: as many, and of a floating type, be they finite or not."""
    if isinstance(made, np.ndarray) and made.shape == (count,) and made.dtype.kind == "f":
        return made
    got = f"{made.dtype} {list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__
    raise _wrong(part, f"it returned {got} where {count} floating numbers are wanted")


def require_finite(part: Part, tensor: str, *found: np.ndarray, advice: str = "") -> None:
    """Refuse NaN and infinity in what a part made of a tensor, as the model will hold it."""
    if not all(np.isfinite(peaks(array)).all() for array in found if array.size):
        raise _wrong(part, f"it makes NaN or infinite numbers in tensor {tensor}{advice}")


def require_step(
    server: ServerUpdate, made: object, count: int, names: Collection[str]
) -> tuple[np.ndarray, Moments]:
    """Return what a server update made: the next numbers, and every moment."""
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], Mapping):
        raise _wrong(server, "it did not return the next numbers and a mapping of moments")
    after, moments = made
    if set(moments) != set(names):
        wanted, got = (", ".join(sorted(map(str, each))) or "none" for each in (names, moments))
        raise _wrong(server, f"it returned other moments than its own: {got} instead of {wanted}")
    return require_array(server, after, count), {
        name: require_array(server, moments[name], count) for name in names
    }


def require_choice(aggregator: Selecting, chosen: object, count: int) -> list[int]:
    """Return which contributions were chosen, in order: some, each once, and none that is not there."""
    with suppress(TypeError):
        found = sorted(index(each) for each in chosen)  # type: ignore[attr-defined]
        if found and len(set(found)) == len(found) and found[0] >= 0 and found[-1] < count:
            return found
    raise _wrong(aggregator, f"it chose {chosen!r:.200} of {count} updates")


def require_words(part: Part, said: object) -> str:
    """Return what a part says of a merge."""
    if isinstance(said, str):
        return said
    raise _wrong(part, f"it said {said!r:.200}, which is no text")


def _wrong(part: Part, why: str) -> HansaError:
    return HansaError(f"{part.point} {part.kind!r}: {why}")
