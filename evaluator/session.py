"""The evaluator daemon."""

import asyncio
import logging
from threading import Event
from typing import Any

import numpy as np

from hansa.common import codec, faults, networks
from hansa.common.app import App, Examples
from hansa.common.data.standard import standardised
from hansa.common.errors import InvalidData, Stale
from hansa.common.ids import JobId
from hansa.common.site.daemon import SiteDaemon, SiteOptions, make_room
from hansa.common.site.holdout import split
from hansa.common.site.shelf import Shelf
from hansa.common.tasks import Evaluate, Evaluation, Task
from hansa.common.torch_data import Tensors, to_tensors
from hansa.common.torch_model import load
from hansa.evaluator.metrics import measure
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)


class Evaluator(SiteDaemon):
    """Does evaluate tasks."""

    def __init__(self, options: SiteOptions, shelf: Shelf) -> None:
        super().__init__(options, shelf)
        self._prepared: dict[JobId, tuple[Examples, Tensors | None, Any]] = {}

    async def perform(self, task: Task, cancelled: Event) -> None:
        """Evaluate and report."""
        if not isinstance(task.work, Evaluate):
            raise Stale("an evaluator only evaluates")
        app = self.shelf.get(task.app).app
        _, arrays = await self.fetcher.fetch(task.work.model)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.thread, self._evaluate, app, task, arrays)
        faults.reach("evaluation-done")
        request = fleet.TaskReport(site=self.options.identity.site, task=task.id)
        request.evaluation.MergeFrom(codec.evaluation_to_wire(found))
        await self.attendance.insist(lambda: self.attendance.stub.Report(request))
        faults.reach("evaluation-reported")

    def _evaluate(self, app: App, task: Task, arrays: dict[str, np.ndarray]) -> Evaluation:
        examples, tensors, network = self._prepare(app, task)
        if not len(examples):
            return Evaluation(n=0, loss_sum=0.0)
        if app.evaluate is not None:
            return app.evaluate({name: array.copy() for name, array in arrays.items()}, examples)
        assert tensors is not None
        load(network, arrays)
        return measure(app, network, tensors)

    def _prepare(self, app: App, task: Task) -> tuple[Examples, Tensors | None, Any]:
        """Return the data to evaluate on (the validation part, or all of a test set) and the app's model."""
        if task.job not in self._prepared:
            make_room(self._prepared)
            held = self.shelf.get(task.app).examples
            own = self._training_features(app, task) if task.standard and task.standard.kind == "local" else None
            if self.options.split == "validation":
                _, rows = split(held.y, task.validation, task.seed, task.site)
                held = held.take(rows)
                if not len(held):
                    log.warning("job %s: this site has no validation data", task.job)
            held = standardised(held, task.standard, own)
            plain = app.evaluate is not None
            tensors = None if plain else to_tensors(app, held, self.options.device)
            network = None if plain else networks.build(app, task.seed, self.options.device)
            self._prepared[task.job] = (held, tensors, network)
        return self._prepared[task.job]

    def _training_features(self, app: App, task: Task) -> np.ndarray:
        """Return what the site's learner trains on: a local standard is that of the training data, not of test data."""
        held = self.shelf.get(task.app).examples
        if self.options.split == "test":
            try:
                held = app.load(self.options.data, "train")
            except InvalidData as error:
                log.warning("job %s: the test data are standardised by themselves: %s", task.job, error)
                return held.x
        rows, _ = split(held.y, task.validation, task.seed, task.site)
        found: np.ndarray = held.x[rows]
        return found
