"""What the controller asks of a site and what a site answers, as plain values.

Every number and text of a task has a bound here, and what keeps to it fits the wire (`protos/fleet.proto`).
Jobs and plugins are held to the same bounds, so that nothing is accepted which no site can be told; sites
hold controllers to them.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from blake3 import blake3
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from hansa.common.values.counts import Counts
from hansa.common.values.ids import NAME, JobId, ModelKey, SiteName, TaskId

COLUMNS = 16_384  # that can be standardised: means and deviations travel with every task
STEPS = 1 << 32  # of the optimizer, that an update can have
ASKED = 1_000_000_000  # of them, that one task can ask for
EPOCHS = 100_000  # of one task
BATCHES = 1_000_000  # of one task that is a window of batches
BATCH = 1 << 31  # examples in a batch, at most: more than any site has
ROUNDS = 100_000_000  # of a job, and updates of one without rounds
HOPS = 10_000  # of a round, where models travel
SITES = 1_000_000  # of a job
SECONDS = 1e9  # of any wait: thirty years, which a clock can still be set to
TEXT = 1000  # characters of a text that is no path, such as the name of a plugin
ARGUMENTS = 1 << 20  # characters of a plugin's arguments, as JSON
PLUGINS = 100  # of learners that one task asks for: each may hold as much as the model
MOST_NAMED = 1000  # apps that a site allows, and tasks in hand, when it enrols
TIES = 1000  # parameters of a model that have several names
METRICS = 100  # of an app's own, and of an update; the history keeps the former for every version
MetricName = Annotated[str, StringConstraints(pattern=f"^(?:{NAME.pattern})$")]

Count = Annotated[int, Field(ge=0, lt=1 << 53)]  # of examples
Number = Annotated[int, Field(ge=0, lt=1 << 32)]  # a uint32 of the wire
Long = Annotated[int, Field(ge=0, lt=1 << 63)]  # a uint64 of the wire that can be told in a signed one, too


def _writable(text: str) -> str:
    """Refuse text with half a surrogate pair: no UTF-8 stands for it, so it can be neither sent nor stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has half a surrogate pair, which UTF-8 cannot express") from None
    return text


Text = Annotated[str, AfterValidator(_writable)]
ShortText = Annotated[Text, Field(max_length=TEXT)]


