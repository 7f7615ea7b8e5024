"""What sites return: whole models, or only their parameters.

In the latter case batch-norm statistics and counters stay at the sites, as Metis did it for its ResNets.
"""

from typing import ClassVar

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.models.model import Role
from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View


@register("layers", "all")
class All(Policy):
    """Every round trains the whole model."""

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is."""
        return work


@register("layers", "parameters")
class ParametersOnly(Policy):
    """Sites return only parameters and keep their statistics; evaluators use those of their own data."""

    needs_outline: ClassVar[bool] = True
    local_statistics: ClassVar[bool] = True

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse to pool statistics that sites do not send."""
        if rule.merge.pools:
            why = "pooled does not go with layers parameters: statistics stay at the sites"
            return [(("merge", "bn"), why)]
        return []

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Name the parameters; a model that has nothing else is returned whole."""
        tensors = view.outline.tensors if view.outline else ()
        if all(tensor.role is Role.PARAM for tensor in tensors):
            return work
        return work.model_copy(update={"tensors": tuple(t.name for t in tensors if t.role is Role.PARAM)})
