"""Checks what plugins return before it is used, and names the plugin that broke its contract."""

import json
import math
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import index
from typing import Annotated, Any, TypeVar, cast, get_args

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
from hansa.controller.plugin.arithmetic import Additive, Moments, Selecting, ServerUpdate
from hansa.controller.plugin.parts import EvalRequest, Pacer, Part, Sampler, Weigher
from hansa.controller.plugin.policies import Policy

T = TypeVar("T")
ACTIONS = get_args(Action)
SCORES = TypeAdapter(dict[str, Score])
METRICS = TypeAdapter(dict[str, float])
REASONS = TypeAdapter(dict[SiteName, str])


def _storable(diagnostics: dict[str, JsonValue]) -> dict[str, JsonValue]:
    problem = excess(diagnostics)
    if problem:
        raise ValueError(located(problem, {}))
    return diagnostics


DIAGNOSTICS = TypeAdapter(Annotated[dict[str, JsonValue], AfterValidator(_storable), AfterValidator(finite)])


# What the engine bases its decisions on.


def require_history(kind: TypeAdapter[T], part: Part[Any], returned: object) -> T:
    """Return a part's remarks on a merge or a model, if the history can store them."""
    try:
        return kind.validate_python(returned)
    except ValidationError as error:
        raise PluginFailed(
            part, f"it returned something that the history cannot store: {described(error)}"
        ) from None


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


def require_probed(
    sampler: Sampler[Any], returned: Sequence[SiteName], available: Container[SiteName]
) -> list[SiteName]:
    """Return the sites that a sampler wants to probe, if they are available and each is named once."""
    with suppress(TypeError):
        sites = list(returned)
        if len(set(sites)) == len(sites) and all(site in available for site in sites):
            return sites
    must = "each must be connected, have examples and be named once"
    raise PluginFailed(sampler, f"it wants to probe {returned!r:.200}; {must}")


def require_requests(weigher: Weigher[Any], returned: Sequence[EvalRequest]) -> list[EvalRequest]:
    """Return a weigher's requests for evaluations, if they are requests with a finite wait."""
    with suppress(TypeError):
        requests = list(returned)
        if all(isinstance(each, EvalRequest) and math.isfinite(each.seconds) for each in requests):
            return requests
    raise PluginFailed(
        weigher, f"it returned {returned!r:.200}, which is not a list of requests for evaluations"
    )


def require_training(policy: Policy[Any], returned: object) -> Train:
    """Return the training that a policy has shaped, if it can be sent to a site."""
    if not isinstance(returned, Train):
        raise PluginFailed(policy, f"it returned {returned!r:.200}, which is not a training")
    with require_sendable(policy):
        return Train.model_validate(returned.model_dump(warnings=False))  # `model_copy` checks nothing


@contextmanager
def require_sendable(part: Part[Any]) -> Iterator[None]:
    """Blame a part if the block cannot make a task: it chose a number or a text that cannot be sent."""
    try:
        yield
    except ValidationError as error:
        raise PluginFailed(part, f"it asks for a task that cannot be sent: {described(error)}") from None


# What merges compute with.


def require_array(part: Part[Any], returned: object, count: int) -> np.ndarray:
    """Return an array, if it has `count` numbers of a floating-point type, finite or not."""
    if isinstance(returned, np.ndarray) and returned.shape == (count,) and returned.dtype.kind == "f":
        return returned
    got = type(returned).__name__
    if isinstance(returned, np.ndarray):
        got = f"{returned.dtype} {list(returned.shape)}"
    raise PluginFailed(part, f"it returned {got} instead of {count} floating-point numbers")


def require_finite(part: Part[Any], tensor: str, *arrays: np.ndarray, advice: str = "") -> None:
    """Refuse NaN and infinity in the arrays that a part computed for a tensor."""
    if not all(np.isfinite(peaks(array)).all() for array in arrays if array.size):
        raise PluginFailed(part, f"it produced NaN or infinite numbers in tensor {tensor}{advice}")


def require_prepared(server: ServerUpdate[Any], returned: object) -> JsonValue:
    """Return what a server update has prepared for a merge, if the history can store it.

    A replay and `hansa job verify` must get the same: lists for tuples, and no NaN.
    """
    problem = excess(returned)
    if problem:
        raise PluginFailed(server, f"it prepared something that cannot be stored: {located(problem, {})}")
    try:
        return cast(JsonValue, json.loads(json.dumps(returned, allow_nan=False)))
    except ValueError:
        raise PluginFailed(server, f"it prepared NaN or infinite numbers: {returned!r:.200}") from None


def require_step(
    server: ServerUpdate[Any], returned: object, count: int, names: Collection[str]
) -> tuple[np.ndarray, Moments]:
    """Return the step of a server update, if it has the next numbers and every moment."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise PluginFailed(server, "it did not return the next numbers and a mapping of moments")
    numbers, moments = returned
    if set(moments) != set(names):
        wanted, got = (", ".join(sorted(map(str, each))) or "none" for each in (names, moments))
        raise PluginFailed(server, f"it returned the wrong moments: {got} instead of {wanted}")
    return require_array(server, numbers, count), {
        name: require_array(server, moments[name], count) for name in names
    }


def require_choice(aggregator: Selecting[Any], returned: object, count: int) -> list[int]:
    """Return which contributions were chosen, in order, if there are some and each is named once."""
    with suppress(TypeError):
        chosen = sorted(index(each) for each in returned)  # type: ignore[attr-defined]
        if chosen and len(set(chosen)) == len(chosen) and chosen[0] >= 0 and chosen[-1] < count:
            return chosen
    must = "it must choose at least one, and none twice"
    raise PluginFailed(aggregator, f"it chose {returned!r:.200} from {count} updates; {must}")


def require_divisor(aggregator: Additive[Any], returned: object) -> float:
    """Return a divisor, if it is a finite number above 0."""
    if isinstance(returned, int | float) and 0 < returned < math.inf:
        return float(returned)
    raise PluginFailed(aggregator, f"its divisor is {returned!r:.200}; it must be a finite number above 0")


def require_text(part: Part[Any], returned: object) -> str:
    """Return a part's remark on a merge, if it is text."""
    if isinstance(returned, str):
        return returned
    raise PluginFailed(part, f"it returned {returned!r:.200}, which is not text")
