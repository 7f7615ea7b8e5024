"""What a learner computes for its tasks: models come in as arrays and go out as frames."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from threading import Event
from typing import Any, cast

import numpy as np

from hansa.common.app import App
from hansa.common.models.auxiliary import apart, with_auxiliary
from hansa.common.models.frames import Layout, allocate, pack, seal, views
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.process.memory import Buffers
from hansa.common.site.personal import PersonalFolder, own_tensors
from hansa.common.site.policy import FREE, Policy
from hansa.common.site.stock import Apps, Networks
from hansa.common.site.workplace import Workplace
from hansa.common.torch import networks
from hansa.common.torch.lazy import to_data
from hansa.common.torch.model import load, put
from hansa.common.torch.readers import Readers
from hansa.common.torch.seeding import seed_generators, task_seed
from hansa.common.values.ids import JobId
from hansa.common.values.results import Evaluation, Profile, Progress, UpdateFacts
from hansa.common.values.tasks import Probe, Survey, Task, Train
from hansa.learner.jobs import JobStock, Parts
from hansa.learner.memory import finished, own_model, states
from hansa.learner.memory.commits import commit
from hansa.learner.memory.fingerprint import fingerprint
from hansa.learner.memory.finished import FinishedUpdates, Update
from hansa.learner.memory.secret import Secret, read_key
from hansa.learner.memory.states import States
from hansa.learner.plugins.contract import LocalRun, ProbeRun
from hansa.learner.plugins.selection import Asked, Company, asked_of, probe_of, probed_by
from hansa.learner.training.amending import amend
from hansa.learner.training.encoding import encoded
from hansa.learner.training.freezing import Scope
from hansa.learner.training.loop import train
from hansa.learner.training.own import train_own
from hansa.learner.training.slow import Drag
from hansa.learner.training.stages import train_in_stages
from hansa.learner.training.window import Window, Windows

log = logging.getLogger(__name__)


class Trainer:
    """Surveys, probes, initialises and trains. All of it blocks; one thread does it."""

    def __init__(
        self,
        options: Workplace,
        shelf: Apps,
        pulse: Callable[[JobId], int | None],
        policy: Callable[[], Policy] = lambda: FREE,
        shared: Networks | None = None,
        parts: Parts | None = None,
        readers: Readers | None = None,
    ) -> None:
        """`pulse` returns a job's committed optimizer steps, if the controller can be reached.

        Sites that are simulated in one process have `shared` networks, and their data stay in `parts`.
        `readers` read Datasets ahead, if the app asks for that.
        """
        self.options, self.shelf, self._policy = options, shelf, policy
        self._networks = shared or Networks(options.device)
        self._personal = PersonalFolder(options.personal_files)
        self.jobs = JobStock(shelf, options.device, self._personal, self._networks, parts, readers)
        self._pulse = pulse
        self._buffers = Buffers()
        self._windows = Windows(options.files)
        self._states = States(options.files.folder(states.FOLDER))
        self._finished = FinishedUpdates(options.files.folder(finished.FOLDER))

    def survey(self, app: App, task: Task, work: Survey) -> Profile:
        """Sum up the training part of the site's data."""
        return self.jobs.profile(app, task, work)

    def probe(
        self, app: App, task: Task, work: Probe, arrays: dict[str, np.ndarray], cancelled: Event
    ) -> float:
        """Let a plugin look at a model without training it."""
        plugin = probe_of(app, work)
        training, _ = self.jobs.data(app, task)
        assert training.batches is not None
        network, resident = self.jobs.network(app, task), self.jobs.resident(app, task)
        load(
            network,
            arrays | own_tensors(resident, self._personal.committed(task.job)),
            resident.sets.backbone,
        )
        self.jobs.put_own_statistics(task, network)
        run = ProbeRun(
            app=app,
            task=task,
            batch_size=work.batch_size,
            seed=task_seed(task),
            model=network,
            examples=training.batches,
            cancelled=Drag(self.options.slow, cancelled),
        )
        seed_generators(run.seed)
        with Scope(network, resident.trained(())) as scope:
            scope.awaken()
            return probed_by(plugin, run)

    def initialise(self, app: App, task: Task) -> Update:
        """Build a job's first model."""
        # Training goes on with this network: a large one is built and digested once.
        _, network, resident = self._networks.anew(app, task)
        spec = resident.spec.subset(resident.sets.travelling)
        payload = networks.payload_of(network, spec)
        inputs, examples = None, self.shelf.get(task.app).examples
        if app.train is None and len(examples):
            few = to_data(app, examples.take(np.arange(min(len(examples), 2))), self.options.device)
            inputs = next(few.in_order()).inputs
        anatomy = networks.anatomy(network, inputs)
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
        """Train a model that was received; `report` is called after each epoch.

        An update with secret randomness that is finished already is returned as it is.
        """
        mark = cache(partial(fingerprint, task, base))
        if (update := self._finished.of(task, mark)) is not None:
            return update
        asked = asked_of(app, work)
        beside = apart(arrays, base.spec, [each.name for each in work.auxiliary if each.down])
        arrays = {name: arrays[name] for name in base.spec.own.names}
        training, _ = self.jobs.data(app, task)
        drag = Drag(self.options.slow, cancelled)
        window = self._windows.begin(task, work, task_seed(task), training.examples) if work.batches else None

        def progress(epoch: int, steps: int, loss: float) -> None:
            epochs = work.personal_epochs + work.epochs
            report(Progress(task=task.id, epoch=epoch, epochs=epochs, steps=steps, loss=loss))

        resident = self.jobs.resident(app, task)
        sets = resident.sets
        resident.require_travelling(base.spec.own)
        arrays = arrays | self.jobs.staying(app, task, work)
        spec = base.spec.own.subset(work.tensors) if work.tensors else base.spec.own
        returned = with_auxiliary(spec, [each.name for each in work.auxiliary if each.up])
        layout = Layout(returned)
        payload = allocate(layout, self._buffers.take(layout.size))
        everything = views(layout, payload)
        places = {name: everything[name] for name in spec.names}
        secret = Secret(lambda: read_key(self.options.files), mark)
        network: Any = self.jobs.network(app, task) if app.train is None else None
        run = self._run(app, task, work, arrays, beside, network, places, drag, secret)
        if app.train is not None:
            for name, place in places.items():
                place[...] = arrays[name]
            company, trained, facts = self._train_own(run, asked, places, drag, progress, window)
            pack(spec, trained, payload)
            personal = {name: np.asarray(trained[name]) for name in sets.personal}
            facts["metrics"] = company.finish()
        else:
            load(network, arrays, sets.backbone)
            company, facts = self._fit(run, asked, drag, progress, window)
            networks.payload_of(network, spec, payload)
            personal = networks.arrays_of(network, sets.personal)
        if company.amends or returned is not spec:
            facts["metrics"] = amend(company, spec, everything, payload, facts["metrics"])
        sent = encoded(returned, everything, run) if work.encoding else None
        if work.validate_update:
            if network is not None and (company.amends or sent):
                put(network, places)  # what is returned is evaluated
            facts["evaluation"] = self.jobs.evaluate(app, task, arrays | personal | places)
        if personal:
            self._personal.keep(task, resident.spec.subset(sets.personal), personal)
        self._remember(run, base.spec.own)
        manifest, payload = sent or (seal(returned, payload), payload)
        update = Update(manifest, payload, UpdateFacts(n_train=len(training.examples), **facts))
        if secret.drawn:
            self._finished.keep(task, mark(), update)
        return update

    def _remember(self, run: LocalRun, spec: ModelSpec) -> None:
        """Keep what plugins remember of a task, and the site's own model if they train one."""
        room = self._policy().require_room
        own_model.keep(self._personal, run.task, run.own, spec, room)
        self._states.keep(run.task, run.work, run.recollection, room)

    def commit(self, task: Task) -> None:
        """Commit what the site keeps of a task, and forget the finished update: the controller has it."""
        commit(task, self._windows, self._personal, self._finished)

    def _run(
        self,
        app: App,
        task: Task,
        work: Train,
        start: dict[str, np.ndarray],
        beside: Mapping[str, Mapping[str, np.ndarray]],
        network: Any,
        places: dict[str, np.ndarray],
        drag: Drag,
        secret: Secret,
    ) -> LocalRun:
        """Return a task as its plugins see it; an app that trains by itself does so in `places`."""
        training, validation = self.jobs.data(app, task)

        def committed() -> int | None:
            newest = self._pulse(task.job)
            return None if newest is None else max(newest, work.committed)

        return LocalRun(
            app=app,
            task=task,
            work=work,
            seed=task_seed(task),
            model=network,
            anchor=start,
            auxiliary=beside,
            examples=cast(Any, training.batches),
            validation=cast(Any, validation.batches),
            cancelled=drag,
            measure=lambda: self.jobs.evaluate(app, task, start | places),
            pulse=committed,
            secret=secret,
            recollection=self._states.recall(task, work),
            own=own_model.recall(self._personal, task, work),
        )

    def _train_own(
        self,
        run: LocalRun,
        asked: Asked,
        places: dict[str, np.ndarray],
        drag: Drag,
        progress: Callable[[int, int, float], None],
        window: Window | None,
    ) -> tuple[Company, Mapping[str, np.ndarray], dict[str, Any]]:
        """Let the app's own function train, in `places` and in copies of the other arrays."""
        company = Company(*asked, run)
        own = {name: array.copy() for name, array in run.anchor.items() if name not in places} | places
        training, _ = self.jobs.data(run.app, run.task)
        more = (training.examples, progress, drag, window, self.options.device, self.options.data)
        tensors = self.jobs.resident(run.app, run.task).trained(run.work.tensors)
        work = run.work.model_copy(update={"tensors": tensors})
        trained, facts = train_own(run.app, run.task, work, run.seed, own, *more)
        run.steps = facts["steps"]
        return company, trained, facts

    def _fit(
        self,
        run: LocalRun,
        asked: Asked,
        drag: Drag,
        progress: Callable[[int, int, float], None],
        window: Window | None,
    ) -> tuple[Company, dict[str, Any]]:
        """Train the job's network, which holds the task's model, with the plugins that the task asks for."""
        app, task, work, network = run.app, run.task, run.work, run.model
        started = time.monotonic()
        resident = self.jobs.resident(app, task)
        # With local statistics, tensors that stay at the site change as well.
        trained = () if task.local_statistics else resident.trained(work.tensors)
        with Scope(network, trained) as scope, self.jobs.optimizer(task, work, network) as optimizer:
            awake = [scope]  # the innermost is last

            def awaken() -> None:
                awake[-1].awaken()

            def evaluate() -> Evaluation:  # must not refer to the run: in a cycle, its models would stay
                evaluation = self.jobs.evaluate(app, task, {})
                awaken()  # a plugin that evaluates during training must not change the network's mode
                return evaluation

            run.measure = evaluate
            company = Company(*asked, run)
            more = (progress, drag, company.hooks(awaken), window)
            if work.personal_epochs:
                done = train_in_stages(run, resident.sets, awake, *more)
            else:
                done = train(app, network, run.examples, work, run.seed, *more, optimizer)
            drag.rest()
            seconds = time.monotonic() - started
            scope.awaken()
            metrics = company.finish()
        network.zero_grad()  # gradients are as large as what is trained, and the next task has its own
        return company, vars(done) | {"seconds": seconds, "metrics": metrics}
