"""The plugin points of a rule and what plugins see and return (methods/README §3).

A plugin is a frozen value. What it must remember is a state of its own: `begin` makes it, and the engine
keeps it, saves it with the job and hands it to every call. Aggregators and server updates are in
`arithmetic`; what plugins see is in `view`, what pacers want in `actions`, what examinations read in
`evidence`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import BaseModel, Field, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import Plugin, contract
from hansa.common.values.bounds import SECONDS
from hansa.common.values.errors import HansaError
from hansa.common.values.history import Score
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Task, Train
from hansa.common.values.training import LocalPluginSpec
from hansa.controller.plugin.actions import Action
from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.view import Contribution, View

if TYPE_CHECKING:
    from hansa.controller.plugin.composition import Composition


class Nothing(BaseModel):
    """The state of a plugin that remembers nothing."""


class Part(Plugin):
    """A plugin of the controller.

    A part may have the models of a merge's contributions read before the merge is weighed:

        question ──► examine (on a worker thread, pure) ──► journal ──► examined ──► Weigher.weigh

    What was found is an event: after a crash it is not worked out again, and what follows from it is the same
    bit for bit. An examination that was under way in the crash is begun anew.
    """

    needs_outline: ClassVar[bool] = False  # it must know the model's tensors and layers (`View.outline`)
    needs_anatomy: ClassVar[bool] = (
        False  # and what only the app knows; if version 0 is a file, a site is asked
    )

    @property
    def examination_seconds(self) -> float:
        """How long to wait for what `examine` finds."""
        return 600.0

    def warm_up(self) -> None:
        """Load what `examine` needs and is slow to load. It runs on a worker thread; nobody counts its time."""

    def begin(self) -> BaseModel:
        """Return the state to start from."""
        return Nothing()

    def question(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Return what to find out about contributions that are to be merged, for `examine`; None: nothing."""
        return None

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Look at models. It sees nothing but its arguments and its own parameters, and may take its time."""
        raise NotImplementedError(f"{self.kind} examines nothing")

    def examined(
        self,
        state: BaseModel,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Hear what `examine` found, before the contributions are weighed; `trouble` says why it found nothing.

        Without findings the merge goes on, unless this raises.
        """

    def diagnostics(
        self, state: BaseModel, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Return what operators may want to know of a merge, asked after the weights; it is shown with the version.

        A text under `warning` is shown in tables, too.
        """
        return {}

    def objections(self, spec: JobSpec, rule: "Composition") -> list[Problem]:
        """Return what in a job does not go together with this plugin: where, and why. Asked before the job starts."""
        return []

    def misfits(self, model: Outline) -> list[Problem]:
        """Return what in a job does not go together with its model; asked when version 0 is known."""
        return []

    def warnings(self, spec: JobSpec, rule: "Composition") -> list[Problem]:
        """Return what in a job is likely not meant, though it works; operators see it when they submit the job."""
        return []

    def clash(self, other: Plugin, why: str) -> Problem:
        """Say that another part of the rule does not go together with this one."""
        return (other.point,), f"{other.kind} does not go with {self.point} {self.kind}: {why}"


@contract("sample")
class Sampler(Part):
    """Chooses who takes part in a round."""

    ranks: ClassVar[bool] = False  # whom it names first it would take first, if fewer are wanted

    @property
    def plugins(self) -> tuple[LocalPluginSpec, ...]:
        """Plugins that learners need in every task, so that there is something to choose by."""
        return ()

    @property
    def probe(self) -> LocalPluginSpec | None:
        """What every site is to measure on the first model before the first round, if anything."""
        return None

    @abstractmethod
    def choose(
        self, state: BaseModel, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return the sites of the next round."""

    def draw(
        self, state: BaseModel, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Choose, and refuse what cannot be asked: sites that are not there, one twice, or nobody where somebody is."""
        chosen = list(self.choose(state, view, exclude))
        able = {site for site in view.sites if site not in exclude}
        if not able.issuperset(chosen) or len(set(chosen)) < len(chosen) or (able and not chosen):
            raise HansaError(f"it drew {chosen!r:.200} of {len(able)} sites")
        return chosen

    def observe(self, state: BaseModel, contribution: Contribution) -> None:
        """Hear of every update that was accepted, merged or not."""

    def probed(self, state: BaseModel, site: SiteName, importance: float) -> None:
        """Hear what a site measured on the first model, if there is a `probe`."""


@dataclass(frozen=True)
class Draw:
    """The job's sampler with what it remembers: pacers draw sites with it."""

    sampler: Sampler
    state: BaseModel

    def __call__(self, view: View, exclude: AbstractSet[SiteName] = frozenset()) -> Sequence[SiteName]:
        """Return the sites of the next round."""
        return self.sampler.draw(self.state, view, exclude)


@contract("pace")
class Pacer(Part):
    """Decides when to ask, when to merge and when to stop."""

    provides: ClassVar[frozenset[str]] = (
        frozenset()
    )  # "barrier": there are common rounds; "slots": models travel

    @property
    def redistributes(self) -> bool:
        """Whether sites go on from other sites' own models."""
        return "slots" in self.provides

    @abstractmethod
    def begin(self) -> BaseModel:
        """Return the state to start from."""

    @abstractmethod
    def rounds_asked(self) -> int:
        """Return how many merges the job is to have: rounds where there are rounds, else updates."""

    @abstractmethod
    def on_start(self, state: BaseModel, draw: Draw, view: View) -> list[Action]:
        """Begin the next round."""

    def on_hop(self, state: BaseModel, draw: Draw, view: View) -> list[Action]:
        """Go on within a round; called for a NextHop."""
        return []

    @abstractmethod
    def on_asked(self, state: BaseModel, task: Task) -> None:
        """Hear which task an Ask became."""

    @abstractmethod
    def on_result(self, state: BaseModel, contribution: Contribution, view: View) -> list[Action]:
        """Take an update; raise Stale if nobody waits for it."""

    @abstractmethod
    def on_lost(self, state: BaseModel, task: Task, reason: str, view: View) -> list[Action]:
        """Take note that a task will not be answered: it failed or was quarantined."""

    def on_refused(
        self, state: BaseModel, contribution: Contribution, reason: str, view: View
    ) -> list[Action]:
        """Take note that the server update does not take an update; raise Stale if nobody waits for it."""
        return self.on_lost(state, contribution.task, reason, view)

    @abstractmethod
    def on_left(self, state: BaseModel, site: SiteName, view: View) -> list[Action]:
        """Take note that a site is gone; it may come back and answer after all."""

    def on_joined(self, state: BaseModel, site: SiteName, view: View) -> list[Action]:
        """Take note that a site is here; its open task, if any, is in its hands again."""
        return []

    @abstractmethod
    def on_alarm(self, state: BaseModel, alarm: str, draw: Draw, view: View) -> list[Action]:
        """The time of a Wake has come."""

    @abstractmethod
    def on_merged(self, state: BaseModel, sites: Sequence[SiteName], view: View) -> list[Action]:
        """The merge of these sites' contributions is done: go on or stop."""


@contract("local", "layers")
class Policy(Part):
    """Says what each training task asks for: which tensors, how long, with which plugins of the learner."""

    local_statistics: ClassVar[bool] = False  # batch-norm statistics stay at the sites, and each has its own

    @abstractmethod
    def shape(self, state: BaseModel, site: SiteName, work: Train, view: View) -> Train:
        """Return the work to be given to a site instead; policies are asked in turn."""

    def committed(self, state: BaseModel, contribution: Contribution) -> None:
        """Hear of every update that its site gets a receipt for, merged or not; before the site's next task."""

    def merged(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> None:
        """Hear of every merge, with what was merged."""

    def phase(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> str:
        """Return what the round under way, or the one that these contributions end, is called, if rounds differ."""
        return ""

    @property
    def may_restart(self) -> bool:
        """Whether version 0 must stay in the store because `restarts` may want it."""
        return False

    def restarts(self, state: BaseModel) -> bool:
        """Whether the merge that is being weighed is to give version 0 again, whatever its contributions."""
        return False

    def listens(self, state: BaseModel) -> bool:
        """Whether sites that train are to hear of every merge how many optimizer steps are committed."""
        return False


@dataclass(frozen=True)
class EvalRequest:
    """Have an update measured by the evaluator of a site."""

    site: SiteName
    seconds: float = (
        60.0  # to wait for it; of several requests for one update, the longest wait holds for all
    )


@contract("weigh")
class Weigher(Part):
    """Says what each contribution is worth."""

    appraises: ClassVar[bool] = False  # it wants updates to be evaluated before it weighs them
    joint: ClassVar[bool] = False  # a weight depends on the other contributions of the merge, too

    def requests(self, state: BaseModel, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Return whose findings on an update are wanted; asked once per update, if `appraises`."""
        return ()

    @abstractmethod
    def weigh(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return one finite weight ≥ 0 per contribution; the findings that came are in `reports` of each."""

    def again(self, state: BaseModel, sites: Sequence[SiteName]) -> Mapping[SiteName, float]:
        """Return what the last updates of sites that are not in this merge are worth now.

        Asked after `weigh` if the weigher is `joint` and the aggregator remembers; others keep their weights.
        """
        return {}

    def scores(self, state: BaseModel, contributions: Sequence[Contribution]) -> Mapping[SiteName, Score]:
        """Return how the weights that were just given came about; operators see it with the version."""
        return {}


@contract("evaluate")
class EvalPlan(Part):
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
    def due(self, state: BaseModel, view: View) -> Sequence[SiteName]:
        """Return whose findings on the newest version are wanted; asked at most once, when no other is on offer."""

    def odd(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[SiteName, str]:
        """Return whose findings cannot be combined with the others', and why; their examples count as not evaluated."""
        return {}

    @abstractmethod
    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Return metrics over what has come so far; it is asked again as more comes in, in any order."""
