"""The learner daemon: builds first models and trains."""

import asyncio
import importlib
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any, assert_never

import numpy as np
import torch

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.data.holdout import parts, split
from hansa.common.data.standard import profile
from hansa.common.models.frames import Layout, allocate, pack, seal, views
from hansa.common.models.model import Manifest
from hansa.common.process import faults
from hansa.common.process.memory import Buffers
from hansa.common.rpc import codec
from hansa.common.site.daemon import SiteDaemon, SiteOptions, make_room
from hansa.common.site.shelf import Shelf
from hansa.common.site.transfer import hand_in
from hansa.common.torch import networks
from hansa.common.torch.data import Tensors, to_tensors
from hansa.common.torch.metrics import measure
from hansa.common.torch.model import load
from hansa.common.torch.statistics import Statistics, put_statistics, statistics_of
from hansa.common.values.errors import InvalidData, Stale
from hansa.common.values.ids import JobId
from hansa.common.values.results import Evaluation, Profile, Progress, UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun
from hansa.learner.plugins.importance import Gauge
from hansa.learner.plugins.selection import Company, asked_of, probe_of
from hansa.learner.training.freezing import Scope
from hansa.learner.training.loop import train
from hansa.learner.training.memory import Memory, Notes
from hansa.learner.training.optimizers import States, make_optimizer, states_after, take_up
from hansa.learner.training.own import train_own
from hansa.learner.training.slow import Cancelled, Drag
from hansa.learner.training.window import Window, Windows
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)


def task_seed(task: Task) -> int:
    """Return the seed of a task: a function of the job's seed, the site, the round and, from the second on, the hop."""
    words = [task.seed, zlib.crc32(task.site.encode()), task.round, *([task.hop] if task.hop > 1 else [])]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True)
class SplitData:
    """A part of the site's data, as arrays and (for torch apps) as tensors."""

    examples: Examples
    tensors: Tensors | None


