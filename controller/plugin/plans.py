"""Evaluation plans: which versions are evaluated, by whom, and what the reports say together."""

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
    """Says when and by whom community models are evaluated, and what the findings say together.

    Evaluation never blocks training. One version is offered at a time, and the newest follows when all
    evaluators have answered or the time is up. The last version of a job is evaluated by all who are
    connected, whatever the plan says.
    """

    timeout: float = Field(
        60.0, gt=0, le=SECONDS, description="seconds to wait for evaluators, of every version and of the last"
    )
    min_coverage: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of all evaluators' examples on which a version must be evaluated to count",
    )

    @property
    def midway(self) -> bool:
        """Whether the mean of models that travel is evaluated between merges, too."""
        return False

    @abstractmethod
    def due(self, state: S, view: View) -> Sequence[SiteName]:
        """Return whose findings on the newest version are wanted; asked at most once, when no other is on offer."""

    def odd(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[SiteName, str]:
        """Return whose findings cannot be combined with the others', and why; their examples count as not evaluated."""
        return {}

    @abstractmethod
    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Return metrics over what has come so far; it is asked again as more comes in, in any order."""
