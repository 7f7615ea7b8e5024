"""The rehearsal of an app: one forward pass over an example or two, which finds data of a wrong shape at start."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.values.errors import HansaError, InvalidApp, InvalidData, one_line

FEW = 2  # examples


def rehearse(app: App, examples: Examples, path: Path, device: str) -> None:
    """Build the app's network and let it see an example or two; raise InvalidApp or InvalidData if that fails.

    Apps with functions of their own are not tried, nor is anything without examples.
    """
    if app.train is not None or not len(examples):
        return
    few = examples.take(np.arange(min(len(examples), FEW)))
    with undisturbed():
        network = _build(app, device)
        error = _attempt(app, network, few, device)
        if error and few.x.dtype.kind in "iub":  # jobs that standardise features make floats of them
            error = _attempt(app, network, Examples(few.x.astype(np.float32), few.y), device) and error
    if error:
        raise InvalidData(
            f"{path}: the data do not fit the app's network: x has shape {list(examples.x.shape)} and type"
            f" {examples.x.dtype.name}, y has shape {list(examples.y.shape)}; the network said: {one_line(error)}"
        ) from error


def _build(app: App, device: str) -> object:
    from hansa.common.torch.networks import build

    try:
        return build(app, 0, device)
    except HansaError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidApp(f"its network cannot be built: {one_line(error)}") from error


def _attempt(app: App, network: object, few: Examples, device: str) -> BaseException | None:
    """Return what is wrong; with the usual loss also whether the network's scores fit the task."""
    import torch

    from hansa.common.torch.data import to_tensors
    from hansa.common.torch.metrics import measure

    assert isinstance(network, torch.nn.Module)
    try:
        data = to_tensors(app, few, device)
        if app.loss is None:
            measure(app, network, data)
        else:
            with torch.no_grad():
                network.eval()(data.x)
    except (Exception, SystemExit) as error:
        return error
    return None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give the random generators back their states."""
    import torch

    plain, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)
