"""Where one process does the tasks of virtual sites, one after another, as their daemons would."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TypeVar

import numpy as np

from hansa.common.app import App, load_app
from hansa.common.data.lazy import AnyExamples
from hansa.common.data.site_files import loaded_split
from hansa.common.models.auxiliary import accompanied
from hansa.common.models.frames import peaks_of
from hansa.common.models.model import Manifest
from hansa.common.site.failures import failure_of
from hansa.common.site.memory_files import MemoryFiles
from hansa.common.site.stock import Networks
from hansa.common.values.ids import ModelKey, TaskId
from hansa.common.values.results import Progress, UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.evaluator.measurer import Measurer, PreparedData
from hansa.learner.jobs import Parts, SplitData
from hansa.learner.trainer import Trainer
from hansa.simulation.batched.agreement import wanted
from hansa.simulation.batched.blocks import Blocks
from hansa.simulation.crew.base import Assignment, Models, Outcome, Update
from hansa.simulation.sites.data import TRAINING, VirtualData
from hansa.simulation.sites.pausing import Pauses, Pulse, Report
from hansa.simulation.storage.memory import PERSONAL, SiteMemory, memory_after

SITES = 1024  # whose data stay in memory as tensors
T = TypeVar("T")


@dataclass(frozen=True)
class _Loaded:
    app: App
    examples: AnyExamples


class _Site:
    """A virtual site, as the classes of learner and evaluator see their daemon."""

    slow = 1.0
    device = "cpu"

    def __init__(self, app: App, data: VirtualData, number: int, split: str, files: MemoryFiles) -> None:
        self._app, self._data, self._number = app, data, number
        self.split = split
        self.data = data.path(number)
        self.files, self.personal_files = files, files.folder(PERSONAL)
        self._loaded: _Loaded | None = None

    def get(self, ref: str) -> _Loaded:
        """Return the app and the site's data."""
        if self._loaded is None:
            examples = self._data.examples(self._app, self._number, loaded_split(self.split))
            self._loaded = _Loaded(self._app, examples)
        return self._loaded

    def training(self, ref: str) -> AnyExamples:
        """Return the site's training data."""
        if loaded_split(self.split) == TRAINING:
            return self.get(ref).examples
        return self._data.examples(self._app, self._number, TRAINING)


class Desk:
    """Does tasks. All sites share the job's network; whatever else belongs to a site is its own."""

    def __init__(self, ref: str, data: VirtualData, models: Models, batched: bool = True) -> None:
        """If it is `batched`, small clients are trained together where that gives the same bits."""
        self._app, self._data, self._models = load_app(ref), data, models
        self._networks = Networks("cpu")
        blocks = Blocks(self._app, self._networks, models, self._training_data, self.do)
        self._blocks = blocks if wanted(batched, len(data.names)) else None
        self._parts: OrderedDict[int, Parts] = OrderedDict()
        self._prepared: OrderedDict[int, PreparedData] = OrderedDict()
        self._pauses = Pauses(self._attempt)

    def do(self, assignment: Assignment) -> Outcome:
        """Do a task; whatever goes wrong is an outcome, too."""
        if assignment.pulses is not None:
            return self._pauses.go_on(assignment)
        return self._attempt(assignment, self._networks, lambda _: None, lambda: None)

    def do_all(self, assignments: Sequence[Assignment]) -> list[Outcome]:
        """Do some tasks, small ones together where that gives the same bits."""
        if self._blocks is None:
            return [self.do(assignment) for assignment in assignments]
        together = self._blocks.do(assignments)
        outcomes = [together.get(each.task.id) or self.do(each) for each in assignments]
        if outcomes and (remarks := self._blocks.remarks()):
            outcomes[0] = replace(outcomes[0], remarks=remarks)
        return outcomes

    def takes_together(self, assignment: Assignment) -> bool:
        """Whether a task may be done faster together with others."""
        return self._blocks is not None and self._blocks.takes(assignment)

    def forget(self, task: TaskId) -> None:
        """Give up a training that is paused."""
        self._pauses.forget(task)

    def close(self) -> None:
        """Give up all trainings that are paused."""
        self._pauses.close()

    def _attempt(self, assignment: Assignment, networks: Networks, report: Report, pulse: Pulse) -> Outcome:
        steps = 0

        def count(progress: Progress) -> None:
            nonlocal steps
            if self._app.train is None:  # else the app itself says how far it has come
                steps = progress.steps
            report(progress)

        try:
            outcome = self._do(assignment, networks, count, pulse)
        except (Exception, SystemExit) as error:  # an app or a plugin may raise anything
            outcome = Outcome(failure_of(error))
        if isinstance(outcome.result, Update):
            steps = max(steps, outcome.result.facts.steps)
        known = self._parts.get(assignment.site, {}).get(assignment.task.job)
        return replace(outcome, steps=steps, examples=len(known[0].examples) if known else 0)

    def _do(self, assignment: Assignment, networks: Networks, report: Report, pulse: Pulse) -> Outcome:
        task, app, number = assignment.task, self._app, assignment.site
        memory = assignment.memory or SiteMemory()
        files = memory.files.copy()
        if isinstance(task.work, Evaluate):
            site = _Site(app, self._data, number, self._data.evaluated(number), files)
            measurer = Measurer(site, site, networks, _recalled(self._prepared, number, PreparedData))
            _, arrays = self._fetch(task.work.model, task.work.base)
            return Outcome(measurer.evaluate(app, task, arrays))
        trainer = self._trainer(number, files, networks, pulse)
        trainer.jobs.put_memory(task.job, memory.optimizer)
        match task.work:
            case Survey() as work:
                return Outcome(trainer.survey(app, task, work))
            case Init():
                return Outcome(_sealed(*trainer.initialise(app, task)))
            case Probe() as work:
                _, arrays = self._fetch(work.model)
                return Outcome(trainer.probe(app, task, work, arrays, Event()))
            case Train() as work:
                update = self._train(trainer, task, work, report)
                return Outcome(update, memory_after(trainer, files, task.job))

    def _trainer(self, number: int, files: MemoryFiles, networks: Networks, pulse: Pulse) -> Trainer:
        site = _Site(self._app, self._data, number, TRAINING, files)
        parts = _recalled(self._parts, number, Parts)
        return Trainer(site, site, lambda _: pulse(), shared=networks, parts=parts)

    def _training_data(self, assignment: Assignment) -> SplitData:
        trainer = self._trainer(assignment.site, MemoryFiles(), self._networks, lambda: None)
        return trainer.jobs.data(self._app, assignment.task)[0]

    def _train(self, trainer: Trainer, task: Task, work: Train, report: Report) -> Update:
        beside = [each.name for each in work.auxiliary if each.down and not each.reset]
        base, arrays = self._fetch(work.model, work.base, beside)
        return _sealed(*trainer.train(self._app, task, work, base, arrays, Event(), report))

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


def _recalled(kept: "OrderedDict[int, T]", site: int, make: Callable[[], T]) -> T:
    """Return what is kept for a site; make it, and forget the site that was used longest ago, if need be."""
    if site in kept:
        kept.move_to_end(site)
    else:
        while len(kept) >= SITES:
            kept.popitem(last=False)
        kept[site] = make()
    return kept[site]


def _sealed(manifest: Manifest, payload: np.ndarray, facts: UpdateFacts) -> Update:
    """Return an update with the peaks of its tensors."""
    return Update(manifest, tuple(peaks_of(manifest.spec, payload)), payload, facts)
