"""Where one process does the tasks of virtual sites, one after another, as their daemons would."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

import numpy as np

from hansa.common.app import App, load_app
from hansa.common.data.examples import Examples
from hansa.common.models.auxiliary import accompanied
from hansa.common.models.frames import Sealer, cut
from hansa.common.models.model import Manifest
from hansa.common.site.failures import failure_of
from hansa.common.site.stock import Networks
from hansa.common.values.ids import ModelKey
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.evaluator.measurer import Measurer
from hansa.learner.trainer import Trainer
from hansa.simulation.crew.base import Assignment, Models, Outcome, Result, Update
from hansa.simulation.data import TRAINING, VirtualData

SITES = 1024  # whose data stay in memory as tensors
T = TypeVar("T")


@dataclass(frozen=True)
class _Loaded:
    app: App
    examples: Examples


class _Site:
    """A virtual site, as the classes of learner and evaluator see their daemon."""

    slow = 1.0
    device = "cpu"

    def __init__(self, app: App, data: VirtualData, number: int, split: str, folder: Path) -> None:
        self._app, self._data, self._number = app, data, number
        self.split = split
        self.data = data.path(number)
        self.state = folder / data.names[number]
        self.personal_folder = self.state / "personal"
        self._loaded: _Loaded | None = None

    def get(self, ref: str) -> _Loaded:
        """Return the app and the site's data."""
        if self._loaded is None:
            which = self.split if self.split == "test" else TRAINING
            self._loaded = _Loaded(self._app, self._data.examples(self._app, self._number, which))
        return self._loaded

    def training(self, ref: str) -> Examples:
        """Return the site's training data."""
        if self.split != "test":
            return self.get(ref).examples
        return self._data.examples(self._app, self._number, TRAINING)


class Desk:
    """Does tasks. All sites share the job's network; whatever else belongs to a site is its own."""

    def __init__(self, ref: str, data: VirtualData, models: Models, folder: Path) -> None:
        self._app, self._data, self._models, self._folder = load_app(ref), data, models, folder
        self._networks = Networks("cpu")
        self._trainers: OrderedDict[int, Trainer] = OrderedDict()
        self._measurers: OrderedDict[int, Measurer] = OrderedDict()

    def do(self, assignment: Assignment) -> Outcome:
        """Do a task; whatever goes wrong is an outcome, too."""
        try:
            return Outcome(self._do(assignment))
        except (Exception, SystemExit) as error:  # an app or a plugin may raise anything
            return Outcome(failure_of(error))

    def _do(self, assignment: Assignment) -> Result:
        task = assignment.task
        for committed in assignment.commits:
            self._trainer(assignment.site).commit(committed)
        if isinstance(task.work, Evaluate):
            _, arrays = self._fetch(task.work.model, task.work.base)
            return self._measurer(assignment.site).evaluate(self._app, task, arrays)
        trainer = self._trainer(assignment.site)
        match task.work:
            case Survey() as work:
                return trainer.survey(self._app, task, work)
            case Init():
                return _sealed(*trainer.initialise(self._app, task))
            case Probe() as work:
                _, arrays = self._fetch(work.model)
                return trainer.probe(self._app, task, work, arrays, Event())
            case Train() as work:
                return self._train(trainer, task, work)

    def _train(self, trainer: Trainer, task: Task, work: Train) -> Update:
        beside = [each.name for each in work.auxiliary if each.down and not each.reset]
        base, arrays = self._fetch(work.model, work.base, beside)
        return _sealed(*trainer.train(self._app, task, work, base, arrays, Event(), lambda _: None))

    def _fetch(
        self, key: ModelKey, base: ModelKey | None = None, auxiliary: Collection[str] = ()
    ) -> tuple[Manifest, dict[str, np.ndarray]]:
        """Return a model as a site receives it: a partial one with the other tensors of its base."""
        over, arrays = self._read(key, auxiliary)
        if base is None:
            return over, arrays
        under, below = self._read(base)
        digests = dict(zip(over.spec.names, over.digests, strict=True))
        known = zip(under.spec.names, under.digests, strict=True)
        laid = tuple(digests.get(name, digest) for name, digest in known)
        return Manifest(under.spec, laid), below | arrays

    def _read(self, key: ModelKey, auxiliary: Collection[str] = ()) -> tuple[Manifest, dict[str, np.ndarray]]:
        model = self._models.read(key)
        manifest, arrays = accompanied(model.manifest, auxiliary), model.arrays
        return manifest, {name: arrays[name] for name in manifest.spec.names}

    def _trainer(self, site: int) -> Trainer:
        return _recalled(self._trainers, site, self._new_trainer)

    def _measurer(self, site: int) -> Measurer:
        return _recalled(self._measurers, site, self._new_measurer)

    def _new_trainer(self, site: int) -> Trainer:
        place = _Site(self._app, self._data, site, TRAINING, self._folder)
        return Trainer(place, place, lambda _: None, shared=self._networks)

    def _new_measurer(self, site: int) -> Measurer:
        place = _Site(self._app, self._data, site, self._data.split, self._folder)
        return Measurer(place, place, self._networks)


def _recalled(kept: "OrderedDict[int, T]", site: int, make: Callable[[int], T]) -> T:
    """Return what is kept for a site; make it, and forget the site that was used longest ago, if need be."""
    if site in kept:
        kept.move_to_end(site)
    else:
        while len(kept) >= SITES:
            kept.popitem(last=False)
        kept[site] = make(site)
    return kept[site]


def _sealed(manifest: Manifest, payload: np.ndarray, facts: UpdateFacts) -> Update:
    """Return an update with the peaks of its tensors."""
    sealer = Sealer(manifest.spec)
    for frame in cut(payload):
        sealer.feed(frame)
    return Update(manifest, tuple(sealer.peaks), payload, facts)
