"""The plugin points of a rule and what plugins see and return (algorithms/README §3).

A plugin is a frozen value. What it must remember is a state of its own: `begin` makes it, and the engine keeps it,
saves it with the job and hands it to every call. Aggregators and server updates are in `arithmetic`.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import BaseModel, Field, JsonValue

from hansa.common.ids import ModelKey, SiteName, TaskId
from hansa.common.job import JobSpec, Problem
from hansa.common.model import ModelSpec
from hansa.common.plugins import Plugin
from hansa.common.tasks import Evaluation, LocalPluginSpec, Task, Train, UpdateFacts, Value
from hansa.common.views import Score
from hansa.controller.engine.outline import Outline

if TYPE_CHECKING:
    from hansa.controller.engine.composition import Composition


class Contribution(Value):
    """An update as rules see it: where it is, and what its learner said of it."""

    task: Task
    model: ModelKey
    digest: str
    facts: UpdateFacts
    # Known when it is weighed.
    reports: Mapping[SiteName, Evaluation] = {}  # what other sites found of it, if the weigher asked
    unreported: Mapping[SiteName, str] = {}  # who did not answer, and why
    staleness: tuple[int, int] = (0, 0)  # in versions and in optimizer steps (metis-dvw §5)
    factor: float = 1.0  # by which the pacer multiplies the weigher's weight

    @property
    def site(self) -> SiteName:
        """Whose update it is."""
        return self.task.site

    @property
    def base(self) -> ModelKey | None:
        """What a partial update is to be laid over: the model that its site started from, or the one below that."""
        return self.task.models[0] if isinstance(self.task.work, Train) and self.task.work.tensors else None


@dataclass(frozen=True)
class View:
    """A read-only picture of the job for one call."""

    sites: Sequence[SiteName]  # learners that attend, sorted
    busy: AbstractSet[SiteName]  # those with an open task
    examples: Mapping[SiteName, int]
    evaluators: Sequence[SiteName]  # that attend, sorted
    version: int
    round: int
    steps: int  # committed so far
    seed: int
    now: float
    together: int = 1  # sites whose updates make a community model, at least
    common: bool = True  # rounds are common to all sites; otherwise each site is in a cycle of its own
    outline: Outline | None = None  # of the model, if a part of the rule needs it and version 0 is here
    turn: int = 0  # of a task: hops of the whole job up to it, where models travel
    draw: tuple[int, ...] = ()  # which of several draws of the round this is, if a pacer makes several

    def rng(self, name: str, *more: int) -> np.random.Generator:
        """Return the random stream of a plugin for this draw: a function of seed, name, round and draw alone."""
        words = [self.seed, zlib.crc32(name.encode()), self.round, *more]
        return np.random.default_rng(np.random.SeedSequence(words, spawn_key=self.draw))


@dataclass(frozen=True)
class Ask:
    """Give a site a training task on the current community model, or on the model of a slot."""

    site: SiteName
    cycle: int | None = None  # which of the site's tasks this is, where there are no common rounds
    steps: int = 0  # optimizer steps to make; 0: the job's epochs
    start: Contribution | None = None  # whose model to start from, if it is not the community model
    hop: int = 0  # of the round, from 1 on, where models travel from site to site
    slot: int = 0  # which of the travelling models, from 1 on
    turn: int = 0  # hops of the whole job up to this one


@dataclass(frozen=True)
class NextRound:
    """Begin the next round, if enough sites are here."""


@dataclass(frozen=True)
class NextHop:
    """Call `on_hop`, where a pacer can draw sites within a round; what just came is known to the sampler by then."""


@dataclass(frozen=True)
class Release:
    """An update will not be merged: another one was made from it."""

    model: ModelKey


@dataclass(frozen=True)
class HopEnded:
    """All slots of a hop were served, or skip it: enter it into the history, and have it looked at if that is wanted.

    `trained` are the updates of this hop with what each was trained from, `slots` what would be merged now.
    """

    hop: int
    trained: tuple[tuple[Contribution, ModelKey | None], ...]
    slots: tuple[Contribution, ...]
    skipped: int  # slots that nobody trained
    lost: Mapping[SiteName, str]
    divergence: str = "none"  # of what to measure how far the updates are apart: weights, delta
    last: bool = False  # a merge follows


@dataclass(frozen=True)
class Withdraw:
    """Nobody waits for this task any more."""

    task: TaskId
    reason: str


@dataclass(frozen=True)
class Prepare:
    """Have an update evaluated now, if the weigher wants that; otherwise it is evaluated when it is to be merged."""

    contribution: Contribution


@dataclass(frozen=True)
class MergeNow:
    """Merge these contributions into the next community model. `lost` says whose is missing and why."""

    contributions: tuple[Contribution, ...]
    lost: Mapping[SiteName, str]
    steps: int = 0  # optimizer steps that are in these contributions beside those of their own tasks


@dataclass(frozen=True)
class Examine:
    """Have the pacer's `examine` look at contributions now, without a merge; `on_examined` hears what it found."""

    contributions: tuple[Contribution, ...]
    label: str  # tells the pacer's examinations apart
    question: JsonValue = None


