"""The evaluator daemon."""

import logging
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.data.holdout import parts, split
from hansa.common.data.standard import standardised
from hansa.common.process import faults
from hansa.common.rpc import codec
from hansa.common.site.daemon import SiteDaemon, SiteOptions, make_room
from hansa.common.site.shelf import Shelf
from hansa.common.torch import networks
from hansa.common.torch.data import Tensors, to_tensors
from hansa.common.torch.metrics import measure
from hansa.common.torch.model import load
from hansa.common.torch.statistics import estimate_statistics
from hansa.common.values.errors import InvalidData, Refused, Stale
from hansa.common.values.ids import JobId
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What an evaluator needs for a job: data as arrays and (for torch apps) as tensors, and the network."""

    examples: Examples
    tensors: Tensors | None
    network: Any


class Evaluator(SiteDaemon):
    """Does evaluate tasks."""

    def __init__(self, options: SiteOptions, shelf: Shelf) -> None:
        super().__init__(options, shelf)
        self._prepared: dict[JobId, dict[str, Prepared]] = {}  # by the part of the data: validation or test
        self._training: dict[JobId, Tensors] = {}

    async def perform(self, task: Task, cancelled: Event) -> None:
        """Evaluate and report."""
        if not isinstance(task.work, Evaluate):
            raise Stale("an evaluator only evaluates")
        app = self.shelf.get(task.app).app
        _, arrays = await self.fetcher.fetch(task.work.model, task.work.base)
        found = await self.compute(self._evaluate, app, task, arrays)
        faults.reach("evaluation-done")
        request = fleet.TaskReport(site=self.options.identity.site, task=task.id)
        request.evaluation.MergeFrom(codec.evaluation_to_wire(found))
        await self.attendance.insist(lambda: self.attendance.stub.Report(request))
        faults.reach("evaluation-reported")

    def _evaluate(self, app: App, task: Task, arrays: dict[str, np.ndarray]) -> Evaluation:
        held = self._prepare(app, task)
        if not len(held.examples):
            return Evaluation(n=0, loss_sum=0.0)
        if app.evaluate is not None:
            return app.measured(arrays, held.examples)
        assert held.tensors is not None
        load(held.network, arrays)
        if task.local_statistics:
            try:
                estimate_statistics(held.network, self._learned_from(app, task))
            except InvalidData as error:  # others can measure the model; the job goes on without this site
                raise Refused(f"batch-norm statistics cannot be found at this site: {error}") from None
        return measure(app, held.network, held.tensors)

    def _learned_from(self, app: App, task: Task) -> Tensors:
        """Return what the site's learner trains on: where statistics do not travel, these data have their own."""
        if task.job not in self._training:
            make_room(self._training)
            training, _ = parts(self._training_data(app, task), task)
            self._training[task.job] = to_tensors(app, training, self.options.device)
        return self._training[task.job]

    def _prepare(self, app: App, task: Task) -> Prepared:
        """Return the data to evaluate on (the validation part, or all of a test set) and the app's model."""
        assert isinstance(task.work, Evaluate)
        part = "validation" if task.work.validation else self.options.split
        if task.job not in self._prepared:
            make_room(self._prepared)
            self._prepared[task.job] = {}
        kept = self._prepared[task.job]
        if part not in kept:
            examples = self._validation(app, task) if part == "validation" else self._test(app, task)
            plain = app.evaluate is not None
            known = next((held.network for held in kept.values()), None)
            network = None if plain else known or networks.build(app, task.seed, self.options.device)
            tensors = None if plain else to_tensors(app, examples, self.options.device)
            kept[part] = Prepared(examples, tensors, network)
        return kept[part]

    def _validation(self, app: App, task: Task) -> Examples:
        """Return the part of the training data that the site's learner never sees; nothing if there are none here."""
        try:
            held = self._training_data(app, task)
        except InvalidData as error:
            log.warning("job %s: this evaluator cannot read training data: %s", task.job, error)
            return self.shelf.get(task.app).examples.take(np.arange(0))
        _, validation = parts(held, task)
        if not len(validation):
            log.warning("job %s: this site has no validation data", task.job)
        return validation

    def _test(self, app: App, task: Task) -> Examples:
        """Return all test data; a local standard is that of what the site's learner trains on, not of test data."""
        held, own = self.shelf.get(task.app).examples, None
        if task.standard and task.standard.kind == "local":
            try:
                training = self._training_data(app, task)
                own = training.x[split(training.y, task.validation, task.seed, task.site)[0]]
            except InvalidData as error:
                log.warning("job %s: the test data are standardised by themselves: %s", task.job, error)
        return standardised(held, task.standard, own)

    def _training_data(self, app: App, task: Task) -> Examples:
        if self.options.split == "test":
            return app.load(self.options.data, "train")
        return self.shelf.get(task.app).examples
