"""What a site returns, as plain values; as sums wherever sites are pooled exactly."""

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import AllowInfNan, ConfigDict, Field, model_validator

from hansa.common.values.bounds import (
    COLUMNS,
    METRICS,
    STEPS,
    TIES,
    Count,
    Digest,
    Long,
    MetricName,
    Number,
    ShortText,
    Value,
)
from hansa.common.values.counts import Counts
from hansa.common.values.ids import NAME, TaskId

Split = Literal["validation", "test", "all"]
OWN = "_personal"  # the end of the names of metrics that are of sites' own models


class Profile(Value):
    """Statistics of a site's training data, as sums, so that sites can be pooled exactly."""

    n: int = Field(ge=0, lt=1 << 53)
    mean: tuple[float, ...] = Field((), max_length=COLUMNS)
    # Sums of squared deviations.
    m2: tuple[Annotated[float, Field(ge=0)], ...] = Field((), max_length=COLUMNS)
    classes: tuple[Count, ...] = Field((), max_length=COLUMNS)

    @model_validator(mode="after")
    def _sums_fit(self) -> "Profile":
        if len(self.mean) != len(self.m2):
            raise ValueError(f"{len(self.mean)} means do not fit {len(self.m2)} sums of squares")
        if self.classes and sum(self.classes) != self.n:
            raise ValueError(f"the classes do not count {self.n} examples")
        return self


class Evaluation(Value):
    """An evaluator's result, as sums, so that sites can be pooled exactly."""

    model_config = ConfigDict(allow_inf_nan=True)  # a diverged model has such losses

    n: int = Field(ge=0, lt=1 << 53)
    loss_sum: float
    confusion: Counts = Counts()  # row = true class; empty for regression
    labels: Counts = Counts()  # TP, FP and FN of each label; for multilabel tasks
    metrics: Mapping[str, float] = Field({}, max_length=METRICS)
    # The task that made the site's own tensors in the model, or its own model; empty: none has yet.
    personal: ShortText = ""
    own_model: "Evaluation | None" = None  # of the site's own model on the same examples, if it was asked for
    split: Split = "validation"  # of the site's data
    validation: "Evaluation | None" = None  # on the validation data, too, if it was asked for

    @model_validator(mode="after")
    def _metrics_have_names(self) -> "Evaluation":
        # Hansa computes these from the sums.
        taken = {"loss", "accuracy"}
        taken |= {"weighted_f1"} if self.confusion or self.labels else set()
        taken |= {"micro_f1"} if self.labels else set()
        for name in self.metrics:
            if not NAME.fullmatch(name) or name in taken:
                raise ValueError(f"{name[:64]!r} cannot be the name of an app's metric")
        return self

    @model_validator(mode="after")
    def _own_model_has_the_same_examples(self) -> "Evaluation":
        if self.own_model is not None and (self.own_model.n != self.n or self.own_model.own_model):
            raise ValueError(f"a site's own model is evaluated once, on the same {self.n} examples")
        return self

    @model_validator(mode="after")
    def _validation_beside_test(self) -> "Evaluation":
        if self.validation is not None and (self.split != "test" or self.validation.split != "validation"):
            raise ValueError("validation data are evaluated beside test data only")
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
    """The structure of a model that its tensors do not show; the site that builds version 0 reports it."""

    ties: tuple[tuple[str, ...], ...] = Field((), max_length=TIES)  # names of tensors that are one parameter
    # The block of each layer.
    blocks: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=COLUMNS)
    remarks: tuple[Annotated[str, Field(max_length=1000)], ...] = Field((), max_length=10)
    # Layers that the app never trains.
    frozen: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=COLUMNS)
    parameters: Long = 0  # numbers in the parameters of the whole model, whether they travel or not
    frozen_parameters: Long = 0  # how many of them the app never trains


class UpdateFacts(Value):
    """What a learner knows about its update besides the tensors.

    Every number is bounded: jobs add them up and send the sums to all sites.
    """

    n_train: int = Field(ge=0, lt=1 << 53)
    n_used: int = Field(ge=0, lt=1 << 53)
    steps: int = Field(ge=0, le=STEPS)
    epochs: float = Field(ge=0, le=1e9)
    seconds: float = Field(ge=0, le=1e9)
    loss: Annotated[float, AllowInfNan()] = float("nan")
    evaluation: Evaluation | None = None  # on the site's own validation part, if the task asked for it
    # Metrics of the learner's plugins.
    metrics: Mapping[MetricName, Annotated[float, AllowInfNan()]] = Field({}, max_length=METRICS)
    anatomy: Anatomy | None = None  # of version 0
    backbone: Digest = ""  # with version 0: of what stays and is the same everywhere


class Failure(Value):
    """Why a task could not be done; `final` means such a task can never be done at this site."""

    reason: str
    final: bool = False
    unfit: bool = False  # nor can this site do any other task of the job, though others can


class Progress(Value):
    """A learner's progress with a task."""

    task: TaskId
    epoch: Number
    epochs: Number
    steps: Long
    loss: Annotated[float, AllowInfNan()]