@dataclass(frozen=True)
class Wake:
    """Call `on_alarm` in so many seconds."""

    seconds: float
    alarm: str


@dataclass(frozen=True)
class Stop:
    """No further training; the job completes, or fails."""

    reason: str
    failed: bool = False


Action = Ask | NextRound | NextHop | Release | HopEnded | Withdraw | Prepare | MergeNow | Examine | Wake | Stop


class Nothing(BaseModel):
    """The state of a plugin that remembers nothing."""


class Evidence(ABC):
    """The numbers of models, for an examination. All arrays are read only, in the dtype of their tensor.

    The model behind a contribution is its update laid over the model that its site started from: `numbers` reads a
    tensor from the update if the update carries it, else from that model.
    """

    spec: ModelSpec  # of the community model

    @abstractmethod
    def carried(self, contribution: Contribution) -> Sequence[str]:
        """Return the tensors that an update carries: all, or those that its task asked for."""

    @abstractmethod
    def numbers(self, contribution: Contribution, tensor: str) -> np.ndarray:
        """Return a tensor of the model behind a contribution, in its shape."""

    @abstractmethod
    def community(self, tensor: str) -> np.ndarray:
        """Return a tensor of the newest community model, in its shape."""

    @abstractmethod
    def rows(self, contributions: Sequence[Contribution], tensor: str) -> Iterator[np.ndarray]:
        """Yield a tensor of many models as float64, a row for each, cut into columns that fit into memory."""

    @abstractmethod
    def kept(self, name: str) -> np.ndarray | None:
        """Return what an earlier examination by the same part kept under a name."""


@dataclass(frozen=True)
class Findings:
    """What an examination found.

    `facts` go through the journal: JSON without NaN, and small (a few thousand numbers). What is larger and must be
    there in later examinations, such as statistics of every site's last update, is kept in the store: one array of
    numbers by name, in the place of what was kept under the name before; None keeps nothing under it any more.
    """

    facts: JsonValue = None
    keep: Mapping[str, np.ndarray | None] = field(default_factory=dict)


class Part(Plugin):
    """A plugin of the controller.

    A part may have the models of a merge's contributions read before the merge is weighed:

        question ──► examine (on a worker thread, pure) ──► journal ──► examined ──► Weigher.weigh

    What was found is an event: after a crash it is not worked out again, and what follows from it is the same bit for
    bit. An examination that was under way in the crash is begun anew.
    """

    needs_outline: ClassVar[bool] = False  # it must know the model's tensors and layers (`View.outline`)

    @property
    def examination_seconds(self) -> float:
        """How long to wait for what `examine` finds."""
        return 600.0

    def begin(self) -> BaseModel:
        """Return the state to start from."""
        return Nothing()

    def question(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Return what to find out about contributions that are to be merged, for `examine`; None: nothing."""
        return None

    def examine(self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence) -> Findings:
        """Look at models. It sees nothing but its arguments and its own parameters, and may take its time."""
        raise NotImplementedError(f"{self.kind} examines nothing")

    def examined(
        self, state: BaseModel, contributions: Sequence[Contribution], facts: JsonValue, trouble: str, view: View
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
    def choose(self, state: BaseModel, view: View, exclude: AbstractSet[SiteName] = frozenset()) -> Sequence[SiteName]:
        """Return the sites of the next round."""

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
        return self.sampler.choose(self.state, view, exclude)


class Pacer(Part):
    """Decides when to ask, when to merge and when to stop."""

    provides: ClassVar[frozenset[str]] = frozenset()  # "barrier": there are common rounds; "slots": models travel

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

    def on_refused(self, state: BaseModel, contribution: Contribution, reason: str, view: View) -> list[Action]:
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

    def on_examined(self, state: BaseModel, label: str, facts: JsonValue, trouble: str, view: View) -> list[Action]:
        """Hear what an `Examine` found; `trouble` says why it found nothing."""
        return []

    @abstractmethod
    def on_merged(self, state: BaseModel, sites: Sequence[SiteName], view: View) -> list[Action]:
        """The merge of these sites' contributions is done: go on or stop."""


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
    seconds: float = 60.0  # to wait for it; of several requests for one update, the longest wait holds for all


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


class EvalPlan(Part):
    """Says when and by whom community models are evaluated, and what the findings say together.

    Evaluation never blocks training: an evaluator that is behind is not asked for a version that is not the last.
    """

    timeout: float = Field(60.0, gt=0, description="seconds to wait for evaluators after the last merge")

    @property
    def midway(self) -> bool:
        """Whether the mean of models that travel is evaluated between merges, too."""
        return False

    @abstractmethod
    def due(self, state: BaseModel, view: View, last: bool) -> Sequence[SiteName]:
        """Return whose findings on the newest version are wanted; asked after every merge, and for the `last` one."""

    @abstractmethod
    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Return metrics over what has come so far; it is asked again as more comes in, in any order."""
