"""How updates are sent: as they are, or as encoded differences (`transfer` in a job file; methods: transfer).

What an encoding does is in `hansa.common.encodings`: learners encode, and the controller decodes an update
before anything else sees it. The parts here only say which encoding tasks ask for.
"""

from hansa.common.encodings.contract import Feedback
from hansa.common.encodings.topk import Share
from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.controller.plugin.arithmetic import Coordinatewise
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View


@register("transfer", "none")
class AsItIs(Policy):
    """Updates are sent as they are, bit for bit."""

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is."""
        return work


class Encoded(Policy, Feedback):
    """Updates are sent in the encoding of the same name, with the same parameters."""

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Name the encoding."""
        encoding = LocalPluginSpec(name=self.kind, args=self.model_dump(mode="json"))
        return work.model_copy(update={"encoding": encoding})

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse to add what was lost before a restart to version 0."""
        if self.feedback and rule.may_restart:
            why = "after a restart, sites would add what their updates lost before it; set it to false"
            return [((self.point, "feedback"), f"does not go with layers {rule.layers.kind}: {why}")]
        return []


@register("transfer", "float16")
class Halved(Encoded):
    """Differences are rounded to 16 bits: half the bytes."""


@register("transfer", "int8")
class Quantised(Encoded):
    """Differences are rounded to 255 steps of each row's largest: a quarter of the bytes."""


@register("transfer", "topk")
class Sparse(Encoded, Share):
    """Only the largest differences of each tensor are sent."""

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse aggregators that take the middle of each number: most sites do not send it."""
        problems = super().objections(spec, rule)
        if isinstance(rule.merge, Coordinatewise):
            why = "sites send different numbers, and the middle of mostly unchanged numbers does not change"
            problems.append(self.clash(rule.merge, why))
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Say that without feedback most of every update is lost for good."""
        if self.feedback:
            return []
        return [((self.point, "feedback"), "without it, the numbers that are not sent are lost for good")]
