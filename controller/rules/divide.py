"""Divide-and-Conquer (Chandran et al., 2021): rounds train and transfer first and last layers in turn.

Rounds 0 … R−1 are the pre-pass: they train the whole model, and the divergences of the sites' layers then
decide where to divide it. After that, feature rounds train the layers before the split and fine-tuning rounds
the layers after it, while the others are frozen. Sites upload only what they trained and download only what
was merged.

Where the paper leaves something open, we chose: K > 2 sites are compared in pairs; pre-pass rounds count in
the decay of the learning rate; a rule (`splitting.choose_split`) finds the split, not a look at a plot. The
paper's formula EQ3 divides a cosine distance, which has no unit, by a norm, so large layers look less
divergent than small ones. It is the default so that results can be compared with the paper's. The history has
all three metrics, with a warning if they would divide differently.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import TRAIN, Rule, add_rule, register
from hansa.common.values.errors import Refused
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import FEDAVG
from hansa.controller.rules.dividing.divergence import Metric
from hansa.controller.rules.dividing.layers import Layers
from hansa.controller.rules.dividing.prepass import Chooser, compare, comparison
from hansa.controller.rules.dividing.splitting import Scale

LEAST = 1e-30  # the learning rate never becomes 0, even after thousands of rounds
PATIENCE = 3  # pre-pass rounds in a row that may fail to find a split
Phase = Literal["prepass", "feature", "fine-tuning"]


class Division(BaseModel):
    """How far a job has come."""

    round: int = 0  # communication rounds so far, without those that had to be repeated
    cycles: dict[SiteName, int] = {}  # merged updates of each site, where there are no common rounds
    split: int | None = None  # layers before the split
    report: dict[str, JsonValue] = {}  # of the last examination
    repeats: int = 0  # of the last pre-pass round, in a row


@register("layers", "divide")
class Divide(Policy[Division]):
    """Train first layers (feature rounds) and last layers (fine-tuning rounds) in turn; freeze the others."""

    needs_outline: ClassVar[bool] = True
    needs_anatomy: ClassVar[bool] = True
    alternates: ClassVar[bool] = True
    prepass: int = Field(
        5, ge=0, strict=True, description="rounds on the whole model before the first feature round"
    )
    split: int | None = Field(
        None,
        ge=1,
        strict=True,
        description="divide after this layer, counted from 1; none: the pre-pass decides",
    )
    metric: Metric = Field(
        "eq3", description="divergence of layers that decides where to divide; eq3 is the paper's"
    )
    choose: Scale = Field(
        "raw",
        description="fit levels to the divergences; log: to their logarithms (the former rule, to compare)",
    )
    min_ratio: float = Field(
        2.0,
        gt=1,
        description="how many times as divergent the last layers must be; if not, only the last is split off",
    )
    margin: float = Field(
        0.8,
        gt=0,
        le=1,
        description="a split is clear if it costs at most this share of the runner-up; ignored with log",
    )
    feature_epochs: int | None = Field(
        None,
        ge=1,
        le=100_000,
        strict=True,
        description="epochs of feature and pre-pass rounds; none: train.epochs",
    )
    fine_epochs: int | None = Field(
        None,
        ge=1,
        le=100_000,
        strict=True,
        description="epochs of fine-tuning rounds; none: a fifth, at least 1",
    )
    decay: float = Field(0.9, gt=0, le=1, description="the learning rate is train.optimizer.lr · decay^round")
    fine_lr: float = Field(0.5, gt=0, description="φ, the share of the learning rate in fine-tuning rounds")
    restart: bool = Field(False, description="begin again from version 0 after the pre-pass")
    blocks: bool = Field(
        False, description="divide only between blocks: modules of the app with several layers"
    )
    order: tuple[str, ...] = Field(
        (), description="the layers in forward order; none: as the model registers them"
    )

    def begin(self) -> Division:
        """Start at the first round, without a split."""
        return Division()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse pacers without common rounds to compare sites in, and parts that set how long to train."""
        problems: list[Problem] = []
        alone = spec.sites.names is not None and len(set(spec.sites.names)) == 1
        common = rule.pace.common_rounds
        if not common and self.prepass:
            why = "a pre-pass compares updates of one round; give layers.split and set layers.prepass to 0"
            problems.append(self.clash(rule.pace, why))
        if self.split is None and (not self.prepass or alone) and (common or not self.prepass):
            why = "a single site has no divergence" if alone else "without a pre-pass no split can be found"
            problems.append((("layers", "split"), f"{why}: give the layer after which to divide"))
        if rule.pace.sets_steps:
            problems.append(self.clash(rule.pace, "it sets itself how many steps sites make in each phase"))
        if rule.train.adaptive:
            why = "layers: divide sets the epochs of each phase, so until cannot set them as well"
            problems.append((("train", "until"), why))
        if rule.train.windows:
            why = "with train.batches tasks are windows of batches, not epochs; leave it out"
            epochs = {"feature_epochs": self.feature_epochs, "fine_epochs": self.fine_epochs}
            problems += [(("layers", key), why) for key, value in epochs.items() if value is not None]
        if spec.train.schedule.changes and self.decay < 1:
            why = "layers: divide lowers the learning rate from round to round itself"
            problems.append(
                (("train", "schedule"), f"{why}; set layers.decay to 1, or leave the schedule out")
            )
        if self.restart and (rule.builds_on_current or rule.merge.remembers):
            stateful = rule.merge if rule.merge.remembers or rule.adds else rule.server
            problems.append(
                self.clash(stateful, "after a restart it would still carry state of the pre-pass")
            )
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of a job that ends before the model is divided."""
        rounds = rule.pace.rounds_asked()
        if not rule.pace.common_rounds or rounds > self.prepass:
            return []
        why = f"all {rounds} rounds of the job are pre-pass rounds on the whole model: nothing is divided"
        return [
            (("layers", "prepass"), f"{why}; give more rounds, or a layers.split and fewer pre-pass rounds")
        ]

    def misfits(self, model: Outline) -> list[Problem]:
        """Refuse models that cannot be divided, or not where the job wants it."""
        return self._layers(model).misfits(self.split)

    def shape(self, state: Division, site: SiteName, work: Train, view: View) -> Train:
        """Name the tensors of the phase, with its epochs and learning rate."""
        if view.outline is None:
            return work
        number = self._number(state, site, view)
        phase = self.phase_of(number)
        whole = self.feature_epochs or work.epochs
        epochs = (self.fine_epochs or max(1, whole // 5)) if phase == "fine-tuning" else whole
        trainings = view.turn - 1 if view.turn else number  # where models travel, one per hop (radfed §4)
        lr = work.optimizer.lr * self.decay**trainings * (self.fine_lr if phase == "fine-tuning" else 1.0)
        lr = max(lr, LEAST)
        tensors: tuple[str, ...] = ()
        if phase != "prepass":
            split = self._split(state)
            assert split is not None, "the pre-pass ends with a split"
            tensors = self.group(view.outline, split, phase)
        optimizer = work.optimizer.model_copy(update={"lr": lr})
        return work.model_copy(update={"tensors": tensors, "epochs": epochs, "optimizer": optimizer})

    def phase_of(self, number: int) -> Phase:
        """Return the phase of a round, counted from 0, or of a site's cycle."""
        if number < self.prepass:
            return "prepass"
        return "fine-tuning" if (number - self.prepass) % 2 else "feature"

    def group(self, model: Outline, split: int, phase: Phase) -> tuple[str, ...]:
        """Return the tensors of a group: those of the layers before the split, or after it."""
        first = phase == "feature"
        return tuple(name for name, rank in self._layers(model).ranks.items() if (rank < split) is first)

    # The pre-pass.

    def question(self, state: Division, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Compare the layers' matrices of all sites in pre-pass rounds; biases and norms do not count."""
        if state.round >= self.prepass or len(contributions) < 2 or view.outline is None:
            return None
        return comparison(self._layers(view.outline), len(contributions), view.rng("layers"))

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Return the divergence of every layer by every metric."""
        return compare(question, contributions, models)

    def examined(
        self,
        state: Division,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Take the divergences; after the last pre-pass round they decide where to divide."""
        assert view.outline is not None
        state.report = {"trouble": trouble} if trouble else {}
        layers = self._layers(view.outline)
        if isinstance(facts, dict):
            chooser = self.chooser(layers)
            found: Any = facts["divergences"]
            state.report = facts | chooser.report(found)
            if self.split is not None:
                return
            warning = chooser.warning(found)
            state.report |= {"warning": warning} if warning else {}
            if state.round == self.prepass - 1:
                split = chooser.choice(found).split
                for fault in layers.faults(split):
                    raise Refused(f"the pre-pass chose to divide after layer {split}, but {fault}")
                state.split = split

    def chooser(self, layers: Layers) -> Chooser:
        """Return what chooses a split of a model as this job wants it."""
        return Chooser(self.metric, self.min_ratio, self.choose, self.margin, layers.free())

    def restarts(self, state: Division) -> bool:
        """Go back to version 0 when the split is known."""
        return self.restart and self._split(state) is not None and state.round == self.prepass - 1

    @property
    def may_restart(self) -> bool:
        """Whether version 0 is needed again."""
        return self.restart and self.prepass > 0

    def merged(self, state: Division, contributions: Sequence[Contribution], view: View) -> None:
        """Go on to the next round, unless the last pre-pass round found no split."""
        if not view.common:
            for c in contributions:
                state.cycles[c.site] = state.cycles.get(c.site, 0) + 1
            return
        report, state.report = state.report, {}
        if self._lacks_split(state):
            state.repeats += 1
            if state.repeats >= PATIENCE:
                why = report.get("trouble", "updates of at least two sites are needed")
                raise Refused(f"{PATIENCE} pre-pass rounds found no split: {why}; give layers.split")
            return
        state.round, state.repeats = state.round + 1, 0

    def _lacks_split(self, state: Division) -> bool:
        """Whether the last pre-pass round has found no split."""
        return state.round == self.prepass - 1 and self._split(state) is None

    def _split(self, state: Division) -> int | None:
        return self.split if self.split is not None else state.split

    # What operators see.

    def phase(self, state: Division, contributions: Sequence[Contribution], view: View) -> str:
        """Return the phase of the round, or of the site whose update is merged."""
        if not view.common and not contributions:
            return ""  # sites are in phases of their own
        return self.phase_of(self._number(state, contributions[0].site if contributions else None, view))

    def diagnostics(
        self, state: Division, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Return the phase with its settings, the divergences, and warnings."""
        number = self._number(state, contributions[0].site if contributions else None, view)
        report: dict[str, JsonValue] = {
            "phase": self.phase_of(number),
            "round": number,
            "split": self._split(state),
            **state.report,
        }
        if contributions and isinstance(contributions[0].task.work, Train):
            work = contributions[0].task.work
            report |= {"epochs": work.epochs, "lr": work.optimizer.lr}
        warnings = [str(report["warning"])] if "warning" in report else []
        if not number and not state.repeats and view.outline is not None:
            report["layers"] = list(self._layers(view.outline).names)
            warnings += view.outline.anatomy.remarks if view.outline.anatomy and not self.order else ()
        if view.common and self._lacks_split(state):
            trouble = state.report.get("trouble")
            why = (
                f"the layers could not be compared ({trouble})"
                if trouble
                else "fewer than two sites took part"
            )
            warnings.append(f"the pre-pass round is repeated: {why}")
        return report | ({"warning": "; ".join(warnings)} if warnings else {})

    def _number(self, state: Division, site: SiteName | None, view: View) -> int:
        """Return the number of the round, or of a site's cycle where there are no common rounds."""
        return state.round if view.common or site is None else state.cycles.get(site, 0)

    def _layers(self, model: Outline) -> Layers:
        return Layers(model, self.order, self.blocks)


DIVIDE = add_rule(
    Rule(
        name="divide",
        summary="first and last layers are trained and transferred in turn: half of FedAvg's traffic",
        paper="Chandran et al., Divide-and-Conquer Federated Learning under Data Heterogeneity, 2021",
        parts=FEDAVG.parts
        | {"layers": {"kind": "divide"}, "weigh": {"kind": "equal"}}
        | {TRAIN: {"kind": "epochs", "epochs": 20}},  # and 4 in fine-tuning rounds
    )
)
