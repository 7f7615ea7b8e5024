"""FedRep (Collins et al., ICML 2021): each task trains the site's own head first, then the shared body.

While one is trained, the other is frozen and in evaluation mode. As in the paper, the head starts from where
the site's last task left it, and is trained for longer than the body: by default for ten epochs, then one.
"""

from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.bounds import EPOCHS
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View
from hansa.controller.rules.personal.fedper import FEDPER


@register("local", "head-first")
class HeadFirst(Policy):
    """A task trains the tensors that are the site's own, then those that travel; the others are frozen."""

    head_epochs: int = Field(10, ge=1, le=EPOCHS, strict=True, description="on what is the site's own")
    body_epochs: int = Field(1, ge=1, le=EPOCHS, strict=True, description="on what travels, after that")

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse models without a head of the site's own, and what else decides how long a task takes."""
        problems: list[Problem] = []
        if not rule.travel.leaves_own:
            why = "no tensors are the site's own, which it trains first; use layers personal"
            problems.append(self.clash(rule.layers, why))
        if rule.pace.sets_steps:
            problems.append(self.clash(rule.pace, "it sets the number of steps, and epochs count here"))
        if rule.train.windows or rule.train.adaptive:
            problems.append(self.clash(rule.train, "it decides how long a task takes"))
        elif rule.epochs != 1:
            why = "with local head-first, local.head_epochs and local.body_epochs say how long a task takes"
            problems.append((("train", "epochs"), why))
        if spec.train.keep_optimizer:
            why = "each of the two stages of local head-first has an optimizer of its own"
            problems.append((("train", "keep_optimizer"), why))
        return problems

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Ask for both stages."""
        return work.model_copy(update={"personal_epochs": self.head_epochs, "epochs": self.body_epochs})


FEDREP = add_rule(
    Rule(
        name="fedrep",
        summary="FedPer in which a task trains the site's own last layer first, then the shared ones",
        paper="Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021",
        parts=FEDPER.parts | {"local": {"kind": "head-first"}},
    )
)