def _is_json(args: Mapping[str, object]) -> Mapping[str, object]:
    """Refuse arguments that cannot be written as JSON, or are too long for a task."""
    try:
        size = len(_writable(json.dumps(args, ensure_ascii=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"arguments are strings, numbers, lists and dictionaries; JSON cannot hold them: {error}"
        ) from None
    if size > ARGUMENTS:
        raise ValueError(f"arguments of {size} characters; at most {ARGUMENTS} are allowed")
    return args


class Value(BaseModel):
    """A frozen, strict value: what the journal keeps and the wire carries."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", allow_inf_nan=False)


class OptimizerSpec(Value):
    """The local optimizer; its state is made anew for each task, unless `train.keep_optimizer` is set."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd only")
    weight_decay: float = Field(0.0, ge=0)
    amsgrad: bool = Field(False, description="adam and adamw only")

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> "OptimizerSpec":
        if self.momentum and self.kind != "sgd":
            raise ValueError(f"momentum belongs to sgd; {self.kind} has its own")
        if self.amsgrad and self.kind == "sgd":
            raise ValueError("amsgrad belongs to adam and adamw; sgd has no such thing")
        return self


class ValidationSpec(Value):
    """The part of a site's data that its learner never trains on."""

    fraction: float = Field(0.05, ge=0, lt=1)
    stratified: bool = True


class SurveySpec(Value):
    """What sites tell of their data before the first round, and how features are standardised."""

    standardise: Literal["none", "local", "global"] = Field(
        "none", description="local: by each site's own means; global: by those of all sites together"
    )
    columns: int | None = Field(
        None, ge=1, le=COLUMNS, strict=True, description="only the first so many columns (default: all)"
    )
    classes: bool = Field(False, description="ask for the number of examples of each class")

    @property
    def asks(self) -> bool:
        """Whether sites have to be asked."""
        return self.standardise == "global" or self.classes

    @model_validator(mode="after")
    def _columns_are_standardised(self) -> "SurveySpec":
        if self.columns is not None and self.standardise == "none":
            raise ValueError("columns says what to standardise; set standardise to local or global")
        return self


class Standard(Value):
    """How features are standardised: each site by its own data, or all by one mean and deviation of each column."""

    kind: Literal["local", "global"]
    columns: int | None = Field(None, ge=1, le=COLUMNS)  # local: how many columns; None: all
    mean: tuple[float, ...] = Field((), max_length=COLUMNS)  # global
    deviation: tuple[Annotated[float, Field(gt=0)], ...] = Field((), max_length=COLUMNS)

    @model_validator(mode="after")
    def _one_deviation_for_each_mean(self) -> "Standard":
        if len(self.mean) != len(self.deviation):
            raise ValueError(f"{len(self.mean)} means do not fit {len(self.deviation)} deviations")
        return self


class LocalPluginSpec(Value):
    """A plugin of the learner by name; its arguments are JSON."""

    name: ShortText
    args: Annotated[Mapping[str, object], AfterValidator(_is_json)] = {}


PROXIMAL = "proximal"  # the plugin of learners that holds an update near the model it started from


class Proximal(Value):
    """Its argument: how strongly (baselines §3)."""

    mu: float = Field(ge=0)


ADAPTIVE = "adaptive"  # the plugin of learners that decides when an update is due


class Adaptive(Value):
    """Its arguments: train until the validation loss hardly falls, or the model is too stale (metis-dvw §4)."""

    vc_loss: float = Field(ge=0)  # percent by which an epoch must lower the validation loss
    tombstones: int = Field(ge=0, le=EPOCHS)  # epochs that may fail to
    limit: float | None = None  # on the effective staleness, in optimizer steps
    epochs: int = Field(ge=1, le=EPOCHS)  # that a site without validation data makes


IMPORTANCE = "importance"  # the plugin of learners that measures how large gradients are, and what it found


class Importance(Value):
    """Its arguments: which gradients, and when (radfed §2)."""

    per_example: bool = False  # of each example, not of each batch
    online: bool = False  # those of the last epoch of training, as they come, instead of a pass after it
    layers: tuple[str, ...] = ()  # only of parameters below these modules; none: all


class Survey(Value):
    """Tell sums over the training data: of columns (number, mean, squared deviations), of classes, or both."""

    kind: Literal["survey"] = "survey"
    moments: bool
    columns: int | None = Field(None, ge=1, le=COLUMNS)
    classes: bool


class Init(Value):
    """Build version 0 from the app with the job's seed."""

    kind: Literal["init"] = "init"


class Train(Value):
    """Train the model and return the tensors named (all, if none are)."""

    kind: Literal["train"] = "train"
    model: ModelKey
    base: ModelKey | None = None  # the model is partial and is laid over this one
    version: Long
    committed: Long = 0  # optimizer steps in the model when the task was given
    tensors: tuple[Text, ...] = ()
    epochs: int = Field(ge=1, le=EPOCHS)
    steps: int = Field(0, ge=0, le=ASKED)  # if not 0: so many optimizer steps instead of epochs
    batches: int = Field(
        0, ge=0, le=BATCHES
    )  # if not 0: the next so many batches of a pass instead of epochs
    after: ShortText = ""  # with batches: the task of the site's last update that is committed
    batch_size: int = Field(ge=1, le=BATCH)
    optimizer: OptimizerSpec
    plugins: tuple[LocalPluginSpec, ...] = Field((), max_length=PLUGINS)
    validate_update: bool = False  # measure the update on the site's own validation part
    keep_optimizer: bool = False  # go on from the optimizer's state after the job's last task at the site
    source: LocalPluginSpec | None = (
        None  # who says which examples make up which batch; none: epochs in random order
    )


class Probe(Value):
    """Tell how large the gradients of the model are over the training data; nothing is trained."""

    kind: Literal["probe"] = "probe"
    model: ModelKey
    batch_size: int = Field(ge=1, le=BATCH)
    plugin: LocalPluginSpec


class Evaluate(Value):
    """Measure the model on the site's validation or test data."""

    kind: Literal["evaluate"] = "evaluate"
    model: ModelKey
    base: ModelKey | None = None  # the model is partial and is laid over this one
    version: Long
    validation: bool = False  # on the validation part, even if the evaluator is there for test data


class Terms(Value):
    """What a site's owner may want to know of a job before the site works for it."""

    operator: ShortText = ""
    sites: Number = 1  # the least number it starts with
    together: Number = 1  # the least number whose updates make a community model
    redistributes: bool = False  # its rule shows sites' own models to other sites


Work = Annotated[Survey | Init | Probe | Train | Evaluate, Field(discriminator="kind")]


class Task(Value):
    """One piece of work for one site. The same id always means the same work."""

    id: TaskId
    job: JobId
    site: SiteName
    round: Number
    app: ShortText
    seed: Long
    validation: ValidationSpec
    standard: Standard | None = None
    work: Work
    hop: Number = 0  # which hop of the round, from 1 on, where models travel from site to site
    slot: Number = 0  # which of the travelling models, from 1 on
    turn: Number = 0  # hops of the whole job up to this one: what learning-rate schedules count
    local_statistics: bool = False  # batch-norm statistics and counters are each site's own: none travel
    terms: Terms = Terms()  # added when the task is sent

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """What the site needs for it: a model, and the one that it is laid over if it is partial."""
        if isinstance(self.work, Survey | Init):
            return ()
        if isinstance(self.work, Probe):
            return (self.work.model,)
        return (self.work.model,) if self.work.base is None else (self.work.base, self.work.model)


class Profile(Value):
    """What a site tells of its training data: sums, so that sites can be pooled exactly."""

    n: int = Field(ge=0, lt=1 << 53)
    mean: tuple[float, ...] = Field((), max_length=COLUMNS)
    m2: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (), max_length=COLUMNS
    )  # sums of squared deviations
    classes: tuple[Count, ...] = Field((), max_length=COLUMNS)

    @model_validator(mode="after")
    def _sums_fit(self) -> "Profile":
        if len(self.mean) != len(self.m2):
            raise ValueError(f"{len(self.mean)} means do not fit {len(self.m2)} sums of squares")
        if self.classes and sum(self.classes) != self.n:
            raise ValueError(f"the classes do not count {self.n} examples")
        return self


