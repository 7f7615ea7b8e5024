"""What the engine wants done. The controller's shell does it and reports back with events."""

from collections.abc import Sequence
from dataclasses import dataclass

from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.common.values.tasks import Task


@dataclass(frozen=True)
class SendTask:
    """Put a task into a daemon's hands; it may be sent again after a reconnect."""

    task: Task


@dataclass(frozen=True)
class WithdrawTask:
    """Tell a daemon to drop a task."""

    task: Task
    reason: str


@dataclass(frozen=True)
class Pulse:
    """Tell a site that trains how many optimizer steps are committed by now; nothing is lost if it never hears it."""

    site: SiteName
    steps: int


@dataclass(frozen=True)
class Member:
    """A contribution that counts: its model with its weight, for all tensors it carries or only for some."""

    site: SiteName
    task: TaskId
    model: ModelKey
    weight: float
    tensors: frozenset[str] | None = None  # None: all that the model carries
    slot: int = 0  # of a model that travelled from site to site; they count in this order


@dataclass(frozen=True)
class Change:
    """What a merge does to the sums. `members` is everything that is in them afterwards.

    `newest` are those that counters come from: the merge's own, also when all others are added again beside
    them. `scope` are the tensors that the merge is about, if not all: a server update leaves others and their
    moments alone.
    """

    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    members: Sequence[Member]
    newest: tuple[Member, ...]
    still: bool = False  # it does nothing, and the model and its moments stay as they are
    scope: frozenset[str] | None = None


@dataclass(frozen=True)
class MergePlan:
    """Compute community model `version` from the current one by a change of what counts."""

    version: int
    current: ModelKey
    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    kept: bool  # the sums go on from the version before
    staleness: int = 0  # of the stalest contribution, in versions
    reweighed: tuple[Member, ...] = ()  # that counted before, with weights that have changed
    still: bool = False  # the model before is the next one, and so are its moments

    @property
    def scope(self) -> frozenset[str] | None:
        """The tensors whose contributions change; none: all."""
        found: frozenset[str] = frozenset()
        for member in (*self.added, *self.removed, *self.reweighed):
            if member.tensors is None:
                return None
            found |= member.tensors
        return found


@dataclass(frozen=True)
class StartMerge:
    """Carry out a merge plan on the worker threads and answer with Merged or MergeFailed."""

    plan: MergePlan


@dataclass(frozen=True)
class StudyPlan:
    """Look at the models of a hop: how far they are apart, and what their mean is."""

    version: int  # that the round leads to
    hop: int
    current: ModelKey
    members: tuple[Member, ...] = ()  # the slots; their mean is wanted
    compared: tuple[tuple[ModelKey, ModelKey | None], ...] = ()  # updates, and what to subtract from each

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """All models that it reads."""
        pairs = [key for pair in self.compared for key in pair if key is not None]
        return tuple(dict.fromkeys([self.current, *(member.model for member in self.members), *pairs]))


@dataclass(frozen=True)
class StartStudy:
    """Carry out a study on the worker threads and answer with HopStudied; training does not wait for it."""

    plan: StudyPlan


@dataclass(frozen=True)
class StartMeasurement:
    """Compare version 0 with the job's reference on the worker threads and answer with Measured."""

    model: ModelKey


@dataclass(frozen=True)
class StartExamination:
    """Let a part look at models on a worker thread and answer with Examined or ExaminationFailed."""

    inquiry: int


@dataclass(frozen=True)
class SetAlarm:
    """Answer with AlarmRang at that time (seconds since the epoch)."""

    alarm: str
    at: float


@dataclass(frozen=True)
class DropModels:
    """Delete models that nobody needs any more."""

    keys: tuple[ModelKey, ...]


@dataclass(frozen=True)
class JobEnded:
    """The job has reached its end; nothing will follow."""

    status: str
    reason: str


Effect = (
    SendTask
    | WithdrawTask
    | Pulse
    | StartMerge
    | StartStudy
    | StartMeasurement
    | StartExamination
    | SetAlarm
    | DropModels
    | JobEnded
)
