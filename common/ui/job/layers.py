"""Checks a job's `layers` against the app's model before it is submitted, if the app is on this machine."""

import warnings
from pathlib import Path

from hansa.common.app import App, load_app
from hansa.common.job.check import part_faults
from hansa.common.job.rulebook import travel_of
from hansa.common.job.spec import JobSpec
from hansa.common.torch.installed import is_installed
from hansa.common.values.errors import InvalidApp, InvalidJob
from hansa.common.values.settings.training import Travel


def require_fitting_layers(spec: JobSpec, file: Path) -> None:
    """Refuse a job whose `layers` do not fit the model of its app, or leave nothing to travel.

    If the app or PyTorch cannot be used on this machine, a site says so when it builds the model.
    """
    if part_faults(spec.model_dump(), final=True):
        return  # the controller may know more rules
    travel = travel_of(spec)
    app = None if travel.whole else _app(spec.app, file.parent)
    if app is None:
        return
    try:
        _divide(app, travel)
    except InvalidApp as error:
        raise InvalidJob(f"{file}: {error} (as {spec.app} builds the model on this machine)") from None


def _app(ref: str, folder: Path) -> App | None:
    """Return the app, if it can be loaded from here or from beside the job file."""
    place, _, attribute = ref.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        ref = f"{folder / place}:{attribute}"
    try:
        return load_app(ref)
    except InvalidApp:
        return None


def _divide(app: App, travel: Travel) -> None:
    """Divide the tensors of the app's model, which is built without numbers: that takes no time or memory."""
    if not is_installed():
        return
    import torch

    from hansa.common.torch import networks

    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers that are loaded into such a model are lost, as intended
            networks.sets_of(networks.build(app, 0, "meta"), travel)
    except InvalidApp:
        raise
    except (Exception, SystemExit):  # of the app's own code, which may need the numbers
        return