class Evaluation(Value):
    """What an evaluator found: sums, so that sites can be pooled exactly."""

    model_config = ConfigDict(allow_inf_nan=True)  # a model may be as bad as that

    n: int = Field(ge=0, lt=1 << 53)
    loss_sum: float
    confusion: Counts = Counts()  # row = true class; empty for regression
    labels: Counts = Counts()  # TP, FP, FN of each; multilabel
    metrics: Mapping[str, float] = Field({}, max_length=METRICS)

    @model_validator(mode="after")
    def _metrics_have_names(self) -> "Evaluation":
        taken = (
            ("loss", "accuracy", "micro_f1") if self.labels else ("loss", "accuracy")
        )  # those come from the sums
        for name in self.metrics:
            if not NAME.fullmatch(name) or name in taken:
                raise ValueError(f"{name[:64]!r} is no name for a metric of an app")
        return self

    @model_validator(mode="after")
    def _counts_add_up(self) -> "Evaluation":
        if not self.confusion.square:
            raise ValueError("the confusion matrix is not square")
        if self.confusion and self.confusion.total != self.n:
            raise ValueError(f"the confusion matrix does not count {self.n} examples")
        if self.confusion and self.labels:
            raise ValueError("a confusion matrix is for examples with one label; give it or labels, not both")
        if len(self.labels) > COLUMNS:
            raise ValueError(f"{len(self.labels)} labels; there can be at most {COLUMNS} items")
        counts = self.labels.array()
        if len(counts) and counts.shape[1] != 3:
            raise ValueError(f"{counts.shape[1]} counts for each label; TP, FP and FN are needed")
        for number in np.flatnonzero(counts.sum(axis=1) > self.n):
            raise ValueError(f"TP, FP and FN of label {number} are more than {self.n} examples")
        return self


class Anatomy(Value):
    """What tensors alone do not tell of a model; the site that builds version 0 says it."""

    ties: tuple[tuple[str, ...], ...] = Field((), max_length=TIES)  # names of tensors that are one parameter
    blocks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), max_length=COLUMNS
    )  # of each layer: its block
    remarks: tuple[Annotated[str, Field(max_length=1000)], ...] = Field((), max_length=10)
    frozen: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), max_length=COLUMNS
    )  # layers that the app never trains


class UpdateFacts(Value):
    """What a learner knows of its update besides the tensors. Bounded: a job adds them up and sends sums to all."""

    n_train: int = Field(ge=0, lt=1 << 53)
    n_used: int = Field(ge=0, lt=1 << 53)
    steps: int = Field(ge=0, le=STEPS)
    epochs: float = Field(ge=0, le=1e9)
    seconds: float = Field(ge=0, le=1e9)
    loss: Annotated[float, AllowInfNan()] = float("nan")
    evaluation: Evaluation | None = None  # on the site's own validation part, if the task asked for it
    metrics: Mapping[MetricName, Annotated[float, AllowInfNan()]] = Field(
        {}, max_length=METRICS
    )  # of its plugins
    anatomy: Anatomy | None = None  # of version 0


class Failure(Value):
    """Why a task could not be done; `final` means such a task can never be done at this site."""

    reason: str
    final: bool = False


class Progress(Value):
    """How far a learner is with a task."""

    task: TaskId
    epoch: Number
    epochs: Number
    steps: Long
    loss: Annotated[float, AllowInfNan()]


class Receipt(Value):
    """Proof of a commit: that an update is durable, or which updates made up a community model.

    A job's receipts are a chain: each holds the hash of the one before, and its own hash is over all its
    other fields.
    """

    job: JobId
    sequence: int  # of the event in the job's journal
    task: TaskId = TaskId("")  # of the update; empty for a community model
    site: SiteName = SiteName("")
    version: int = 0  # of the community model; 0 for an update
    contributions: Mapping[TaskId, float] = {}  # weights of the updates that were added in this version
    digest: str  # of the update or of the community model
    moments: Mapping[str, str] = {}  # digests of what the server update carries on, if the rule's does
    previous: str  # hash of the receipt before
    hash: str = ""

    def sealed(self) -> "Receipt":
        """Return the receipt with its hash."""
        text = self.model_dump_json(exclude={"hash"} if self.moments else {"hash", "moments"})
        return self.model_copy(update={"hash": blake3(text.encode()).hexdigest()})
