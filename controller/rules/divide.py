"""Divide-and-Conquer (Chandran et al., 2021): first layers and last layers are trained in turn, and travel alone.

Rounds 0 … R−1 are the pre-pass: the whole model is trained, and in the end the divergences of the sites'
layers say where to divide. After it, feature rounds train the layers before the split and fine-tuning rounds
those behind it, the others frozen. Only what was trained goes up, only what was merged goes down.

Where the paper leaves something open we chose: K > 2 sites are compared by pairs; pre-pass rounds count in
the decay of the learning rate; the split follows from a rule (`splitting.choose_split`), not from looking at
a plot. The paper's formula EQ3 divides a cosine distance, which has no unit, by a norm, so that large layers
look less divergent than small ones. It is the default so that results can be compared with the paper's. All
three metrics are in the history, with a warning if they would divide differently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from hansa.controller.rules.divergence import METRICS, Metric, divergences, draw_pairs
from hansa.controller.rules.fedavg import FEDAVG
from hansa.controller.rules.layers import Layers
from hansa.controller.rules.splitting import Candidate, Choice, Scale, choose_split

LEAST = 1e-30  # the learning rate after thousands of rounds: it is never 0
PATIENCE = 3  # pre-pass rounds in a row that may fail to tell where to divide
Phase = Literal["prepass", "feature", "fine-tuning"]


class Division(BaseModel):
    """Where a job stands."""

    round: int = 0  # communication rounds so far, those that had to be repeated not counted
    cycles: dict[SiteName, int] = {}  # merged updates of each site, where there are no common rounds
    split: int | None = None  # layers before the split
    report: dict[str, JsonValue] = {}  # of the last examination
    repeats: int = 0  # of the last pre-pass round, in a row


@register("layers", "divide")
class Divide(Policy[Division]):
    """First layers (feature rounds) and last layers (fine-tuning rounds) are trained in turn, the others frozen."""

    needs_outline: ClassVar[bool] = True
    needs_anatomy: ClassVar[bool] = True
    prepass: int = Field(
        5, ge=0, strict=True, description="rounds on the whole model before the first feature round"
    )
    split: int | None = Field(
        None,
        ge=1,
        strict=True,
        description="divide after this layer, counted from 1; none: the pre-pass finds out",
    )
    metric: Metric = Field(
        "eq3", description="divergence of a layer that says where to divide; eq3 is the paper's"
    )
    choose: Scale = Field(
        "raw",
        description="levels of the divergences themselves; log: of their logarithms, the rule before, to compare",
    )
    min_ratio: float = Field(
        2.0,
        gt=1,
        description="how many times as divergent the last layers must be; otherwise only the last is apart",
    )
    margin: float = Field(
        0.8,
        gt=0,
        le=1,
        description="a split is clear if it costs at most this share of the runner-up; not with log",
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
        """Nothing is known."""
        return Division()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse what has no common rounds to compare sites in, and what says itself how long sites train."""
        found: list[Problem] = []
        alone = spec.sites.names is not None and len(set(spec.sites.names)) == 1
        common = rule.pace.common_rounds
        if not common and self.prepass:
            why = "a pre-pass compares updates of one round; give layers.split and set layers.prepass to 0"
            found.append(self.clash(rule.pace, why))
        if self.split is None and (not self.prepass or alone) and (common or not self.prepass):
            why = (
                "one site alone has no divergence"
                if alone
                else "without a pre-pass nothing tells where to divide"
            )
            found.append((("layers", "split"), f"{why}: give the layer after which to divide"))
        if rule.pace.sets_steps:
            found.append(self.clash(rule.pace, "it says itself how many steps sites make in each phase"))
        if rule.train.adaptive:
            why = "layers: divide says how many epochs each phase has; until cannot say it, too"
            found.append((("train", "until"), why))
        if rule.train.windows:
            why = "with train.batches tasks are windows of batches, not epochs; leave it out"
            given = {"feature_epochs": self.feature_epochs, "fine_epochs": self.fine_epochs}
            found += [(("layers", key), why) for key, value in given.items() if value is not None]
        if self.restart and (not rule.server.plain or rule.merge.remembers):
            what = rule.merge if rule.merge.remembers else rule.server
            found.append(self.clash(what, "restart would leave what it carries on from the pre-pass"))
        return found

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Tell of a job that ends before anything is divided."""
        rounds = rule.pace.rounds_asked()
        if not rule.pace.common_rounds or rounds > self.prepass:
            return []
        why = f"all {rounds} rounds of the job are pre-pass rounds on the whole model: nothing is divided"
        return [
            (("layers", "prepass"), f"{why}; give more rounds, or a layers.split and fewer pre-pass rounds")
        ]

    def misfits(self, model: Outline) -> list[Problem]:
        """Refuse models that cannot be divided, or not where the job says."""
        return self._layers(model).misfits(self.split)

    def shape(self, state: Division, site: SiteName, work: Train, view: View) -> Train:
        """Name the tensors of the phase, with its epochs and learning rate."""
        if view.outline is None:
            return work
        number = self._number(state, site, view)
        phase = self.phase_of(number)
        whole = self.feature_epochs or work.epochs
        epochs = (self.fine_epochs or max(1, whole // 5)) if phase == "fine-tuning" else whole
        trainings = (
            view.turn - 1 if view.turn else number
        )  # where models travel, every hop is one (radfed §4)
        lr = work.optimizer.lr * self.decay**trainings * (self.fine_lr if phase == "fine-tuning" else 1.0)
        lr = max(lr, LEAST)
        tensors: tuple[str, ...] = ()
        if phase != "prepass":
            split = self.split if self.split is not None else state.split
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
        """Return the tensors of a group: those of the layers before the split, or behind it."""
        first = phase == "feature"
        return tuple(name for name, rank in self._layers(model).ranks.items() if (rank < split) is first)

    # The pre-pass.

    def question(self, state: Division, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Compare the layers' matrices of all sites in pre-pass rounds; biases and norms do not count."""
        if state.round >= self.prepass or len(contributions) < 2 or view.outline is None:
            return None
        model = view.outline
        pairs: list[JsonValue] = [[i, j] for i, j in draw_pairs(len(contributions), view.rng("layers"))]
        return {
            "layers": self._layers(model).matrices(),
            "pairs": pairs,
        }

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Return the divergence of every layer by every metric."""
        asked: Any = question
        pairs = [(int(i), int(j)) for i, j in asked["pairs"]]
        found: dict[str, list[float | None]] = {metric: [] for metric in METRICS}
        for tensors in asked["layers"]:
            pieces = (rows for tensor in tensors for rows in models.rows(contributions, tensor))
            for metric, value in divergences(pieces, pairs, len(contributions)).items():
                found[metric].append(value)
        facts: dict[str, Any] = {"divergences": found, "sites": len(contributions), "pairs": len(pairs)}
        return Findings(facts)

    def examined(
        self,
        state: Division,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Take the divergences; after the last pre-pass round they say where to divide."""
        assert view.outline is not None
        state.report = {"trouble": trouble} if trouble else {}
        if isinstance(facts, dict):
            state.report = facts | self._choices(facts, view.outline)
        if state.round == self.prepass - 1 and not trouble and self.split is None:
            chosen = self._choice(state.report["divergences"], self.metric, view.outline)
            for fault in self._layers(view.outline).faults(chosen.split):
                raise Refused(f"the pre-pass chose to divide after layer {chosen.split}, but {fault}")
            state.split = chosen.split

    def _choices(self, facts: Mapping[str, JsonValue], model: Outline) -> dict[str, JsonValue]:
        """Return where every metric would divide, with a warning if they differ or nothing is clear."""
        choices = {metric: self._choice(facts["divergences"], metric, model) for metric in METRICS}
        told: dict[str, JsonValue] = {
            "splits": {metric: choice.split for metric, choice in choices.items()},
            "clear": {metric: choice.clear for metric, choice in choices.items()},
            "best": {metric: _told(choice.best) for metric, choice in choices.items()},
            "runner_up": {metric: _told(choice.runner_up) for metric, choice in choices.items()},
        }
        if self.split is not None:
            return told
        mine = choices[self.metric]
        said = [] if mine.clear else [f"no clear split by {self.metric}: {mine.doubt}"]
        if len({choice.split for choice in choices.values()}) > 1:
            splits = ", ".join(f"{metric} after layer {choice.split}" for metric, choice in choices.items())
            said.append(f"the metrics would divide differently: {splits}")
        return told | ({"warning": "; ".join(said)} if said else {})

    def _choice(self, found: Any, metric: Metric, model: Outline) -> Choice:
        return choose_split(
            found[metric], self.min_ratio, self._layers(model).free(), self.choose, self.margin
        )

    def restarts(self, state: Division) -> bool:
        """Go back to version 0 when the split is known."""
        known = self.split is not None or state.split is not None
        return self.restart and known and state.round == self.prepass - 1

    @property
    def may_restart(self) -> bool:
        """Whether version 0 is needed again."""
        return self.restart and self.prepass > 0

    def merged(self, state: Division, contributions: Sequence[Contribution], view: View) -> None:
        """Go on to the next round, unless the last pre-pass round could not tell where to divide."""
        if not view.common:
            for c in contributions:
                state.cycles[c.site] = state.cycles.get(c.site, 0) + 1
            return
        report, state.report = state.report, {}
        if self._repeats(state):
            state.repeats += 1
            if state.repeats >= PATIENCE:
                why = report.get("trouble", "it takes updates of two sites or more")
                raise Refused(
                    f"{PATIENCE} pre-pass rounds could not tell where to divide: {why}; give layers.split"
                )
            return
        state.round, state.repeats = state.round + 1, 0

    def _repeats(self, state: Division) -> bool:
        return state.round == self.prepass - 1 and self.split is None and state.split is None

    # What operators see.

    def phase(self, state: Division, contributions: Sequence[Contribution], view: View) -> str:
        """Return the phase of the round, or of the site whose update is merged."""
        if not view.common and not contributions:
            return ""  # sites are in phases of their own
        return self.phase_of(self._number(state, contributions[0].site if contributions else None, view))

    def diagnostics(
        self, state: Division, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Return the phase with its settings, the divergences, and what to be warned of."""
        number = self._number(state, contributions[0].site if contributions else None, view)
        split = self.split if self.split is not None else state.split
        told: dict[str, JsonValue] = {
            "phase": self.phase_of(number),
            "round": number,
            "split": split,
            **state.report,
        }
        if contributions and isinstance(contributions[0].task.work, Train):
            work = contributions[0].task.work
            told |= {"epochs": work.epochs, "lr": work.optimizer.lr}
        warned = [str(told["warning"])] if "warning" in told else []
        if not number and not state.repeats and view.outline is not None:
            told["layers"] = list(self._layers(view.outline).names)
            remarks = view.outline.anatomy.remarks if view.outline.anatomy and not self.order else ()
            warned += remarks
        if view.common and self._repeats(state):
            trouble = state.report.get("trouble")
            why = (
                f"the layers could not be compared ({trouble})"
                if trouble
                else "fewer than two sites took part"
            )
            warned.append(f"the pre-pass round is repeated: {why}")
        return told | ({"warning": "; ".join(warned)} if warned else {})

    # The model.

    def _number(self, state: Division, site: SiteName | None, view: View) -> int:
        """Return the number of the round, or of the cycle that a site is in."""
        return state.round if view.common or site is None else state.cycles.get(site, 0)

    def _layers(self, model: Outline) -> Layers:
        return Layers(model, self.order, self.blocks)


def _told(candidate: Candidate | None) -> JsonValue:
    return asdict(candidate) if candidate else None


DIVIDE = add_rule(
    Rule(
        name="divide",
        summary="first and last layers are trained in turn and travel alone: half of FedAvg's traffic",
        paper="Chandran et al., Divide-and-Conquer Federated Learning under Data Heterogeneity, 2021",
        parts=FEDAVG.parts
        | {"layers": {"kind": "divide"}, "weigh": {"kind": "equal"}}
        | {TRAIN: {"kind": "epochs", "epochs": 20}},  # and 4 in fine-tuning rounds
    )
)
