"""What an evaluator computes for its tasks: models come in as arrays, evaluations go out."""

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hansa.common.app import App
from hansa.common.data.holdout import parts, rows_of
from hansa.common.data.lazy import AnyExamples
from hansa.common.data.standard import standardised
from hansa.common.site.personal import PersonalFolder, own_tensors
from hansa.common.site.stock import Apps, Networks, make_room
from hansa.common.site.workplace import Workplace
from hansa.common.torch.data import Data
from hansa.common.torch.lazy import to_data
from hansa.common.torch.metrics import measure
from hansa.common.torch.model import load
from hansa.common.torch.readers import Readers
from hansa.common.torch.resident import WHOLE, Resident
from hansa.common.torch.seeding import seed_generators, task_seed, undisturbed
from hansa.common.torch.statistics import estimate_statistics
from hansa.common.values.errors import InvalidData, Refused
from hansa.common.values.ids import JobId
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """An evaluator's data for a job, as examples and (for torch apps) as batches of tensors."""

    examples: AnyExamples
    batches: Data | None


@dataclass(frozen=True)
class PreparedData:
    """The data of an evaluator's jobs."""

    prepared: dict[JobId, dict[str, Prepared]] = field(default_factory=dict)  # by split
    training: dict[JobId, Data] = field(default_factory=dict)


class Measurer:
    """Evaluates models on a site's data. All of it blocks; one thread does it."""

    def __init__(
        self,
        options: Workplace,
        apps: Apps,
        shared: Networks | None = None,
        data: PreparedData | None = None,
        readers: Readers | None = None,
    ) -> None:
        """Sites that are simulated in one process have `shared` networks, and their data are kept apart.

        `readers` read Datasets ahead, if the app asks for that.
        """
        self._readers = readers
        self._options, self._apps = options, apps
        self._networks = shared or Networks(options.device)
        data = data or PreparedData()
        self._prepared, self._training = data.prepared, data.training
        self._personal = PersonalFolder(options.personal_files)

    def evaluate(self, app: App, task: Task, arrays: dict[str, np.ndarray]) -> Evaluation:
        """Evaluate a model, with the site's own tensors or beside its own model if the job has such."""
        assert isinstance(task.work, Evaluate)
        chosen = "validation" if task.work.validation else self._options.split
        evaluation = self._evaluate(app, task, arrays, chosen).model_copy(update={"split": chosen})
        if not task.work.both or chosen != "test":
            return evaluation
        beside = self._evaluate(app, task, arrays, "validation")
        beside = beside.model_copy(update={"personal": ""})  # it is of the same task
        return evaluation.model_copy(update={"validation": beside})

    def _evaluate(self, app: App, task: Task, arrays: dict[str, np.ndarray], chosen: str) -> Evaluation:
        """Evaluate a model on a part of the site's data."""
        prepared = self._prepare(app, task, chosen)
        if not len(prepared.examples):
            return Evaluation(n=0, loss_sum=0.0)
        network, resident = self._build(app, task)
        resident.require(task)
        personal = self._personal.committed(task.job) if resident.sets.personal else None
        model = arrays | own_tensors(resident, personal)
        measured = self._measure(app, task, prepared, network, resident, model, task.local_statistics)
        if personal:
            return measured.model_copy(update={"personal": personal.task})
        assert isinstance(task.work, Evaluate)
        if not task.work.own_model:
            return measured
        own = self._personal.committed(task.job)
        if own is None:  # the site's own model begins as the community's
            return measured.model_copy(update={"own_model": measured})
        own_model = self._measure(app, task, prepared, network, resident, dict(own.arrays), estimates=False)
        return measured.model_copy(update={"own_model": own_model, "personal": own.task})

    def _measure(
        self,
        app: App,
        task: Task,
        prepared: Prepared,
        network: Any,
        resident: Resident,
        arrays: dict[str, np.ndarray],
        estimates: bool,
    ) -> Evaluation:
        """Evaluate a model with the tensors of it that stay at the site.

        `estimates` says whether its batch-norm statistics are estimated from the site's data.
        """
        seed_generators(task_seed(task))
        if app.evaluate is not None:
            return app.measured({**(network or {}), **arrays}, prepared.examples)
        assert prepared.batches is not None
        load(network, arrays, resident.sets.backbone)
        if estimates:
            try:
                estimate_statistics(network, self._training_batches(app, task))
            except InvalidData as error:  # other sites can evaluate the model; the job goes on without this
                raise Refused(f"batch-norm statistics cannot be estimated at this site: {error}") from None
        return measure(app, network, prepared.batches)

    def _training_batches(self, app: App, task: Task) -> Data:
        """Return what the site's learner trains on, which the site's own batch-norm statistics come from."""
        if task.job not in self._training:
            make_room(self._training)
            with undisturbed():
                seed_generators(task.seed)  # examples may be read, and may be random
                training, _ = parts(self._apps.training(task.app), task)
            self._training[task.job] = to_data(app, training, self._options.device, self._readers)
        return self._training[task.job]

    def _prepare(self, app: App, task: Task, chosen: str) -> Prepared:
        """Return the data to evaluate on: validation data, test data, or all data."""
        if task.job not in self._prepared:
            make_room(self._prepared)
            self._prepared[task.job] = {}
        splits = self._prepared[task.job]
        if chosen not in splits:
            seed_generators(task.seed)
            examples = self._validation(task) if chosen == "validation" else self._others(task)
            plain = app.evaluate is not None
            batches = None if plain else to_data(app, examples, self._options.device, self._readers)
            splits[chosen] = Prepared(examples, batches)
        return splits[chosen]

    def _build(self, app: App, task: Task) -> tuple[Any, Resident]:
        """Return the app's network, if it is needed, and what of it stays at the site."""
        if app.evaluate is not None and task.travel.whole:
            return None, WHOLE
        built = self._networks.get(app, task)
        return built.network, WHOLE if task.travel.whole else built.resident

    def _validation(self, task: Task) -> AnyExamples:
        """Return the training data that the learner never sees; no examples if there are none."""
        try:
            training = self._apps.training(task.app)
        except InvalidData as error:
            log.warning("job %s: this evaluator cannot read training data: %s", task.job, error)
            return self._apps.get(task.app).examples.take(np.arange(0))
        _, validation = parts(training, task)
        if not len(validation):
            log.warning("job %s: this site has no validation data", task.job)
        return validation

    def _others(self, task: Task) -> AnyExamples:
        """Return all test data, or all data.

        If the standard is local, test data are standardised by what the learner trains on. A site that
        evaluates on all its data has no learner: they have their own standard.
        """
        examples, own = self._apps.get(task.app).examples, None
        if self._options.split == "test" and task.standard and task.standard.kind == "local":
            try:
                training = self._apps.training(task.app)
                own = training.take(rows_of(training, task)[0])
            except InvalidData as error:
                log.warning(
                    "job %s: the test data are standardised by their own mean, not the training data's: %s",
                    task.job,
                    error,
                )
        return standardised(examples, task.standard, own)
