"""What a job remembers. Everything here follows from the job's specification and its events."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.history import Account, Findings, Hop, Version
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import Evaluation, Profile
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Task
from hansa.common.values.training import Standard
from hansa.controller.engine.orders import Examine, Merge, Order
from hansa.controller.engine.subjects import Subject
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.view import Contribution
from hansa.controller.values.members import Member

CHAPTER = 256  # versions of the history that a snapshot writes together
Status = Literal["waiting", "running", "completed", "failed", "cancelled"]
Phase = Literal["gathering", "surveying", "initialising", "probing", "training", "closing", "ended"]
MERGING: tuple[Phase, ...] = ("training", "gathering")  # in which the community model may change


class PendingMerge(Value):
    """A merge that was decided on: new contributions, or a site to be forgotten."""

    contributions: tuple[Contribution, ...] = ()
    account: Account = Account()  # of the version that it makes; filled when its weights are known
    steps: int = 0  # optimizer steps that are in the contributions beside those of their own tasks
    forgotten: SiteName | None = None


class UpdateFindings(Findings):
    """What is known of an update that is evaluated before it is weighed."""

    merge: TaskId | None = None  # the key, in `preparing`, of the merge that waits for its evaluations


class Outcome(Value):
    """What came of an examination of updates."""

    facts: JsonValue = None
    trouble: str = ""


class Kept(Value):
    """An array in the store that a part of the rule keeps."""

    key: ModelKey
    digest: str


class Participation(BaseModel):
    """How much of what a site was asked for it has contributed."""

    since: int  # the newest version when the job first knew of the site
    away: int = 0  # versions that were made while it was away, until it was last back
    away_since: int | None = None  # the newest version when it went; none: it is here
    absence: str = ""  # why it was away last
    asked: int = 0  # rounds, hops or tasks that have ended for it
    answered: int = 0  # of them, with an update that was taken
    failures: int = 0
    reason: str = ""  # of the last failure
    last: tuple[int, int] = (0, 0)  # round and hop that were counted last
    counted: bool = False  # whether its update of them was taken
    idle_since: int | None = None  # the newest version when it failed, until it is asked again
    # Versions that were made while it worked at its last task, if that was open at the end.
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
    learners: dict[SiteName, int] = {}  # attending, with their numbers of examples
    evaluators: set[SiteName] = set()  # attending
    # Of those and of others that left, as they last reported.
    evaluator_examples: dict[SiteName, int | None] = {}
    # What daemons state of the app, by role; also of those that left.
    apps: dict[str, dict[SiteName, Stated]] = {}
    left_out: dict[str, str] = {}  # daemons whose app does not fit the others', and why
    version: int = -1
    current: ModelKey | None = None
    first: ModelKey | None = None  # version 0, as long as the rule may go back to it
    reference: ModelKey | None = None  # what versions are measured against, until the job ends
    outline: Outline | None = None  # of the model, if the rule needs it
    round: int = 0
    steps: int = 0
    task_count: int = 0
    tasks: dict[TaskId, Task] = {}  # open
    receipts: dict[SiteName, Receipt] = {}  # of the last update of each site
    participation: dict[SiteName, Participation] = {}  # of each site that could take part
    chain: str = ""  # hash of the newest receipt
    alarms: dict[str, float] = {}
    subjects: dict[TaskId, Subject] = {}  # of open evaluations
    reports: dict[str, dict[SiteName, Evaluation]] = {}  # that more may come to, by the subject's name
    updates: dict[TaskId, UpdateFindings] = {}  # of updates that are evaluated and not merged yet
    # Merges that wait for evaluations, by their first update's task.
    preparing: dict[TaskId, PendingMerge] = {}
    hops: list[Hop] = []  # of the round under way
    queue: list[PendingMerge] = []  # merges are serial; the first is under way if there is an order for it
    order_count: int = 0
    orders: dict[int, Order] = {}  # open
    examined: dict[str, Outcome] = {}  # what the first merge of the queue has waited for, by point
    kept: dict[str, dict[str, Kept]] = {}  # what parts keep from their examinations, by point and name
    members: dict[SiteName, list[Member]] = {}  # what the newest version is made of
    # What else it was made from or goes on from (server updates), with digests.
    basis: dict[ModelKey, str] = {}
    models: set[ModelKey] = set()  # in the store
    unmerged: set[ModelKey] = set()  # updates that no merge has taken yet
    bases: dict[ModelKey, ModelKey] = {}  # of those that are partial: the models that they are laid over
    init_tried: set[SiteName] = set()
    profiles: dict[SiteName, Profile] = {}  # what sites told in the survey
    untold: dict[SiteName, str] = {}  # sites that could not tell, and why
    surveyed: bool = False
    probed: bool = False  # sites have measured the first model
    standard: Standard | None = None  # of all sites together
    bytes_up: int = 0  # of all versions
    bytes_down: int = 0
    offered: int = 0  # the newest version that the evaluation plan was asked about
    covered: int | None = None  # the newest version whose metrics count
    history: list[Version] = []  # by version, from 0 on

    @property
    def plan(self) -> Merge | None:
        """The merge that is being computed."""
        return next((order for order in self.orders.values() if isinstance(order, Merge)), None)

    @property
    def merging(self) -> bool:
        """Whether the first merge of the queue is under way: it is computed, or its updates are examined."""
        return any(isinstance(order, Merge | Examine) for order in self.orders.values())
