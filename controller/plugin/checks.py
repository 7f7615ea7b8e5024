"""Checks what plugins return before it is used, and names the plugin that broke its contract."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import index
from typing import Annotated, Any, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, JsonValue, TypeAdapter, ValidationError

from hansa.common.job.check import described, located
from hansa.common.models.frames import peaks
from hansa.common.values.documents import excess, finite
from hansa.common.values.errors import PluginFailed
from hansa.common.values.history import Score
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.actions import Action
from hansa.controller.plugin.arithmetic import Moments, Selecting, ServerUpdate
from hansa.controller.plugin.parts import EvalRequest, Pacer, Part, Weigher
from hansa.controller.plugin.policies import Policy

T = TypeVar("T")
ACTIONS = get_args(Action)
SCORES = TypeAdapter(dict[str, Score])
METRICS = TypeAdapter(dict[str, float])
REASONS = TypeAdapter(dict[SiteName, str])


def _storable(told: dict[str, JsonValue]) -> dict[str, JsonValue]:
    beyond = excess(told)
    if beyond:
        raise ValueError(located(beyond, {}))
    return told


DIAGNOSTICS = TypeAdapter(Annotated[dict[str, JsonValue], AfterValidator(_storable), AfterValidator(finite)])


# What the engine decides by.


def require_history(kind: TypeAdapter[T], part: Part[Any], returned: object) -> T:
    """Return what a part says of a merge or a model, if it can be kept in the history."""
    try:
        return kind.validate_python(returned)
    except ValidationError as error:
        raise PluginFailed(part, f"it says what cannot be kept: {described(error)}") from None


def require_actions(pacer: Pacer[Any], returned: object) -> list[Action]:
    """Return what a pacer wants done, if it is a list of actions."""
    if isinstance(returned, list) and all(isinstance(each, ACTIONS) for each in returned):
        return returned
    raise PluginFailed(pacer, f"it returned {returned!r:.200}, which is not a list of actions")


def require_numbers(weigher: Weigher[Any], returned: npt.ArrayLike, count: int) -> np.ndarray:
    """Return weights, if there is one number for each contribution, finite or not."""
    with suppress(TypeError, ValueError):
        numbers = np.asarray(returned, dtype=np.float64)
        if numbers.shape == (count,):
            return numbers
    raise _impossible_weights(weigher, returned)


def require_weights(weigher: Weigher[Any], returned: npt.ArrayLike, count: int) -> np.ndarray:
    """Return weights, if there is one finite number ≥ 0 for each contribution."""
    weights = require_numbers(weigher, returned, count)
    if np.isfinite(weights).all() and (weights >= 0).all():
        return weights
    raise _impossible_weights(weigher, returned)


def _impossible_weights(weigher: Weigher[Any], returned: npt.ArrayLike) -> PluginFailed:
    return PluginFailed(weigher, f"it returned impossible weights: {returned!r:.200}")


def require_requests(weigher: Weigher[Any], returned: Sequence[EvalRequest]) -> list[EvalRequest]:
    """Return by whom a weigher wants an update evaluated, if these are requests with a finite wait."""
    with suppress(TypeError):
        requests = list(returned)
        if all(isinstance(each, EvalRequest) and math.isfinite(each.seconds) for each in requests):
            return requests
    raise PluginFailed(weigher, f"it returned {returned!r:.200}, which are no requests for evaluations")


def require_training(policy: Policy[Any], returned: object) -> Train:
    """Return the training that a policy has shaped, if a site can be sent it."""
    if not isinstance(returned, Train):
        raise PluginFailed(policy, f"it returned {returned!r:.200}, which is no training")
    with require_sendable(policy):
        return Train.model_validate(returned.model_dump(warnings=False))  # `model_copy` checks nothing


@contextmanager
def require_sendable(part: Part[Any]) -> Iterator[None]:
    """Blame a part for a task that the block cannot make: it chose a number or a text that the wire does not carry."""
    try:
        yield
    except ValidationError as error:
        raise PluginFailed(part, f"it asks for a task that cannot be sent: {described(error)}") from None


# What merges compute with.


def require_array(part: Part[Any], returned: object, count: int) -> np.ndarray:
    """Return an array, if it has so many numbers of a floating type, finite or not."""
    if isinstance(returned, np.ndarray) and returned.shape == (count,) and returned.dtype.kind == "f":
        return returned
    got = type(returned).__name__
    if isinstance(returned, np.ndarray):
        got = f"{returned.dtype} {list(returned.shape)}"
    raise PluginFailed(part, f"it returned {got} where {count} floating numbers are wanted")


def require_finite(part: Part[Any], tensor: str, *arrays: np.ndarray, advice: str = "") -> None:
    """Refuse NaN and infinity in what a part made of a tensor, as the model will hold it."""
    if not all(np.isfinite(peaks(array)).all() for array in arrays if array.size):
        raise PluginFailed(part, f"it makes NaN or infinite numbers in tensor {tensor}{advice}")


def require_step(
    server: ServerUpdate[Any], returned: object, count: int, names: Collection[str]
) -> tuple[np.ndarray, Moments]:
    """Return the step of a server update, if it has the next numbers and every moment."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise PluginFailed(server, "it did not return the next numbers and a mapping of moments")
    after, moments = returned
    if set(moments) != set(names):
        wanted, got = (", ".join(sorted(map(str, each))) or "none" for each in (names, moments))
        raise PluginFailed(server, f"it returned other moments than its own: {got} instead of {wanted}")
    return require_array(server, after, count), {
        name: require_array(server, moments[name], count) for name in names
    }


def require_choice(aggregator: Selecting[Any], returned: object, count: int) -> list[int]:
    """Return which contributions were chosen, in order, if there are some and each is named once."""
    with suppress(TypeError):
        chosen = sorted(index(each) for each in returned)  # type: ignore[attr-defined]
        if chosen and len(set(chosen)) == len(chosen) and chosen[0] >= 0 and chosen[-1] < count:
            return chosen
    raise PluginFailed(aggregator, f"it chose {returned!r:.200} of {count} updates")


def require_text(part: Part[Any], returned: object) -> str:
    """Return a part's remark on a merge, if it is text."""
    if isinstance(returned, str):
        return returned
    raise PluginFailed(part, f"it said {returned!r:.200}, which is no text")
