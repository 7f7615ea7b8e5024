"""The plugin points of a rule: parts in general, samplers, pacers and weighers (methods/README §3).

A plugin is a frozen value. What it remembers is a state, whose class is the plugin's type parameter:
`class Dvw(Weigher[Worth])`. `begin` makes the state; the engine keeps it, saves it with the job and passes it
to every call.

A capability of a plugin is a typed attribute: a class variable if it holds for every value of the class, a
property if it depends on the parameters.

Policies are in `policies`, evaluation plans in `plans`, aggregators and server updates in `arithmetic`. What
plugins see is in `view`, what pacers want in `actions`, what examinations read in `evidence`.
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
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Task
from hansa.common.values.wording.words import counted
from hansa.controller.plugin.actions import Action
from hansa.controller.plugin.auxiliary import Auxiliary
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

    A part may examine the contributions of a merge before they are weighed:

        question ──► examine (on a worker thread, pure) ──► journal ──► examined ──► Weigher.weigh

    The findings are an event: after a crash they are not computed again, and everything that follows from
    them is the same bit for bit. An examination that a crash interrupted is started again.
    """

    needs_outline: ClassVar[bool] = False  # it must know the model's tensors and layers (`View.outline`)
    # It must also know what only the app can say: if version 0 comes as a file, a site is asked.
    needs_anatomy: ClassVar[bool] = False

    @property
    def extras(self) -> Mapping[str, str]:
        """The extras of Hansa that the controller must have for this part, each with advice if it has not."""
        return {}

    @property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        """The tensors that travel beside the model for this part."""
        return ()

    @property
    def plugins(self) -> tuple[LocalPluginSpec, ...]:
        """The learner plugins that every training task must use, to report what this part decides by."""
        return ()

    @property
    def examination_seconds(self) -> float:
        """How long `examine` may take."""
        return 600.0

    def warm_up(self) -> None:
        """Load, on a worker thread, what `examine` needs and is slow to load; this time does not count."""

    def begin(self) -> S:
        """Return the initial state. A plugin that names a state of its own must override this."""
        return cast(S, Nothing())

    def question(self, state: S, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Return the question that `examine` answers about contributions to be merged, or None."""
        return None

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Examine models. It sees nothing but its arguments and its own parameters, and may take its time."""
        raise NotImplementedError(f"{self.kind} examines nothing")

    def examined(
        self,
        state: S,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Take the facts that `examine` found, before contributions are weighed.

        If it found none, `trouble` says why; the merge goes on unless this method raises an error.
        """

    def diagnostics(
        self, state: S, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Return what operators may want to know about a merge. It is asked for after `weigh`.

        It is shown with the version; a text under `warning` is shown in tables, too.
        """
        return {}

    def objections(self, spec: JobSpec, rule: "Composition") -> list[Problem]:
        """Return what in a job does not fit this plugin, and why. It is asked before the job starts."""
        return []

    def misfits(self, model: Outline) -> list[Problem]:
        """Return what in a job does not fit its model. It is asked when version 0 is known."""
        return []

    def warnings(self, spec: JobSpec, rule: "Composition") -> list[Problem]:
        """Return what in a job is probably a mistake, though it works. Operators see it on submission."""
        return []

    def clash(self, other: Plugin, why: str) -> Problem:
        """Return the problem that another part of the rule does not go with this one."""
        return (other.point,), f"{other.kind} does not go with {self.point} {self.kind}: {why}"


@contract("sample")
class Sampler(Part[S], Generic[S]):
    """Chooses the sites that take part in a round."""

    ranks: ClassVar[bool] = False  # it orders its choice: the sites that it prefers come first
    takes_all: ClassVar[bool] = False  # every site that is connected takes part

    @property
    def probe(self) -> LocalPluginSpec | None:
        """The learner plugin that the sites of `to_probe` run on the newest model, if any."""
        return None

    def to_probe(self, state: S, view: View) -> Sequence[SiteName]:
        """Return the sites to probe before the round `view.round` begins, each once.

        They do not train for that. When all have answered, failed, left or taken too long, `choose` is asked.
        """
        return ()

    @abstractmethod
    def choose(
        self, state: S, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return the sites of the next round."""

    def draw(self, state: S, view: View, exclude: AbstractSet[SiteName] = frozenset()) -> Sequence[SiteName]:
        """Choose sites, and refuse an invalid choice: unavailable sites, duplicates, or none of several."""
        chosen = list(self.choose(state, view, exclude))
        able = {site for site in view.sites if site not in exclude}
        if not able.issuperset(chosen) or len(set(chosen)) < len(chosen) or (able and not chosen):
            available = counted(len(able), "available site")
            must = "it must draw at least one, and none twice"
            raise HansaError(f"it drew {chosen!r:.200} from {available}; {must}")
        return chosen

    def observe(self, state: S, contribution: Contribution) -> None:
        """Take note of an accepted update, whether it is merged or not."""

    def probed(self, state: S, site: SiteName, result: float) -> None:
        """Take the number that a site's `probe` found; it may be NaN, and a site may claim anything."""


@dataclass(frozen=True)
class Draw:
    """The job's sampler with its memory; pacers draw sites with it."""

    sampler: Sampler[Any]
    state: BaseModel

    def __call__(self, view: View, exclude: AbstractSet[SiteName] = frozenset()) -> Sequence[SiteName]:
        """Return the sites of the next round."""
        with calling(self.sampler) as sampler:
            return sampler.draw(self.state, view, exclude)


@contract("pace")
class Pacer(Part[S], Generic[S]):
    """Decides when to ask sites, when to merge and when to stop."""

    common_rounds: ClassVar[bool] = False  # rounds are common to all sites, and each ends with a merge
    travels: ClassVar[bool] = False  # models travel from site to site within a round
    sets_steps: ClassVar[bool] = False  # it sets how many optimizer steps each site makes

    @property
    def redistributes(self) -> bool:
        """Whether sites train other sites' models further."""
        return self.travels

    @property
    def trainings(self) -> int:
        """How many trainings in a row precede each merge."""
        return 1

    @abstractmethod
    def begin(self) -> S:
        """Return the initial state."""

    @property
    def unit(self) -> str:
        """What operators call a merge: a round, or an update if each is merged by itself."""
        return "round" if self.common_rounds else "update"

    @abstractmethod
    def rounds_asked(self) -> int:
        """Return how many merges the job is to have."""

    def updates_asked(self) -> int:
        """Return how many updates the job is to merge, if there are no rounds."""
        return self.rounds_asked()

    @abstractmethod
    def on_start(self, state: S, draw: Draw, view: View) -> list[Action]:
        """Begin the next round."""

    def on_hop(self, state: S, draw: Draw, view: View) -> list[Action]:
        """Go on within a round; called for a `NextHop`."""
        return []

    @abstractmethod
    def on_asked(self, state: S, task: Task) -> None:
        """Take note of the task that an `Ask` became."""

    @abstractmethod
    def on_result(self, state: S, contribution: Contribution, view: View) -> list[Action]:
        """Take an update; raise Stale if the pacer does not wait for it."""

    @abstractmethod
    def on_lost(self, state: S, task: Task, reason: str, view: View) -> list[Action]:
        """Take note that a task brings no update: it failed, or its update was quarantined."""

    def on_refused(self, state: S, contribution: Contribution, reason: str, view: View) -> list[Action]:
        """Take note that the server update refuses an update; raise Stale if it is not waited for."""
        return self.on_lost(state, contribution.task, reason, view)

    @abstractmethod
    def on_left(self, state: S, site: SiteName, view: View) -> list[Action]:
        """Take note that a site is gone; it may come back and return its update after all."""

    def on_joined(self, state: S, site: SiteName, view: View) -> list[Action]:
        """Take note that a site is connected; if it has an open task, it works on it again."""
        return []

    @abstractmethod
    def on_alarm(self, state: S, alarm: str, draw: Draw, view: View) -> list[Action]:
        """Act when the time of a `Wake` has come."""

    @abstractmethod
    def on_merged(self, state: S, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Go on or stop, now that the contributions of these sites are merged."""


@dataclass(frozen=True)
class EvalRequest:
    """A request to have an update evaluated by a site."""

    site: SiteName
    seconds: float = 60.0  # how long to wait; of several requests for one update, the longest counts


@contract("weigh")
class Weigher(Part[S], Generic[S]):
    """Gives each contribution its weight."""

    validates: ClassVar[bool] = False  # learners evaluate their updates on their own validation data
    evaluates: ClassVar[bool] = False  # other sites evaluate updates first, so they see each other's models
    joint: ClassVar[bool] = False  # a weight also depends on the other contributions of the merge
    equal: ClassVar[bool] = False  # every contribution has the same weight, whatever its site reports
    factors: ClassVar[bool] = False  # a weight is at most 1, and 1 means that an update counts in full

    def requests(self, state: S, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Return which sites are to evaluate an update; asked once per update, if `evaluates`."""
        return ()

    @abstractmethod
    def weigh(self, state: S, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return one finite weight ≥ 0 per contribution; its `reports` are the evaluations that arrived."""

    def again(self, state: S, sites: Sequence[SiteName]) -> Mapping[SiteName, float]:
        """Return the new weights of the last updates of sites that are not in this merge.

        It is asked after `weigh` if the weigher is `joint` and the aggregator remembers. Sites that are left
        out keep their weights.
        """
        return {}

    def scores(self, state: S, contributions: Sequence[Contribution]) -> Mapping[str, Score]:
        """Return the scores behind the weights that `weigh` returned; they are shown with the version."""
        return {}
