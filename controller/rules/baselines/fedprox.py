"""FedProx (Li et al., 2020): a proximal term keeps each site's update near the model it started from."""

from pydantic import Field

from hansa.common.methods.proximal import PROXIMAL, Proximal
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View
from hansa.controller.rules.baselines.fedavg import FEDAVG


@register("local", "plain")
class Plain(Policy):
    """Sites minimise the app's loss and nothing else."""

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Add nothing."""
        return work


@register("local", "proximal")
class ProximalTerm(Policy):
    """Sites minimise the loss plus μ/2·‖w − w′‖², where w′ is the model that the task started from."""

    mu: float = Field(
        0.01, ge=0, description="μ; the norm is over all trained numbers, so even small values matter"
    )

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Name the learner's plugin; with μ = 0 there is none, and training equals FedAvg's, bit for bit."""
        if not self.mu:
            return work
        plugin = LocalPluginSpec(name=PROXIMAL, args=Proximal(mu=self.mu).model_dump())
        return work.model_copy(update={"plugins": (*work.plugins, plugin)})


FEDPROX = add_rule(
    Rule(
        name="fedprox",
        summary="FedAvg with a proximal term at the sites: updates stay near the model they started from",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, 2020",
        parts=FEDAVG.parts | {"local": {"kind": "proximal"}},
    )
)
