"""What a learner holds of each job while it runs: the network, the site's data as tensors, and memories."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hansa.common.app import App
from hansa.common.data.holdout import parts, rows_of
from hansa.common.data.lazy import AnyExamples, LazyExamples
from hansa.common.data.standard import profile_of
from hansa.common.site.personal import PersonalFolder, own_tensors
from hansa.common.site.stock import Apps, Networks, make_room
from hansa.common.torch import networks
from hansa.common.torch.data import Data
from hansa.common.torch.lazy import LazyData, to_data
from hansa.common.torch.metrics import measure
from hansa.common.torch.readers import Readers
from hansa.common.torch.resident import Resident
from hansa.common.torch.seeding import seed_generators
from hansa.common.torch.statistics import put_statistics, statistics_of
from hansa.common.values.errors import InvalidData
from hansa.common.values.ids import JobId
from hansa.common.values.results import Evaluation, Profile
from hansa.common.values.tasks import Survey, Task, Train
from hansa.learner.training.memory import Known, Memory, PlainMemory, from_plain, plain
from hansa.learner.training.optimizers import make_optimizer, states_after, take_up


@dataclass(frozen=True)
class SplitData:
    """A part of the site's data, as examples and (for torch apps) as batches of tensors."""

    examples: AnyExamples
    batches: Data | None


Parts = dict[JobId, tuple[SplitData, SplitData]]  # data of jobs: for training and for validation


class JobStock:
    """The networks, data and memories of a learner's jobs. Those of the oldest jobs are dropped."""

    def __init__(
        self,
        apps: Apps,
        device: str,
        personal: PersonalFolder,
        built: Networks,
        parts: Parts | None = None,
        readers: Readers | None = None,
    ) -> None:
        """Without `readers` Datasets are read by this process alone."""
        self._readers = readers
        self._apps, self._device, self._personal, self._networks = apps, device, personal, built
        self._parts: Parts = {} if parts is None else parts
        self._memories: dict[JobId, Memory[Known]] = {}

    def network(self, app: App, task: Task) -> Any:
        """Return the job's network; it holds the weights of whatever was done with it last."""
        return self._networks.get(app, task).network

    def resident(self, app: App, task: Task) -> Resident:
        """Return what of the job's model stays at the site; refuse another backbone than the job's."""
        return self._networks.resident(app, task)

    def staying(self, app: App, task: Task, work: Train) -> dict[str, np.ndarray]:
        """Return the tensors that a task starts from besides those that it receives.

        A network has its backbone, but an app of arrays must be given all of them.
        """
        resident = self.resident(app, task)
        own = own_tensors(resident, self._personal.begin(task, work.after)) if resident.sets.personal else {}
        if app.train is None or task.travel.whole:
            return own
        return networks.arrays_of(self.network(app, task), resident.sets.backbone) | own

    def data(self, app: App, task: Task) -> tuple[SplitData, SplitData]:
        """Return the parts of the site's data for training and for validation."""
        if task.job not in self._parts:
            make_room(self._parts)
            seed_generators(task.seed)  # examples may be read, and may be random
            training, validation = (
                SplitData(
                    part, to_data(app, part, self._device, self._readers) if app.train is None else None
                )
                for part in parts(self._apps.get(task.app).examples, task)
            )
            self._parts[task.job] = (training, validation)
        return self._parts[task.job]

    def raw_training_data(self, task: Task) -> AnyExamples:
        """Return the training part of the site's data as it is, before any standardisation."""
        examples = self._apps.get(task.app).examples
        return examples.take(rows_of(examples, task)[0])

    def profile(self, app: App, task: Task, work: Survey) -> Profile:
        """Sum up the training part of the site's data."""
        examples = self.raw_training_data(task)
        seed_generators(task.seed)
        summary = profile_of(examples, work.columns) if work.moments else Profile(n=len(examples))
        if not work.classes:
            return summary
        labels = self._labels(app, examples) if app.task == "classification" else None
        if labels is None or labels.ndim != 1:
            raise InvalidData(
                "survey.classes: no classes to count: the app's examples do not have one label each"
            )
        counts = np.bincount(labels, minlength=app.classes or 0)
        return summary.model_copy(update={"classes": tuple(counts.tolist())})

    def _labels(self, app: App, examples: AnyExamples) -> np.ndarray:
        """Return the labels of examples; if a Dataset does not know them, all of it is read."""
        if not isinstance(examples, LazyExamples):
            return examples.y
        if examples.labels is not None or not len(examples):
            return np.arange(0) if examples.labels is None else examples.labels
        data = LazyData(app, examples, "cpu", self._readers)
        return np.concatenate([np.asarray(targets) for _, targets, _ in data.in_order()])

    def evaluate(self, app: App, task: Task, arrays: Mapping[str, np.ndarray]) -> Evaluation:
        """Evaluate the job's network, or the arrays of an app of its own, on the site's validation part."""
        _, validation = self.data(app, task)
        if not len(validation.examples):
            return Evaluation(n=0, loss_sum=0.0)
        if app.evaluate is not None:
            return app.measured(arrays, validation.examples)
        assert validation.batches is not None
        return measure(app, self.network(app, task), validation.batches)

    def put_own_statistics(self, task: Task, network: Any) -> None:
        """Give a network the statistics that the site keeps for the job, as after its last task."""
        memory = self._memories.get(task.job)
        if memory is not None and task.local_statistics:
            put_statistics(network, memory.after[1])

    def memory(self, job: JobId) -> PlainMemory | None:
        """Return what the optimizer and the site's own statistics are after the last task, if they are kept.

        Another learner that is given the value goes on as this one would; nobody may change its arrays.
        """
        memory = self._memories.get(job)
        if memory is None or not any((*memory.before, *memory.after)):
            return None
        return memory.converted(plain)

    def put_memory(self, job: JobId, memory: PlainMemory | None) -> None:
        """Go on from another learner's memory of a job; None: from nothing."""
        self._memories.pop(job, None)
        if memory is not None:
            make_room(self._memories)
            self._memories[job] = memory.converted(from_plain)

    @contextmanager
    def optimizer(self, task: Task, work: Train, network: Any) -> Iterator[Any]:
        """Lend an optimizer for a task.

        If the job wants it, the optimizer and the site's own statistics go on from the previous task.
        """
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
