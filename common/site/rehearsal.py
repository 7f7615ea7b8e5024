"""The rehearsal of an app: a forward pass over one or two examples, which detects data of a wrong shape."""

from pathlib import Path

import numpy as np

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.data.lazy import AnyExamples, LazyExamples
from hansa.common.values.errors import HansaError, InvalidApp, InvalidData, one_line

FEW = 2  # examples


def rehearse(app: App, examples: AnyExamples, path: Path, device: str) -> None:
    """Run the app's network on one or two examples; raise InvalidApp or InvalidData if that fails.

    Apps with their own functions are not tried, nor are apps without examples.
    """
    if app.train is not None or not len(examples):
        return
    from hansa.common.torch.seeding import undisturbed

    few = examples.take(np.arange(min(len(examples), FEW)))
    if isinstance(few, LazyExamples):
        with undisturbed():
            _rehearse_lazily(app, few, device)
        return
    assert isinstance(examples, Examples)
    with undisturbed():
        network = _build(app, device)
        error = _attempt(app, network, few, device)
        if error and few.x.dtype.kind in "iub":  # jobs that standardise features turn them into floats
            error = _attempt(app, network, Examples(few.x.astype(np.float32), few.y), device) and error
    if error:
        raise InvalidData(
            f"{path}: the data do not fit the app's network: x has shape {list(examples.x.shape)} and type"
            f" {examples.x.dtype.name}, y has shape {list(examples.y.shape)};"
            f" the network raised: {one_line(error)}"
        ) from error


def _rehearse_lazily(app: App, few: LazyExamples, device: str) -> None:
    """Read a batch as training does, and put it through the network as evaluation does."""
    import torch

    from hansa.common.torch.lazy import LazyData
    from hansa.common.torch.reading import described

    data = LazyData(app, few, device)
    batch = next(data.batches([torch.arange(len(few))], augment=True))
    network = _build(app, device)
    if error := _attempt(app, network, few, device):
        raise InvalidData(
            f"{few.origin}: the batches of the Dataset do not fit the app's network: a batch has the inputs"
            f" {described(batch.inputs)} and the targets {described(batch.targets)}; the network raised:"
            f" {one_line(error)}"
        ) from error


def _build(app: App, device: str) -> object:
    from hansa.common.torch.networks import build

    try:
        return build(app, 0, device)
    except HansaError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidApp(f"its network cannot be built: {one_line(error)}") from error


def _attempt(app: App, network: object, few: AnyExamples, device: str) -> BaseException | None:
    """Return the error, if any; with the default loss this also checks that the outputs fit the task."""
    import torch

    from hansa.common.torch.data import outputs_of
    from hansa.common.torch.lazy import to_data
    from hansa.common.torch.metrics import measure

    assert isinstance(network, torch.nn.Module)
    try:
        data = to_data(app, few, device)
        if app.loss is None:
            measure(app, network, data)
        else:
            with torch.no_grad():
                outputs_of(network.eval(), next(data.in_order()).inputs)
    except (Exception, SystemExit) as error:
        return error
    return None
