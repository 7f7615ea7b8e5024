"""What a job remembers. Everything here follows from the job's specification and its events."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Evaluation, Profile, Receipt, Standard, Task, Value
from hansa.common.values.views import Score
from hansa.controller.engine.effects import Member, MergePlan, StudyPlan
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.view import Contribution

CHAPTER = 256  # versions of the history that a snapshot writes together
Status = Literal["waiting", "running", "completed", "failed", "cancelled"]
Phase = Literal["gathering", "surveying", "initialising", "probing", "training", "closing", "ended"]
MERGING: tuple[Phase, ...] = ("training", "gathering")  # in which the community model may change


class Findings(BaseModel):
    """What evaluators found of a model, of which examples, and whose findings are missing."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a model may be as bad as that

    reports: dict[
        SiteName, Evaluation
    ] = {}  # as long as more may come; then only what they say together is kept
    unevaluated: dict[SiteName, str] = {}  # evaluators of the job whose findings are missing, and why
    pooled: dict[str, float] = {}
    pooled_examples: int = 0
    total: int | None = (
        None  # examples that all evaluators of the job have together; none: one has never told
    )

    @property
    def examples(self) -> int:
        """How many examples the metrics are over."""
        return self.pooled_examples or sum(report.n for report in self.reports.values())

    def add(self, site: SiteName, report: Evaluation) -> None:
        """Enter a report; what the others say together is worked out again."""
        self.reports[site] = report
        self.unevaluated.pop(site, None)
        self.pooled, self.pooled_examples = {}, 0

    def leave_out(self, site: SiteName, why: str) -> None:
        """Take a report out again: it cannot be combined with the others."""
        if self.reports.pop(site, None) is not None:
            self.unevaluated[site] = why

    def pool(self, metrics: Mapping[str, float]) -> None:
        """Enter what the reports say together."""
        self.pooled, self.pooled_examples = dict(metrics), sum(report.n for report in self.reports.values())

    def close(self) -> None:
        """Keep only what the reports say together: confusion matrices of many sites and versions are large."""
        self.reports = {}


class HopRecord(Findings):
    """One hop of a round whose models travel from site to site; the findings are of the mean of its slots."""

    hop: int
    at: float
    trained: int  # slots
    sites: list[SiteName] = []  # that trained them, in the order of the slots
    steps: dict[SiteName, int] = {}  # that their optimizers made
    skipped: int  # slots that nobody trained
    lost: dict[SiteName, str] = {}
    divergence: float | None = None  # of the hop's updates, if it is measured
    trouble: str = ""  # why it could not be


class VersionRecord(Findings):
    """One community model in the job's history."""

    version: int
    round: int
    at: float
    digest: str
    receipt: str = ""  # hash of the receipt that names it; empty: the submission brought it
    distance: float | None = None  # from the job's reference, relative to that, if it has one
    phase: str = ""  # what the rule calls this round
    contributions: dict[
        SiteName, float
    ] = {}  # of one site together, if it was the last to train several slots
    updates: int = 0  # that are new in it
    steps: dict[SiteName, int] = {}  # that each contribution's optimizer made
    hops: list[HopRecord] = []  # of its round, if models travelled from site to site
    staleness: dict[SiteName, tuple[int, int]] = {}  # in versions and in optimizer steps (metis-dvw §5)
    scores: dict[
        SiteName, Score
    ] = {}  # how weights came about, if updates were evaluated; `a (slot 2)` if a has two
    lost: dict[SiteName, str] = {}
    note: str = ""  # what the aggregator has to say of the merge
    still: bool = False  # it is the version before, with its moments, because the weights were no numbers
    diagnostics: dict[
        str, dict[str, JsonValue]
    ] = {}  # what parts of the rule have to say, by the point that they fill
    bytes_up: int = 0
    bytes_down: int = 0
    covered: bool = False  # it was evaluated on so many of all examples that its metrics count


class PendingMerge(Value):
    """A merge that was decided on: new contributions, or a site to be forgotten."""

    contributions: tuple[Contribution, ...] = ()
    scores: dict[SiteName, Score] = {}  # how the weights came about, once they are known
    note: str = ""  # why they do not count, if they are of too few sites
    diagnostics: dict[str, dict[str, JsonValue]] = {}  # known together with the weights
    phase: str = ""
    restart: bool = False  # it gives version 0 again
    lost: dict[SiteName, str] = {}
    steps: int = 0  # optimizer steps that are in them beside those of their own tasks
    forgotten: SiteName | None = None


