"""What is known of a task before it is done: it takes at least so long.

The driver may go on to whatever happens before that time without waiting for the task. So these numbers must
never be too high; if they are too low, the driver only waits earlier than it has to.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hansa.common.app import App
from hansa.common.models.model import Manifest
from hansa.common.plugins.registry import kinds
from hansa.common.values.ids import ModelKey
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.learner.plugins.selection import overrides
from hansa.simulation.clock.traffic import UpdateSizes
from hansa.simulation.crew.base import Outcome


@dataclass(frozen=True)
class Known:
    """How many examples sites have, as far as outcomes have told."""

    training: dict[int, int] = field(default_factory=dict)
    evaluating: dict[tuple[int, bool], int] = field(default_factory=dict)  # whether these are for validation


class Forecast:
    """Learns from outcomes how many examples each site has."""

    def __init__(self, app: App, manifest: Callable[[ModelKey], Manifest]) -> None:
        self._app, self._manifest = app, manifest
        self.known = Known()
        self._sizes = UpdateSizes()

    def learn(self, site: int, task: Task, outcome: Outcome) -> None:
        """Take note of an outcome."""
        if isinstance(task.work, Evaluate):
            if isinstance(outcome.result, Evaluation):
                self.known.evaluating[site, task.work.validation] = outcome.result.n
        elif outcome.examples:
            self.known.training[site] = outcome.examples

    def examples(self, site: int, work: Evaluate) -> int:
        """Return how many examples a site evaluates a model on."""
        return self.known.evaluating.get((site, work.validation), 0)

    def steps(self, site: int, work: Train) -> int:
        """Return the least number of optimizer steps of a task."""
        epoch = self.epoch(site, work)
        if any(self._may_end(plugin.name) for plugin in work.plugins):
            return epoch
        if work.steps:
            return work.steps if epoch else 0
        return epoch * (work.personal_epochs + work.epochs)

    def epoch(self, site: int, work: Train) -> int:
        """Return the least number of optimizer steps of an epoch."""
        if work.batches or work.source is not None:
            return 0  # not all examples, each once
        rows, size = self.known.training.get(site, 0), work.batch_size
        if self._app.train is not None:
            return -(-rows // size)
        # A network with batch norm does not train on a last batch of one row.
        return rows // size + (rows % size > 1) if size > 1 else 0

    def _may_end(self, plugin: str) -> bool:
        """Whether a plugin may end training before all epochs are done."""
        cls = kinds("learner").get(plugin)
        return cls is None or overrides(cls, "after_epoch")

    def upload(self, task: Task) -> int:
        """Return the least number of bytes that a site sends."""
        if not isinstance(task.work, Train):
            return 0
        return self._sizes.of(task.work, self._manifest(task.models[0]).spec) or 0
