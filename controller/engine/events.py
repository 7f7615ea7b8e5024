"""What can happen to a job. Events are what the journal keeps: replaying them rebuilds the job exactly."""

from typing import Annotated, Literal

from pydantic import AllowInfNan, Field, TypeAdapter

from hansa.common.values.bounds import Value
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.results import Evaluation, Profile, UpdateFacts
from hansa.common.values.stated import Stated
from hansa.controller.engine.orders import Result
from hansa.controller.plugin.outline import Outline


class _Event(Value):
    at: float  # seconds since the epoch, by the controller's clock


class SiteJoined(_Event):
    """A daemon that can work for this job attends."""

    kind: Literal["joined"] = "joined"
    site: SiteName
    role: Literal["learner", "evaluator"]
    examples: int = 0
    app: Stated = Stated()


class SiteUnfit(_Event):
    """A daemon attends that can never work for this job: the app is not allowed or not usable there."""

    kind: Literal["unfit"] = "unfit"
    site: SiteName
    role: Literal["learner", "evaluator"]
    reason: str


class SiteLeft(_Event):
    """A daemon is gone for longer than the grace period, or said goodbye."""

    kind: Literal["left"] = "left"
    site: SiteName
    role: Literal["learner", "evaluator"]


class ModelGiven(_Event):
    """The submission brought version 0."""

    kind: Literal["given"] = "given"
    digest: str
    outline: Outline | None = None  # if the rule needs it


class ModelDescribed(_Event):
    """A site told what the file with version 0 does not: it built the app's model, and kept the numbers to itself."""

    kind: Literal["described"] = "described"
    task: TaskId
    site: SiteName
    digest: str  # of what it built
    outline: Outline


class UpdateArrived(_Event):
    """An update is whole, checked and durable in the store."""

    kind: Literal["update"] = "update"
    task: TaskId
    site: SiteName
    facts: UpdateFacts
    digest: str
    tensors: int
    outline: Outline | None = None  # of version 0, if the rule needs it


class UpdateQuarantined(_Event):
    """An update came that cannot be accepted."""

    kind: Literal["quarantined"] = "quarantined"
    task: TaskId
    site: SiteName
    reason: str


class TaskFailed(_Event):
    """A site says that it could not do a task."""

    kind: Literal["failed"] = "failed"
    task: TaskId
    site: SiteName
    reason: str
    final: bool


class Reported(_Event):
    """An evaluator's findings arrived."""

    kind: Literal["reported"] = "reported"
    task: TaskId
    site: SiteName
    evaluation: Evaluation


class Surveyed(_Event):
    """A learner told of its data."""

    kind: Literal["surveyed"] = "surveyed"
    task: TaskId
    site: SiteName
    profile: Profile


class Probed(_Event):
    """A learner told how large its gradients are on the first model."""

    kind: Literal["probed"] = "probed"
    task: TaskId
    site: SiteName
    importance: Annotated[float, AllowInfNan()]


class OrderDone(_Event):
    """Worker threads have carried out an order; what they made is durable in the store."""

    kind: Literal["done"] = "done"
    order: int
    result: Result


class OrderFailed(_Event):
    """Worker threads could not carry out an order."""

    kind: Literal["not-done"] = "not-done"
    order: int
    reason: str


class AlarmRang(_Event):
    """A moment that the engine asked to be told of has come."""

    kind: Literal["alarm"] = "alarm"
    alarm: str


class CancelAsked(_Event):
    """An operator ends the job."""

    kind: Literal["cancel"] = "cancel"
    operator: str = ""


class EngineFailed(_Event):
    """A plugin or the engine itself raised; the job ends with its last community model."""

    kind: Literal["engine-failed"] = "engine-failed"
    reason: str


Event = Annotated[
    SiteJoined
    | SiteUnfit
    | SiteLeft
    | ModelGiven
    | ModelDescribed
    | UpdateArrived
    | UpdateQuarantined
    | TaskFailed
    | Reported
    | Surveyed
    | Probed
    | OrderDone
    | OrderFailed
    | AlarmRang
    | CancelAsked
    | EngineFailed,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
