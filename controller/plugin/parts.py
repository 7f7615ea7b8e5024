"""The plugin points of a rule and what plugins see and return (methods/README §3).

A plugin is a frozen value. What it must remember is a state, whose class is the plugin's type parameter:
`class Dvw(Weigher[Worth])`. `begin` makes the state; the engine keeps it, saves it with the job and hands it
to every call. Policies are in `policies`, evaluation plans in `plans`, aggregators and server updates in
`arithmetic`; what plugins see is in `view`, what pacers want in `actions`, what examinations read in `evidence`.

What a plugin is capable of is a typed attribute: a class variable where it holds for every value of the class,
a property where it depends on the parameters.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

import numpy as np
from pydantic import BaseModel, JsonValue
from typing_extensions import TypeVar

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.calling import calling
from hansa.common.plugins.registry import Plugin, contract
from hansa.common.values.errors import HansaError
from hansa.common.values.history import Score
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task
from hansa.common.values.training import LocalPluginSpec
from hansa.controller.plugin.actions import Action
from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.view import Contribution, View

if TYPE_CHECKING:
    from hansa.controller.plugin.composition import Composition


class Nothing(BaseModel):
    """The state of a plugin that remembers nothing."""


S = TypeVar("S", bound=BaseModel, default=Nothing)  # what a plugin remembers


class Part(Plugin, Generic[S]):
    """A plugin of the controller.

    A part may have the models of a merge's contributions read before the merge is weighed:

        question ──► examine (on a worker thread, pure) ──► journal ──► examined ──► Weigher.weigh

    What was found is an event: after a crash it is not worked out again, and what follows from it is the same
    bit for bit. An examination that was under way in the crash is begun anew.
    """

    needs_outline: ClassVar[bool] = False  # it must know the model's tensors and layers (`View.outline`)
    # And what only the app knows: if version 0 is a file, a site is asked.
    needs_anatomy: ClassVar[bool] = False

    @property
    def examination_seconds(self) -> float:
        """How long to wait for what `examine` finds."""
        return 600.0

    def warm_up(self) -> None:
        """Load what `examine` needs and is slow to load. It runs on a worker thread; nobody counts its time."""

    def begin(self) -> S:
        """Return the state to start from. A plugin that names a state of its own must override it."""
        return cast(S, Nothing())

    def question(self, state: S, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Return what to find out about contributions that are to be merged, for `examine`; None: nothing."""
        return None

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Look at models. It sees nothing but its arguments and its own parameters, and may take its time."""
        raise NotImplementedError(f"{self.kind} examines nothing")

    def examined(
        self,
        state: S,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Hear what `examine` found, before the contributions are weighed; `trouble` says why it found nothing.

        Without findings the merge goes on, unless this raises.
        """

    def diagnostics(
        self, state: S, contributions: Sequence[Contribution], view: View
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
class Sampler(Part[S], Generic[S]):
    """Chooses who takes part in a round."""

    ranks: ClassVar[bool] = False  # it names those first that it would take if fewer were wanted
    takes_all: ClassVar[bool] = False  # every site that is connected takes part

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
        self, state: S, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return the sites of the next round."""

    def draw(self, state: S, view: View, exclude: AbstractSet[SiteName] = frozenset()) -> Sequence[SiteName]:
        """Choose, and refuse what cannot be asked: sites that are not there, one twice, or nobody where somebody is."""
        chosen = list(self.choose(state, view, exclude))
        able = {site for site in view.sites if site not in exclude}
        if not able.issuperset(chosen) or len(set(chosen)) < len(chosen) or (able and not chosen):
            raise HansaError(f"it drew {chosen!r:.200} of {len(able)} sites")
        return chosen

    def observe(self, state: S, contribution: Contribution) -> None:
        """Hear of every update that was accepted, merged or not."""

    def probed(self, state: S, site: SiteName, importance: float) -> None:
        """Hear what a site measured on the first model, if there is a `probe`."""


@dataclass(frozen=True)
class Draw:
    """The job's sampler with what it remembers: pacers draw sites with it."""

    sampler: Sampler[Any]
    state: BaseModel

    def __call__(self, view: View, exclude: AbstractSet[SiteName] = frozenset()) -> Sequence[SiteName]:
        """Return the sites of the next round."""
        with calling(self.sampler) as sampler:
            return sampler.draw(self.state, view, exclude)


@contract("pace")
class Pacer(Part[S], Generic[S]):
    """Decides when to ask, when to merge and when to stop."""

    common_rounds: ClassVar[bool] = False  # rounds are common to all sites, and each ends with a merge
    travels: ClassVar[bool] = False  # models travel from site to site within a round
    sets_steps: ClassVar[bool] = False  # it says how many optimizer steps each site makes

    @property
    def redistributes(self) -> bool:
        """Whether sites go on from other sites' own models."""
        return self.travels

    @property
    def trainings(self) -> int:
        """How many trainings follow one another before each merge."""
        return 1

    @abstractmethod
    def begin(self) -> S:
        """Return the state to start from."""

    @abstractmethod
    def rounds_asked(self) -> int:
        """Return how many merges the job is to have: rounds where there are rounds, else updates."""

    @abstractmethod
    def on_start(self, state: S, draw: Draw, view: View) -> list[Action]:
        """Begin the next round."""

    def on_hop(self, state: S, draw: Draw, view: View) -> list[Action]:
        """Go on within a round; called for a NextHop."""
        return []

    @abstractmethod
    def on_asked(self, state: S, task: Task) -> None:
        """Hear which task an Ask became."""

    @abstractmethod
    def on_result(self, state: S, contribution: Contribution, view: View) -> list[Action]:
        """Take an update; raise Stale if nobody waits for it."""

    @abstractmethod
    def on_lost(self, state: S, task: Task, reason: str, view: View) -> list[Action]:
        """Take note that a task will not be answered: it failed or was quarantined."""

    def on_refused(self, state: S, contribution: Contribution, reason: str, view: View) -> list[Action]:
        """Take note that the server update does not take an update; raise Stale if nobody waits for it."""
        return self.on_lost(state, contribution.task, reason, view)

    @abstractmethod
    def on_left(self, state: S, site: SiteName, view: View) -> list[Action]:
        """Take note that a site is gone; it may come back and answer after all."""

    def on_joined(self, state: S, site: SiteName, view: View) -> list[Action]:
        """Take note that a site is here; its open task, if any, is in its hands again."""
        return []

    @abstractmethod
    def on_alarm(self, state: S, alarm: str, draw: Draw, view: View) -> list[Action]:
        """The time of a Wake has come."""

    @abstractmethod
    def on_merged(self, state: S, sites: Sequence[SiteName], view: View) -> list[Action]:
        """The merge of these sites' contributions is done: go on or stop."""


@dataclass(frozen=True)
class EvalRequest:
    """Have an update measured by the evaluator of a site."""

    site: SiteName
    seconds: float = 60.0  # to wait for it; of several requests for one update, the longest counts


@contract("weigh")
class Weigher(Part[S], Generic[S]):
    """Says what each contribution is worth."""

    evaluates: ClassVar[bool] = False  # it wants updates to be evaluated before it weighs them
    joint: ClassVar[bool] = False  # a weight depends on the other contributions of the merge, too
    equal: ClassVar[bool] = False  # every contribution is worth the same, whatever its site says

    def requests(self, state: S, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Return whose findings on an update are wanted; asked once per update, if `evaluates`."""
        return ()

    @abstractmethod
    def weigh(self, state: S, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return one finite weight ≥ 0 per contribution; the findings that came are in `reports` of each."""

    def again(self, state: S, sites: Sequence[SiteName]) -> Mapping[SiteName, float]:
        """Return what the last updates of sites that are not in this merge are worth now.

        Asked after `weigh` if the weigher is `joint` and the aggregator remembers; others keep their weights.
        """
        return {}

    def scores(self, state: S, contributions: Sequence[Contribution]) -> Mapping[str, Score]:
        """Return how the weights that were just given came about; operators see it with the version."""
        return {}