class Appraisal(BaseModel):
    """What other sites find of an update that is not merged yet."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    waiting: set[TaskId] = set()  # evaluations that have not ended
    reports: dict[SiteName, Evaluation] = {}
    unreported: dict[SiteName, str] = {}
    merge: TaskId | None = None  # the key, in `preparing`, of the merge that waits for it


class Inquiry(Value):
    """An examination of updates by a part of the rule that is under way."""

    point: str
    question: JsonValue
    contributions: tuple[Contribution, ...]
    current: ModelKey
    kept: dict[str, ModelKey]  # by the part before, by name

    def models(self) -> list[ModelKey]:
        """Return what it may read."""
        read = [self.current, *self.kept.values()]
        for c in self.contributions:
            read += [c.model, c.base] if c.base else [c.model]
        return read


class Heard(Value):
    """What came of an examination."""

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
    unfinished: int = (
        0  # versions that were made while it worked at its last task, if that was open at the end
    )


class JobState(BaseModel):
    """A job's memory."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    status: Status = "waiting"
    phase: Phase = "gathering"
    reason: str = ""
    submitted: float
    ended: float | None = None
    sequence: int = 0  # events handled so far: the journal's numbering
    learners: dict[SiteName, int] = {}  # attending, with their numbers of examples
    evaluators: set[SiteName] = set()  # attending
    evaluator_examples: dict[
        SiteName, int | None
    ] = {}  # of those and of others that left, as they last reported
    apps: dict[
        str, dict[SiteName, Stated]
    ] = {}  # what daemons state of the app, by role; also of those that left
    left_out: dict[str, str] = {}  # daemons whose app does not fit the others', and why
    version: int = -1
    current: ModelKey | None = None
    first: ModelKey | None = None  # version 0, as long as the rule may go back to it
    reference: ModelKey | None = None  # what versions are measured against, until the job ends
    measuring: ModelKey | None = (
        None  # version 0, while it is being measured; later versions come with their distance
    )
    outline: Outline | None = None  # of the model, if the rule needs it
    round: int = 0
    steps: int = 0
    task_count: int = 0
    tasks: dict[TaskId, Task] = {}  # open
    receipts: dict[SiteName, Receipt] = {}  # of the last update of each site
    participation: dict[SiteName, Participation] = {}  # of each site that could take part
    chain: str = ""  # hash of the newest receipt
    alarms: dict[str, float] = {}
    appraisals: dict[TaskId, Appraisal] = {}  # of updates that are not merged yet, by the task they answer
    judging: dict[TaskId, TaskId] = {}  # open evaluations of updates, with the task that the update answers
    preparing: dict[
        TaskId, PendingMerge
    ] = {}  # merges that wait for appraisals, by their first update's task
    studies: list[StudyPlan] = []  # hops that are being looked at
    scoring: dict[
        TaskId, tuple[int, int]
    ] = {}  # open evaluations of means of slots, with their version and hop
    hops: list[HopRecord] = []  # of the round under way
    queue: list[PendingMerge] = []  # merges are serial; the first is under way if there is a plan
    plan: MergePlan | None = None
    inquiry_count: int = 0
    inquiries: dict[int, Inquiry] = {}  # under way
    heard: dict[str, Heard] = {}  # what the first merge of the queue has waited for, by point
    kept: dict[str, dict[str, Kept]] = {}  # what parts keep from their examinations, by point and name
    members: dict[SiteName, list[Member]] = {}  # what the newest version is made of
    footing: dict[
        ModelKey, str
    ] = {}  # what else it was made from or goes on from (server updates), with digests
    models: set[ModelKey] = set()  # in the store
    fresh: set[ModelKey] = set()  # updates that no merge has taken yet
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
    history: list[VersionRecord] = []  # by version, from 0 on

    @property
    def merging(self) -> bool:
        """Whether the first merge of the queue is under way: it is computed, or what it is made of is examined."""
        return self.plan is not None or bool(self.inquiries)
