"""SCAFFOLD (Karimireddy et al., ICML 2020), option II: control variates correct the drift of sites.

Every site's steps use g − c_i + c. What sites do is in `hansa.learner.plugins.scaffold`; here are the epochs:
c is the mean of all sites' c_i only as long as the sites stay the same and none loses its c_i. Whenever that
is not so, a new epoch begins, in which c and all c_i start from zero again (scaffold §3).
"""

from collections.abc import Collection, Mapping, Sequence

from pydantic import BaseModel, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.methods.scaffold import CONTROL, LOST, SCAFFOLD, Scaffold
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.common.values.wording.words import in_order, listed
from hansa.controller.plugin.auxiliary import Auxiliary
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.extrapolation import refuse_shaped_steps
from hansa.controller.rules.baselines.fedavg import FEDAVG


class Epochs(BaseModel):
    """The epoch under way: its sites, and whose control variates are in c."""

    epoch: int = 0  # from 1 on
    sites: list[SiteName] = []
    reason: str = ""  # why it began; empty for the first
    fresh: bool = True  # no version has been made in it, so c is still zero
    merged: dict[SiteName, TaskId] = {}  # the last update of each site that was merged in it
    lost: set[SiteName] = set()  # sites that have reported that they lost their control variates


@register("local", SCAFFOLD)
class ControlVariates(Policy[Epochs]):
    """Sites correct every step by the difference between the community's and their own control variate."""

    @property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        """c goes down, and Δc_i come up: c⁺ = c + (|S|/N)·mean(Δc_i), a sum over all N sites of the job."""
        return (Auxiliary(name=CONTROL, merge="add"),)

    def begin(self) -> Epochs:
        """Start before the first epoch."""
        return Epochs()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse what would make c differ from the mean of c_i, or (x − y)/(K·η) from a mean of gradients."""
        problems: list[Problem] = []
        if not rule.weigh.equal:
            why = "the means of updates and of control variates must have the same, equal weights; use equal"
            problems.append(self.clash(rule.weigh, why))
        if not rule.merge.averages:
            why = "the next model must be the mean of the round's updates; use mean"
            problems.append(self.clash(rule.merge, why))
        if not rule.pace.common_rounds:
            problems.append(self.clash(rule.pace, "all sites must start from the same model; use sync"))
        if rule.layers.alternates:
            problems.append(self.clash(rule.layers, "every round must train the same parameters; use all"))
        optimizer = spec.train.optimizer
        if optimizer.kind != "sgd":
            why = f"scaffold needs steps of the gradient times a constant rate; use sgd, not {optimizer.kind}"
            problems.append((("train", "optimizer", "kind"), why))
        if optimizer.momentum:
            why = "scaffold needs steps of the gradient times a constant rate; momentum must be 0"
            problems.append((("train", "optimizer", "momentum"), why))
        return problems + refuse_shaped_steps(
            spec, "scaffold needs steps of the gradient times a constant rate"
        )

    def round_begins(self, state: Epochs, view: View) -> None:
        """Begin a new epoch if the sites have changed or one has lost its memory."""
        reason = self._changes(state, view)
        if state.epoch and not reason:
            return
        state.epoch += 1
        state.sites, state.reason = list(view.sites), reason
        state.fresh, state.merged, state.lost = True, {}, set()

    def _changes(self, state: Epochs, view: View) -> str:
        """Say what has changed since the epoch began."""
        before, now = set(state.sites), set(view.sites)
        changes = {"joined": now - before, "left": before - now, "lost memory": state.lost}
        return "; ".join(
            f"{what}: {listed(sorted(sites, key=in_order), 5)}"
            for what, sites in changes.items()
            if sites and state.epoch
        )

    def resets(self, state: Epochs) -> Collection[str]:
        """Let c start from zero in the first round of an epoch."""
        return (CONTROL,) if state.fresh else ()

    def shape(self, state: Epochs, site: SiteName, work: Train, view: View) -> Train:
        """Name the learner's plugin, and the update up to which the site's control variate is in c."""
        arguments = Scaffold(merged=state.merged.get(site, ""))
        plugin = LocalPluginSpec(name=SCAFFOLD, args=arguments.model_dump())
        return work.model_copy(update={"plugins": (*work.plugins, plugin)})

    def committed(self, state: Epochs, contribution: Contribution) -> None:
        """Take note of a site that has lost its control variate."""
        if contribution.facts.metrics.get(LOST, 0.0) > 0:
            state.lost.add(contribution.site)

    def merged(self, state: Epochs, contributions: Sequence[Contribution], view: View) -> None:
        """Take note of the updates that are in c now: sites go on from them."""
        state.fresh = False
        state.merged |= {c.site: c.task.id for c in contributions if c.weight > 0}

    def diagnostics(
        self, state: Epochs, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Show the epoch, and with its first version why it began."""
        if not (state.fresh and state.reason):
            return {"epoch": state.epoch}
        warning = f"scaffold: epoch {state.epoch} begins with control variates of zero ({state.reason})"
        return {"epoch": state.epoch, "began": state.reason, "warning": warning}


SCAFFOLD_RULE = add_rule(
    Rule(
        name="scaffold",
        summary="control variates correct the steps of sites whose data differ; equal weights",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020",
        parts=FEDAVG.parts | {"local": {"kind": "scaffold"}, "weigh": {"kind": "equal"}},
    )
)
