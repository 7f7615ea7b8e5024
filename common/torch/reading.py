"""Reads a batch of a Dataset: this process for itself, or a reader process for a learner."""

import logging
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from hansa.common.app import App
from hansa.common.data.lazy import LazyExamples, Origin, read_rows
from hansa.common.torch.data import Batch
from hansa.common.torch.seeding import seed_generators
from hansa.common.values.errors import HansaError, InvalidData, Refused, one_line
from hansa.common.values.settings.training import Standard

log = logging.getLogger(__name__)
TARGETS = ("labels", "label", "targets", "target", "y")  # their key in a dictionary


class Order(NamedTuple):
    """A batch that is to be read."""

    seed: int  # of whatever is random in reading it
    rows: np.ndarray  # of the whole Dataset
    augment: bool
    standard: Standard | None


class Unread(NamedTuple):
    """Why a batch could not be read; errors of users' classes may not be fit to be sent."""

    reason: str
    final: bool  # it will never be readable
    traceback: str


def read(app: App, examples: LazyExamples, order: Order) -> Any:
    """Return what the app's collate makes of the rows of a Dataset, or Unread."""
    try:
        seed_generators(order.seed)
        rows = read_rows(replace(examples, rows=order.rows, standard=order.standard))
        if order.augment and app.augment is not None:
            rows = _augmented(app, rows, order, examples.origin)
        return _collated(app, rows, examples.origin)
    except Exception as error:
        final = isinstance(error, InvalidData)
        return Unread(str(error) if isinstance(error, HansaError) else one_line(error), final, _trace(error))


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _augmented(app: App, rows: list[Any], order: Order, origin: Origin) -> list[Any]:
    assert app.augment is not None
    augmented: list[Any] = []
    try:
        for row in rows:
            augmented.append(app.augment(row))  # noqa: PERF401 - their number says where it failed
    except Exception as error:
        number = order.rows[len(augmented)]
        raise InvalidData(f"{origin}: augment= failed at example {number}: {one_line(error)}") from error
    return augmented


def _collated(app: App, rows: list[Any], origin: Origin) -> Any:
    try:
        return (app.collate or default_collate)(rows)
    except Exception as error:
        if app.collate is not None:
            what = "collate= failed"
        else:
            what = "the examples do not make up a batch; give the app collate=, or tensors of one shape"
        raise InvalidData(f"{origin}: {what} ({len(rows)} examples): {one_line(error)}") from error


def require_read(batch: Any) -> Any:
    """Return what was read; raise what went wrong, with its traceback in the log."""
    if not isinstance(batch, Unread):
        return batch
    log.error("%s", batch.traceback.rstrip())
    raise (InvalidData if batch.final else Refused)(batch.reason)


def parted(batch: Any, size: int, device: str, origin: Origin) -> Batch:
    """Part a batch into inputs and targets, and move both to the device."""
    if isinstance(batch, Mapping):
        key = next((key for key in TARGETS if key in batch), None)
        inputs: Any = {name: value for name, value in batch.items() if name != key}
        targets = None if key is None else batch[key]
    elif isinstance(batch, tuple | list) and len(batch) >= 2:
        inputs, targets = batch[0] if len(batch) == 2 else tuple(batch[:-1]), batch[-1]
    else:
        inputs = targets = None
    if targets is None or not _has_tensor(inputs):
        raise InvalidData(
            f"{origin}: a batch must have inputs with tensors, and targets, but is {described(batch)}: return"
            " (inputs, targets), (input, input, …, targets) or a dictionary with `labels` from collate=, or"
            " from the Dataset for each example"
        )
    if device != "cpu":
        inputs, targets = moved(inputs, device), moved(targets, device)
    return Batch(inputs, targets, size)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, tuple | list):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor) or hasattr(value, "to")  # such as a batch of graphs


def moved(value: Any, device: str) -> Any:
    """Return something with all its tensors on a device."""
    if isinstance(value, Mapping):
        return {name: moved(each, device) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(moved(each, device) for each in value)
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value


def described(value: Any) -> str:
    """Describe a batch by types and shapes."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {described(each)}" for name, each in list(value.items())[:8]) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(described, value[:8])) + ")"
    return type(value).__name__
