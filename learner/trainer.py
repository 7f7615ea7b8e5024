"""What a learner computes for its tasks: models come in as arrays and go out as frames."""

import logging
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch

from hansa.common.app import App
from hansa.common.data.standard import profile
from hansa.common.models.frames import Layout, allocate, pack, seal, views
from hansa.common.models.model import Manifest
from hansa.common.process.memory import Buffers
from hansa.common.site.daemon import SiteOptions
from hansa.common.site.personal import Personal, PersonalFolder
from hansa.common.site.resident import Resident, resident_of
from hansa.common.site.shelf import Shelf
from hansa.common.torch import networks
from hansa.common.torch.data import to_tensors
from hansa.common.torch.model import load
from hansa.common.values.errors import InvalidData
from hansa.common.values.ids import JobId
from hansa.common.values.results import Evaluation, Profile, Progress, UpdateFacts
from hansa.common.values.tasks import Probe, Survey, Task, Train
from hansa.learner.jobs import JobStock
from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun
from hansa.learner.plugins.importance import Gauge
from hansa.learner.plugins.selection import Company, asked_of, probe_of
from hansa.learner.training.freezing import Scope
from hansa.learner.training.loop import train
from hansa.learner.training.memory import Notes
from hansa.learner.training.own import train_own
from hansa.learner.training.slow import Drag
from hansa.learner.training.stages import stages
from hansa.learner.training.window import Window, Windows

log = logging.getLogger(__name__)


class Update(NamedTuple):
    """An update as it is handed in: a model's frames, and what is known about it."""

    manifest: Manifest
    payload: np.ndarray
    facts: UpdateFacts


def task_seed(task: Task) -> int:
    """Return the seed of a task, from the job's seed, the site, the round and, if it is not 1, the hop."""
    words = [task.seed, zlib.crc32(task.site.encode()), task.round, *([task.hop] if task.hop > 1 else [])]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


