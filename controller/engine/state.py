"""A job's state: everything in it follows from the job's specification and its events."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.history import Account, Findings, Hop
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import Evaluation, Profile
from hansa.common.values.settings.training import Standard
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Task
from hansa.controller.engine.orders import Examine, Merge, Order
from hansa.controller.engine.subjects import Subject
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.view import Contribution
from hansa.controller.values.history import History, Records
from hansa.controller.values.members import Member

Status = Literal["waiting", "running", "completed", "failed", "cancelled"]
Phase = Literal["gathering", "surveying", "initialising", "probing", "training", "closing", "ended"]
# The phases in which the community model may change.
MERGING: tuple[Phase, ...] = ("probing", "training", "gathering")

# What an entry of the chronicle tells of.
Kind = Literal[
    "submitted",
    "joined",
    "left",
    "left-out",
    "running",
    "waiting",
    "surveyed",
    "first-model",
    "merged",
    "evaluated",
    "quarantined",
    "failed",
    "closing",
    "ended",
]


@dataclass(frozen=True, slots=True)
class Happening:
    """An entry of the chronicle; there may be many, so it is small."""

    number: int  # from 1, without gaps
    at: float
    kind: Kind
    text: str
    site: str  # empty: it is not about one site
    version: int | None  # None: it is not about a version
    newest: int  # the newest version at that time, whose chapter has the entry


class PendingMerge(Value):
    """A merge that has been decided on: it adds contributions, or it forgets a site."""

    contributions: tuple[Contribution, ...] = ()
    account: Account = Account()  # of the version that it makes; filled in when the weights are known
    steps: int = 0  # optimizer steps in the contributions in addition to those of their own tasks
    forgotten: SiteName | None = None


class UpdateFindings(Findings):
    """The findings on an update that is evaluated before it is weighed."""

    merge: TaskId | None = None  # the key, in `preparing`, of the merge that waits for its evaluations


class Outcome(Value):
    """The outcome of an examination of updates."""

    facts: JsonValue = None
    trouble: str = ""


class Kept(Value):
    """An array in the store that a part of the rule keeps."""

    key: ModelKey
    digest: str


class Best(Value):
    """The best version so far."""

    version: int
    metric: str
    value: float
    score: float  # the larger, the better


class Participation(BaseModel):
    """How much a site has contributed of what it was asked for."""

    since: int  # the newest version when the job first learned of the site
    away: int = 0  # versions that were made during its earlier absences
    away_since: int | None = None  # the newest version when it left; None while it is connected
    absence: str = ""  # the reason for its last absence
    asked: int = 0  # rounds, hops or tasks that are over for it
    answered: int = 0  # how many of these brought an update that was accepted
    failures: int = 0
    reason: str = ""  # of the last failure
    last: tuple[int, int] = (0, 0)  # the round and hop that were counted last
    counted: bool = False  # whether its update for that round and hop was accepted
    idle_since: int | None = None  # the newest version when it failed; None once it is asked again
    # Versions that were made while it worked on its last task, if that was still open at the end.
    unfinished: int = 0


class JobState(BaseModel):
    """A job's memory."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    status: Status = "waiting"
    phase: Phase = "gathering"
    reason: str = ""
    submitted: float
    ended: float | None = None
    sequence: int = 0  # events handled so far: the journal's numbering
    latest: float = 0.0  # the time of the last event
    learners: dict[SiteName, int] = {}  # connected ones, with their numbers of examples
    evaluators: set[SiteName] = set()  # connected ones
    # As last reported by evaluators that are connected or have left; None: never reported.
    evaluator_examples: dict[SiteName, int | None] = {}
    # The app as daemons have loaded it, by role; also of daemons that have left.
    apps: dict[str, dict[SiteName, Stated]] = {}
    left_out: dict[str, str] = {}  # daemons whose app does not fit the others', and why
    version: int = -1
    current: ModelKey | None = None
    first: ModelKey | None = None  # version 0, as long as the rule may go back to it
    reference: ModelKey | None = None  # what versions are compared with, until the job ends
    outline: Outline | None = None  # of the model, if the rule needs it
    described: bool = False  # a site has built the model, and said what only the app knows
    backbone: str = ""  # the digest of what stays at the sites and is the same everywhere
    # What operators should know about the first model.
    remarks: list[str] = []
    # Sites whose evaluators lack what their learners keep at the site (personal-models §2).
    unshared: set[SiteName] = set()
    round: int = 0
    round_sites: int = 0  # that could take part when the round began
    steps: int = 0
    task_count: int = 0
    tasks: dict[TaskId, Task] = {}  # open
    receipts: dict[SiteName, Receipt] = {}  # of the last update of each site
    accepted: dict[SiteName, TaskId] = {}  # the task of each site's last update that has a receipt
    participation: dict[SiteName, Participation] = {}  # of each site that could take part
    chain: str = ""  # hash of the newest receipt
    failed_site: SiteName | None = None  # whose failure ended the job
    alarms: dict[str, float] = {}
    subjects: dict[TaskId, Subject] = {}  # of open evaluations
    reports: dict[str, dict[SiteName, Evaluation]] = {}  # not yet final, by the subject's name
    updates: dict[TaskId, UpdateFindings] = {}  # on unmerged updates that are evaluated
    # Merges that wait for evaluations, by their first update's task.
    preparing: dict[TaskId, PendingMerge] = {}
    hops: list[Hop] = []  # of the current round
    queue: list[PendingMerge] = []  # merges are serial; the first is in progress if there is an order for it
    order_count: int = 0
    orders: dict[int, Order] = {}  # open
    examined: dict[str, Outcome] = {}  # outcomes for the first merge in the queue, by point
    kept: dict[str, dict[str, Kept]] = {}  # what parts keep from their examinations, by point and name
    members: dict[SiteName, list[Member]] = {}  # the contributions that the newest version is made of
    # The models that its server update started from or carries on, with digests.
    basis: dict[ModelKey, str] = {}
    models: set[ModelKey] = set()  # in the store
    saved: dict[int, ModelKey] = {}  # the versions that `keep` wants, besides what the job itself needs
    best: Best | None = None
    since_best: set[int] = set()  # newer versions that count, as long as `stop.patience` counts them
    unmerged: set[ModelKey] = set()  # updates that no merge has taken yet
    bases: dict[ModelKey, ModelKey] = {}  # what unmerged updates are laid over, or what they differ from
    init_tried: set[SiteName] = set()  # sites that could not build or describe the first model
    profiles: dict[SiteName, Profile] = {}  # sites' answers in the survey
    untold: dict[SiteName, str] = {}  # sites that could not describe their data, and why
    surveyed: bool = False
    probed: int = 0  # the newest round whose probes are over
    standard: Standard | None = None  # pooled over all sites
    bytes_up: int = 0  # over all versions
    bytes_down: int = 0
    offered: int = 0  # the newest version that the evaluation plan was asked about
    covered: int | None = None  # the newest version whose metrics count
    merged: int = 0  # updates that are part of a version
    lost: int = 0  # updates that did not arrive, in all versions
    history: Records = Field(default_factory=History)  # by version, from 0 on
    chronicle: list[Happening] = []  # what happened, told for people
    told: dict[str, int] = {}  # how often it told of each site since the newest version

    @property
    def plan(self) -> Merge | None:
        """The merge that is being computed, if any."""
        return next((order for order in self.orders.values() if isinstance(order, Merge)), None)

    @property
    def merging(self) -> bool:
        """Whether the first merge in the queue is in progress: computed, or waiting for examinations."""
        return any(isinstance(order, Merge | Examine) for order in self.orders.values())
