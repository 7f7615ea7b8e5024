"""Events: what can happen to a job. The journal stores them, and replaying them rebuilds the job exactly."""

from typing import Annotated, Literal

from pydantic import AllowInfNan, Field, TypeAdapter

from hansa.common.values.bounds import Value
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.results import Evaluation, Profile, UpdateFacts
from hansa.common.values.stated import Stated
from hansa.controller.engine.orders import Result
from hansa.controller.plugin.outline import Outline

Role = Literal["learner", "evaluator"]


class _Event(Value):
    at: float  # seconds since the epoch, by the controller's clock


class SiteJoined(_Event):
    """A daemon that can work for this job is connected, or what it states about itself has changed."""

    kind: Literal["joined"] = "joined"
    site: SiteName
    role: Role
    examples: int = 0
    app: Stated = Stated()


class SiteUnfit(_Event):
    """A daemon is connected but cannot work for this job: the app is not allowed or not usable there."""

    kind: Literal["unfit"] = "unfit"
    site: SiteName
    role: Role
    reason: str


class SiteLeft(_Event):
    """A daemon has said goodbye or has been gone for longer than the grace period."""

    kind: Literal["left"] = "left"
    site: SiteName
    role: Role


class ModelGiven(_Event):
    """Version 0 came with the submission."""

    kind: Literal["given"] = "given"
    digest: str
    outline: Outline | None = None  # if the rule needs it
    averaged: bool = True  # it has parameters that are averaged


class ModelDescribed(_Event):
    """A site described what the file with version 0 does not say.

    To find out, it built the app's model; it did not send the numbers.
    """

    kind: Literal["described"] = "described"
    task: TaskId
    site: SiteName
    digest: str  # of the model that it built
    outline: Outline
    backbone: str = ""  # the digest of what does not travel and is the same everywhere


class UpdateArrived(_Event):
    """An update has arrived; it is complete, checked and durable in the store."""

    kind: Literal["update"] = "update"
    task: TaskId
    site: SiteName
    facts: UpdateFacts
    digest: str  # of what was sent
    decoded: str = ""  # of what is stored, if the update was sent in an encoding
    bytes_up: int = 0  # as it was sent
    tensors: int
    outline: Outline | None = None  # of version 0, if the rule needs it
    averaged: bool = True  # version 0 has parameters that are averaged


class UpdateQuarantined(_Event):
    """An update has arrived that cannot be accepted."""

    kind: Literal["quarantined"] = "quarantined"
    task: TaskId
    site: SiteName
    reason: str


class TaskFailed(_Event):
    """A site reports that it could not do a task."""

    kind: Literal["failed"] = "failed"
    task: TaskId
    site: SiteName
    reason: str
    final: bool
    unfit: bool = False  # the site can do no task of this job


class Reported(_Event):
    """An evaluator's report has arrived."""

    kind: Literal["reported"] = "reported"
    task: TaskId
    site: SiteName
    evaluation: Evaluation


class Surveyed(_Event):
    """A learner has described its data."""

    kind: Literal["surveyed"] = "surveyed"
    task: TaskId
    site: SiteName
    profile: Profile


class Probed(_Event):
    """A learner has reported what a probe found in the newest model."""

    kind: Literal["probed"] = "probed"
    task: TaskId
    site: SiteName
    result: Annotated[float, AllowInfNan()]


class OrderDone(_Event):
    """Worker threads have carried out an order; the models that they made are durable in the store."""

    kind: Literal["done"] = "done"
    order: int
    result: Result


class OrderFailed(_Event):
    """Worker threads could not carry out an order."""

    kind: Literal["not-done"] = "not-done"
    order: int
    reason: str


class AlarmRang(_Event):
    """The time of an alarm has come."""

    kind: Literal["alarm"] = "alarm"
    alarm: str


class CancelAsked(_Event):
    """An operator cancels the job."""

    kind: Literal["cancel"] = "cancel"
    operator: str = ""


class EngineFailed(_Event):
    """A plugin or the engine itself raised an error; the job ends with its last community model."""

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