class Trainer:
    """Surveys, probes, initialises and trains. All of it blocks; one thread does it."""

    def __init__(self, options: SiteOptions, shelf: Shelf, pulse: Callable[[JobId], int | None]) -> None:
        """`pulse` returns a job's committed optimizer steps, if the controller can be reached."""
        self.options, self.shelf = options, shelf
        self.jobs = JobStock(shelf, options.device)
        self._pulse = pulse
        self._buffers = Buffers()
        self._windows = Windows(options.state)
        self._notes = Notes(options.state)
        self._personal = PersonalFolder(options.personal_folder)

    def survey(self, app: App, task: Task, work: Survey) -> Profile:
        """Sum up the training part of the site's data."""
        examples = self.jobs.raw_training_data(task)
        summary = profile(examples.x, work.columns) if work.moments else Profile(n=len(examples))
        if not work.classes:
            return summary
        if app.task != "classification" or examples.y.ndim != 1:
            raise InvalidData(
                "survey.classes: no classes to count: the app's examples do not have one label each"
            )
        counts = np.bincount(examples.y, minlength=app.classes or 0)
        return summary.model_copy(update={"classes": tuple(counts.tolist())})

    def probe(
        self, app: App, task: Task, work: Probe, arrays: dict[str, np.ndarray], cancelled: Event
    ) -> float:
        """Measure the gradients of a model without training it."""
        plugin = probe_of(app, work)
        training, _ = self.jobs.data(app, task)
        assert training.tensors is not None
        network, resident = self.jobs.network(app, task), self.jobs.resident(app, task)
        if resident.sets.personal:
            arrays = arrays | self._own(resident, self._personal.committed(task.job))
        load(network, arrays, resident.sets.backbone)
        seed = task_seed(task)
        torch.manual_seed(seed)
        with Scope(network, resident.trained(())) as scope:
            scope.awaken()
            gauge = Gauge(network, plugin.model_copy(update={"online": False}))
            drag = Drag(self.options.slow, cancelled)
            score = gauge.score(app, training.tensors, work.batch_size, seed, drag)
        return score if score is not None else float("nan")

    def initialise(self, app: App, task: Task) -> Update:
        """Build a job's first model."""
        network = networks.build(app, task.seed, self.options.device)
        resident = resident_of(network, task.travel)
        spec = resident.spec.subset(resident.sets.travelling)
        payload = networks.payload_of(network, spec)
        batch = None
        if app.train is None:
            few = self.shelf.get(task.app).examples
            batch = to_tensors(app, few.take(np.arange(min(len(few), 2))), self.options.device).x
        anatomy = networks.anatomy(network, batch)
        for remark in anatomy.remarks if anatomy else ():
            log.warning("job %s: %s", task.job, remark)
        facts = UpdateFacts(
            n_train=0, n_used=0, steps=0, epochs=0, seconds=0, anatomy=anatomy, backbone=resident.backbone
        )
        return Update(seal(spec, payload), payload, facts)

    def train(
        self,
        app: App,
        task: Task,
        work: Train,
        base: Manifest,
        arrays: dict[str, np.ndarray],
        cancelled: Event,
        report: Callable[[Progress], None],
    ) -> Update:
        """Train a model that was received; `report` is called after each epoch."""
        asked = asked_of(app, work)
        training, _ = self.jobs.data(app, task)
        drag = Drag(self.options.slow, cancelled)
        window = self._windows.begin(task, work, task_seed(task), training.examples) if work.batches else None

        def progress(epoch: int, steps: int, loss: float) -> None:
            epochs = work.personal_epochs + work.epochs
            report(Progress(task=task.id, epoch=epoch, epochs=epochs, steps=steps, loss=loss))

        resident = self.jobs.resident(app, task)
        sets = resident.sets
        if sets.personal:
            arrays = arrays | self._own(resident, self._personal.begin(task, work.after))
        spec = base.spec.subset(work.tensors) if work.tensors else base.spec
        layout = Layout(spec)
        payload = allocate(layout, self._buffers.take(layout.size))
        if app.train is not None:
            if not task.travel.whole:
                arrays = resident.complete(self.jobs.network(app, task), arrays)
            own = {name: array.copy() for name, array in arrays.items() if name not in spec.index}
            for name, place in views(layout, payload).items():
                place[...] = arrays[name]
                own[name] = place
            more = (training.examples, progress, drag, window, self.options.device, self.options.data)
            asks = work.model_copy(update={"tensors": resident.trained(work.tensors)})
            trained, facts = train_own(app, task, asks, task_seed(task), own, *more)
            pack(spec, trained, payload)
            whole: Mapping[str, np.ndarray] = arrays | {
                name: trained[name] for name in (*spec.names, *sets.personal)
            }
        else:
            network = self.jobs.network(app, task)
            load(network, arrays, sets.backbone)
            facts = self._fit(app, task, work, arrays, asked, drag, progress, window)
            networks.payload_of(network, spec, payload)
            whole = networks.arrays_of(network, sets.personal)
        if sets.personal:
            own_spec = resident.spec.subset(sets.personal)
            self._personal.keep(task, own_spec, {name: whole[name] for name in sets.personal})
        if work.validate_update:
            facts["evaluation"] = self.jobs.evaluate(app, task, whole)
        return Update(seal(spec, payload), payload, UpdateFacts(n_train=len(training.examples), **facts))

    def commit(self, task: Task) -> None:
        """Commit what the site keeps of a task: the controller has its update."""
        assert isinstance(task.work, Train)
        if task.work.batches:
            self._windows.commit(task)
        if not task.travel.whole:
            self._personal.commit(task)

    def _own(self, resident: Resident, personal: Personal | None) -> dict[str, np.ndarray]:
        """Return the site's own tensors, or those that the app begins with."""
        return dict(personal.arrays) if personal else resident.initial

    def _fit(
        self,
        app: App,
        task: Task,
        work: Train,
        start: Mapping[str, np.ndarray],
        asked: tuple[list[LocalPlugin[Any]], BatchSource | None],
        drag: Drag,
        progress: Callable[[int, int, float], None],
        window: Window | None,
    ) -> dict[str, Any]:
        """Train the job's network, which holds the task's model, with the plugins that the task asks for."""
        (training, validation), network = self.jobs.data(app, task), self.jobs.network(app, task)
        assert training.tensors is not None
        assert validation.tensors is not None
        started = time.monotonic()
        resident = self.jobs.resident(app, task)
        # With local statistics, tensors that stay at the site change as well.
        trained = () if task.local_statistics else resident.trained(work.tensors)
        with Scope(network, trained) as scope, self.jobs.optimizer(task, work, network) as optimizer:
            awake = [scope]  # the innermost is last

            def awaken() -> None:
                awake[-1].awaken()

            def evaluate() -> Evaluation:
                evaluation = self.jobs.evaluate(app, task, {})
                awaken()  # a plugin that evaluates during training must not change the network's mode
                return evaluation

            def committed() -> int | None:
                newest = self._pulse(task.job)
                return None if newest is None else max(newest, work.committed)

            run = LocalRun(
                app=app,
                task=task,
                work=work,
                seed=task_seed(task),
                model=network,
                anchor=start,
                examples=training.tensors,
                validation=validation.tensors,
                memory=self._notes.recall(task),
                cancelled=drag,
                measure=evaluate,
                pulse=committed,
            )
            company = Company(*asked, run)
            hooks = company.hooks(awaken)
            common = (progress, drag, hooks, window)
            if work.personal_epochs:
                parts = []
                for number, stage in enumerate(stages(work, resident.sets)):
                    with Scope(network, stage.tensors) as inner:
                        awake.append(inner)
                        seed = run.seed + number
                        parts.append(train(app, network, run.examples, stage.work, seed, *common))
                    awake.pop()
                done = parts[0].followed_by(parts[1])
            else:
                done = train(app, network, run.examples, work, run.seed, *common, optimizer)
            drag.rest()
            seconds = time.monotonic() - started
            scope.awaken()
            metrics = company.finish()
        self._notes.keep(task, run.memory)
        return asdict(done) | {"seconds": seconds, "metrics": metrics}
