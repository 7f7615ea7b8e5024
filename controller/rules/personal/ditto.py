"""Ditto (Li et al., ICML 2021): every site trains a model of its own beside the community's.

The community model is FedAvg's, bit for bit. The site's own model v minimises F(v) + λ/2·‖v − x‖², where x is
the community model that the task starts from; it never leaves the site. What sites do is in
`hansa.learner.plugins.ditto`. Evaluators evaluate both models.
"""

from typing import ClassVar

from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.methods.ditto import DITTO, Ditto
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.bounds import EPOCHS
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View
from hansa.controller.rules.baselines.fedavg import FEDAVG


@register("local", DITTO)
class OwnModels(Policy):
    """Each site trains a model v of its own as well, which minimises the loss plus λ/2·‖v − x‖²."""

    own_models: ClassVar[bool] = True

    lam: float = Field(
        0.1,
        ge=0,
        description="λ: how strongly a site's own model is held near the community's; 0: not at all",
    )
    epochs: int | None = Field(
        None, ge=1, le=EPOCHS, strict=True, description="on the site's own model (default: train.epochs)"
    )

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse models that are partly the site's own already, and tasks whose length is not known."""
        problems: list[Problem] = []
        if rule.travel.leaves_own:
            why = "some tensors of the model are the site's own already; use layers all or trainable"
            problems.append(self.clash(rule.layers, why))
        if rule.layers.alternates:
            problems.append(self.clash(rule.layers, "every round must train the same parameters; use all"))
        if rule.pace.travels:
            why = "sites receive one another's models, and not the community's, to stay near to"
            problems.append(self.clash(rule.pace, why))
        if rule.pace.sets_steps:
            why = "it plans the steps of a task, and would not count those on the site's own model"
            problems.append(self.clash(rule.pace, why))
        if rule.train.windows or rule.train.adaptive:
            why = "both models are trained for a number of epochs; use train.epochs"
            problems.append(self.clash(rule.train, why))
        if spec.train.keep_optimizer:
            why = "local ditto keeps a site's own model from task to task, but not its optimizer's state"
            problems.append((("train", "keep_optimizer"), why))
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of steps that overshoot: v would leap over x, further each time."""
        optimizer = spec.train.optimizer
        if optimizer.kind != "sgd" or optimizer.lr * self.lam < 2:
            return []
        why = (
            f"λ times the learning rate is {optimizer.lr * self.lam:g}: from 2 on, sites' own models diverge"
        )
        return [(("local", "lam"), why)]

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Name the learner's plugin."""
        arguments = Ditto(lam=self.lam, epochs=self.epochs or work.epochs)
        plugin = LocalPluginSpec(name=DITTO, args=arguments.model_dump())
        return work.model_copy(update={"plugins": (*work.plugins, plugin)})


DITTO_RULE = add_rule(
    Rule(
        name="ditto",
        summary="FedAvg, and beside it a model of each site's own that stays near the community's",
        paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, 2021",
        parts=FEDAVG.parts | {"local": {"kind": DITTO}},
    )
)
