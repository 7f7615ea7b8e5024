"""Evaluation plans: which versions are evaluated, by which sites, and how reports become metrics."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic

from pydantic import Field

from hansa.common.plugins.registry import contract
from hansa.common.values.bounds import SECONDS
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.controller.plugin.parts import Part, S
from hansa.controller.plugin.view import View


@contract("evaluate")
class EvalPlan(Part[S], Generic[S]):
    """Decides when and by which sites community models are evaluated, and computes metrics from the reports.

    Evaluation never blocks training. One version is offered at a time; when all evaluators have reported or
    the time is up, the newest is offered. The last version of a job is evaluated by all connected evaluators,
    whatever the plan says.
    """

    timeout: float = Field(60.0, gt=0, le=SECONDS, description="seconds to wait for the reports on a version")
    min_coverage: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of all evaluators' examples on which a version must be evaluated to count",
    )

    @property
    def midway(self) -> bool:
        """Whether the mean of travelling models is also evaluated between merges."""
        return False

    @abstractmethod
    def due(self, state: S, view: View) -> Sequence[SiteName]:
        """Return which sites are to evaluate the newest version; asked once at most, if none is on offer."""

    def sample(self, sites: Sequence[SiteName], view: View) -> Sequence[SiteName] | None:
        """Return some of the evaluators that are wanted, who stand for all of them; None: ask them all.

        The sites that are not drawn are not missing: coverage refers to the sample. The job's test sites are
        drawn apart from the others. For the mean of travelling models, `view.draw` has the hop.
        """
        return None

    def odd(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[SiteName, str]:
        """Return which sites' reports do not fit the others, and why; their examples do not count."""
        return {}

    @abstractmethod
    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Return metrics over the reports so far; asked again as more arrive, in any order."""