class Learner(SiteDaemon):
    """Does survey, init and train tasks."""

    def __init__(self, options: SiteOptions, shelf: Shelf) -> None:
        super().__init__(options, shelf)
        self._buffers = Buffers()
        self._networks: dict[JobId, Any] = {}
        self._parts: dict[JobId, tuple[SplitData, SplitData]] = {}  # for training and for validation
        self._windows = Windows(options.state)
        self._notes = Notes(options.state)
        self._memories: dict[JobId, Memory[tuple[States, Statistics]]] = {}
        if any(
            app.train is None for app in shelf.apps
        ):  # what the first optimizer imports, which takes seconds
            self.thread.submit(importlib.import_module, "torch._dynamo")

    async def perform(self, task: Task, cancelled: Event) -> None:
        """Do a task; keep the result until the controller's receipt is here."""
        faults.reach("task-taken")
        app = self.shelf.get(task.app).app
        loop = asyncio.get_running_loop()
        match task.work:
            case Survey() as work:
                told = await self.compute(self._survey, app, task, work)
                request = fleet.TaskReport(site=self.options.identity.site, task=task.id)
                request.profile.MergeFrom(codec.profile_to_wire(told))
                await self.attendance.insist(lambda: self.attendance.stub.Report(request))
                return
            case Probe() as work:
                _, arrays = await self.fetcher.fetch(work.model)
                try:
                    found = await self.compute(self._probe, app, task, work, arrays, cancelled)
                except Cancelled as error:
                    raise Stale(str(error)) from None
                request = fleet.TaskReport(site=self.options.identity.site, task=task.id, importance=found)
                await self.attendance.insist(lambda: self.attendance.stub.Report(request))
                return
            case Init():
                manifest, payload, facts = await self.compute(self._initialise, app, task)
            case Train() as work:
                base, arrays = await self.fetcher.fetch(work.model, work.base)
                try:
                    manifest, payload, facts = await self.compute(
                        self._train, app, task, work, base, arrays, cancelled, loop
                    )
                except Cancelled as error:
                    raise Stale(str(error)) from None
            case Evaluate():
                raise Stale("a learner does not evaluate")
            case _:
                assert_never(task.work)
        faults.reach("task-trained")
        receipt = await hand_in(self.attendance, task.id, manifest, payload, facts)
        faults.reach("task-uploaded")
        log.info("receipt %d for task %s: %s", receipt.sequence, task.id, receipt.hash)
        if isinstance(task.work, Train) and task.work.batches:
            await loop.run_in_executor(self.thread, self._windows.commit, task)

    def _survey(self, app: App, task: Task, work: Survey) -> Profile:
        """Sum up the training part of the site's data."""
        examples = self._training_part(task)
        told = profile(examples.x, work.columns) if work.moments else Profile(n=len(examples))
        if not work.classes:
            return told
        if app.task != "classification" or examples.y.ndim != 1:
            raise InvalidData(
                "survey.classes: no classes to count: the app's examples do not have one label each"
            )
        counts = np.bincount(examples.y, minlength=app.classes or 0)
        return told.model_copy(update={"classes": tuple(counts.tolist())})

    def _probe(
        self, app: App, task: Task, work: Probe, arrays: dict[str, np.ndarray], cancelled: Event
    ) -> float:
        """Measure the gradients of a model without training it."""
        plugin = probe_of(app, work)
        training, _ = self._data(app, task)
        assert training.tensors is not None
        network = self._network(app, task)
        load(network, arrays)
        seed = task_seed(task)
        torch.manual_seed(seed)
        network.train()
        gauge = Gauge(network, plugin.model_copy(update={"online": False}))
        found = gauge.score(app, training.tensors, work.batch_size, seed, Drag(self.options.slow, cancelled))
        return found if found is not None else float("nan")

    def _initialise(self, app: App, task: Task) -> tuple[Manifest, np.ndarray, UpdateFacts]:
        network = networks.build(app, task.seed, self.options.device)
        spec = networks.describe(network)
        payload = networks.payload_of(network, spec)
        batch = None
        if app.train is None:
            few = self.shelf.get(task.app).examples
            batch = to_tensors(app, few.take(np.arange(min(len(few), 2))), self.options.device).x
        anatomy = networks.anatomy(network, batch)
        for remark in anatomy.remarks if anatomy else ():
            log.warning("job %s: %s", task.job, remark)
        facts = UpdateFacts(n_train=0, n_used=0, steps=0, epochs=0, seconds=0, anatomy=anatomy)
        return seal(spec, payload), payload, facts

    def _train(
        self,
        app: App,
        task: Task,
        work: Train,
        base: Manifest,
        arrays: dict[str, np.ndarray],
        cancelled: Event,
        loop: asyncio.AbstractEventLoop,
    ) -> tuple[Manifest, np.ndarray, UpdateFacts]:
        asked = asked_of(app, work)
        training, validation = self._data(app, task)
        drag = Drag(self.options.slow, cancelled)
        window = self._windows.begin(task, work, task_seed(task), training.examples) if work.batches else None

        def progress(epoch: int, steps: int, loss: float) -> None:
            note = Progress(task=task.id, epoch=epoch, epochs=work.epochs, steps=steps, loss=loss)
            loop.call_soon_threadsafe(self.attendance.report_progress, note)

        spec = base.spec.subset(work.tensors) if work.tensors else base.spec
        layout = Layout(spec)
        payload = allocate(layout, self._buffers.take(layout.size))
        if app.train is not None:
            own = {name: array.copy() for name, array in arrays.items() if name not in spec.index}
            for name, place in views(layout, payload).items():
                place[...] = arrays[name]
                own[name] = place
            given = (training.examples, progress, drag, window, self.options.device, self.options.data)
            made, facts = train_own(app, task, work, task_seed(task), own, *given)
            pack(spec, made, payload)
            whole: Mapping[str, np.ndarray] = arrays | {name: made[name] for name in spec.names}
        else:
            whole = {}
            network = self._network(app, task)
            load(network, arrays)
            facts = self._fit(app, task, work, arrays, asked, drag, progress, window)
            networks.payload_of(network, spec, payload)
        if work.validate_update:
            facts["evaluation"] = self._measure(app, task, validation, whole)
        return seal(spec, payload), payload, UpdateFacts(n_train=len(training.examples), **facts)

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
        """Train the job's network, which holds what the task starts from, with the plugins that the task asks for."""
        (training, validation), network = self._data(app, task), self._network(app, task)
        assert training.tensors is not None
        assert validation.tensors is not None
        started = time.monotonic()
        trained = () if task.local_statistics else work.tensors  # what stays at the site moves, too
        with Scope(network, trained) as scope, self._remembering(task, work, network) as optimizer:

            def measured() -> Evaluation:
                found = self._measure(app, task, validation, {})
                scope.awaken()  # whoever measures in the midst of training leaves others the network as it was
                return found

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
                measure=measured,
                pulse=lambda: self._pulse(task, work),
            )
            company = Company(*asked, run)
            hooks = company.hooks(scope.awaken)
            done = train(app, network, run.examples, work, run.seed, progress, drag, hooks, window, optimizer)
            drag.rest()
            seconds = time.monotonic() - started
            scope.awaken()
            found = company.finish()
        self._notes.keep(task, run.memory)
        return asdict(done) | {"seconds": seconds, "metrics": found}

    @contextmanager
    def _remembering(self, task: Task, work: Train, network: Any) -> Iterator[Any]:
        """Lend an optimizer for a task; it and the site's own statistics go on from the task before, if they are to."""
        optimizer = make_optimizer(work.optimizer, network)
        if task.job not in self._memories:
            make_room(self._memories)
            self._memories[task.job] = Memory(({}, {}), ({}, {}))
        memory = self._memories[task.job]
        states, statistics = memory.recall(task.id)
        if work.keep_optimizer:
            take_up(states, task, optimizer, network)
        if task.local_statistics:
            put_statistics(network, statistics)
        yield optimizer
        memory.after = (
            states_after(states, optimizer, network) if work.keep_optimizer else {},
            statistics_of(network) if task.local_statistics else {},
        )

    def _pulse(self, task: Task, work: Train) -> int | None:
        """Return how many optimizer steps the job has committed, as far as is known."""
        heard = self.attendance.pulse(task.job)
        return None if heard is None else max(heard, work.committed)

    def _measure(
        self, app: App, task: Task, validation: SplitData, arrays: Mapping[str, np.ndarray]
    ) -> Evaluation:
        """Measure the model in hand on the site's validation part."""
        if not len(validation.examples):
            return Evaluation(n=0, loss_sum=0.0)
        if app.evaluate is not None:
            return app.measured(arrays, validation.examples)
        assert validation.tensors is not None
        return measure(app, self._network(app, task), validation.tensors)

    def _network(self, app: App, task: Task) -> Any:
        if task.job not in self._networks:
            make_room(self._networks)
            self._networks[task.job] = networks.build(app, task.seed, self.options.device)
        return self._networks[task.job]

    def _data(self, app: App, task: Task) -> tuple[SplitData, SplitData]:
        """Return the parts of the site's data for training and for validation."""
        if task.job not in self._parts:
            make_room(self._parts)
            training, validation = (
                SplitData(part, to_tensors(app, part, self.options.device) if app.train is None else None)
                for part in parts(self.shelf.get(task.app).examples, task)
            )
            self._parts[task.job] = (training, validation)
        return self._parts[task.job]

    def _training_part(self, task: Task) -> Examples:
        held = self.shelf.get(task.app).examples
        rows, _ = split(held.y, task.validation, task.seed, task.site)
        return held.take(rows)
