"""The evaluator's daemon: fetches models, evaluates them on the site's data, and reports the results."""

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
from hansa.common.site.personal import PersonalFolder, own_tensors
from hansa.common.site.shelf import Shelf
from hansa.common.torch import networks
from hansa.common.torch.data import Tensors, to_tensors
from hansa.common.torch.metrics import measure
from hansa.common.torch.model import load
from hansa.common.torch.resident import WHOLE, Resident, resident_of
from hansa.common.torch.statistics import estimate_statistics
from hansa.common.values.errors import InvalidData, Refused, Stale
from hansa.common.values.ids import JobId
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """An evaluator's data for a job, as arrays and (for torch apps) as tensors, and the network."""

    examples: Examples
    tensors: Tensors | None
    network: Any
    resident: Resident


class Evaluator(SiteDaemon):
    """A site's evaluator."""

    def __init__(self, options: SiteOptions, shelf: Shelf) -> None:
        super().__init__(options, shelf)
        self._prepared: dict[JobId, dict[str, Prepared]] = {}  # by split
        self._training: dict[JobId, Tensors] = {}
        self._personal = PersonalFolder(options.personal_folder)

    async def perform(self, task: Task, cancelled: Event) -> None:
        """Evaluate a model and report the result."""
        if not isinstance(task.work, Evaluate):
            raise Stale("this is not an evaluation, and an evaluator does nothing else")
        app = self.shelf.get(task.app).app
        _, arrays = await self.fetcher.fetch(task.work.model, task.work.base)
        evaluation = await self.compute(self._evaluate, app, task, arrays)
        faults.reach("evaluation-done")
        request = fleet.TaskReport(site=self.options.identity.site, task=task.id)
        request.evaluation.MergeFrom(codec.evaluation_to_wire(evaluation))
        await self.attendance.insist(lambda: self.attendance.stub.Report(request))
        faults.reach("evaluation-reported")

    def _evaluate(self, app: App, task: Task, arrays: dict[str, np.ndarray]) -> Evaluation:
        prepared = self._prepare(app, task)
        if not len(prepared.examples):
            return Evaluation(n=0, loss_sum=0.0)
        resident = prepared.resident
        resident.require(task)
        personal = self._personal.committed(task.job) if resident.sets.personal else None
        model = arrays | own_tensors(resident, personal)
        evaluation = self._measure(app, task, prepared, model, task.local_statistics)
        if personal:
            return evaluation.model_copy(update={"personal": personal.task})
        assert isinstance(task.work, Evaluate)
        return self._with_own_model(app, task, prepared, evaluation) if task.work.own_model else evaluation

    def _with_own_model(self, app: App, task: Task, prepared: Prepared, evaluation: Evaluation) -> Evaluation:
        """Add an evaluation of the site's own model, which begins as the community's."""
        own = self._personal.committed(task.job)
        if own is None:
            return evaluation.model_copy(update={"own_model": evaluation})
        own_evaluation = self._measure(app, task, prepared, dict(own.arrays), estimates=False)
        return evaluation.model_copy(update={"own_model": own_evaluation, "personal": own.task})

    def _measure(
        self, app: App, task: Task, prepared: Prepared, arrays: dict[str, np.ndarray], estimates: bool
    ) -> Evaluation:
        """Evaluate a model with the tensors of it that stay at the site.

        `estimates` says whether its batch-norm statistics are estimated from the site's data.
        """
        if app.evaluate is not None:
            return app.measured({**(prepared.network or {}), **arrays}, prepared.examples)
        assert prepared.tensors is not None
        load(prepared.network, arrays, prepared.resident.sets.backbone)
        if estimates:
            try:
                estimate_statistics(prepared.network, self._training_tensors(app, task))
            except (
                InvalidData
            ) as error:  # other sites can evaluate the model; the job continues without this one
                raise Refused(f"batch-norm statistics cannot be estimated at this site: {error}") from None
        return measure(app, prepared.network, prepared.tensors)

    def _training_tensors(self, app: App, task: Task) -> Tensors:
        """Return what the site's learner trains on, which the site's own batch-norm statistics come from."""
        if task.job not in self._training:
            make_room(self._training)
            training, _ = parts(self._training_data(app, task), task)
            self._training[task.job] = to_tensors(app, training, self.options.device)
        return self._training[task.job]

    def _prepare(self, app: App, task: Task) -> Prepared:
        """Return the data to evaluate on (validation data, test data or all data) and the app's network."""
        assert isinstance(task.work, Evaluate)
        chosen = "validation" if task.work.validation else self.options.split
        if task.job not in self._prepared:
            make_room(self._prepared)
            self._prepared[task.job] = {}
        splits = self._prepared[task.job]
        if chosen not in splits:
            examples = self._validation(app, task) if chosen == "validation" else self._others(app, task)
            plain = app.evaluate is not None
            tensors = None if plain else to_tensors(app, examples, self.options.device)
            known = next(((each.network, each.resident) for each in splits.values()), None)
            splits[chosen] = Prepared(examples, tensors, *(known or self._build(app, task)))
        return splits[chosen]

    def _build(self, app: App, task: Task) -> tuple[Any, Resident]:
        """Return the app's network, if it is needed, and what of it stays at the site."""
        if app.evaluate is not None and task.travel.whole:
            return None, WHOLE
        network = networks.build(app, task.seed, self.options.device)
        return network, WHOLE if task.travel.whole else resident_of(network, task.travel)

    def _validation(self, app: App, task: Task) -> Examples:
        """Return the training data that the learner never sees; no examples if there are none."""
        try:
            training = self._training_data(app, task)
        except InvalidData as error:
            log.warning("job %s: this evaluator cannot read training data: %s", task.job, error)
            return self.shelf.get(task.app).examples.take(np.arange(0))
        _, validation = parts(training, task)
        if not len(validation):
            log.warning("job %s: this site has no validation data", task.job)
        return validation

    def _others(self, app: App, task: Task) -> Examples:
        """Return all test data, or all data.

        If the standard is local, test data are standardised by what the learner trains on. A site that
        evaluates on all its data has no learner: they have their own standard.
        """
        examples, own = self.shelf.get(task.app).examples, None
        if self.options.split == "test" and task.standard and task.standard.kind == "local":
            try:
                training = self._training_data(app, task)
                own = training.x[split(training.y, task.validation, task.seed, task.site)[0]]
            except InvalidData as error:
                log.warning(
                    "job %s: the test data are standardised by their own mean, not the training data's: %s",
                    task.job,
                    error,
                )
        return standardised(examples, task.standard, own)

    def _training_data(self, app: App, task: Task) -> Examples:
        if self.options.split == "validation":
            return self.shelf.get(task.app).examples
        return app.load(self.options.data, "train")
