"""Optimizers of sites and the schedules of their learning rates, as jobs specify them and tasks carry them.

Optimizers are those of PyTorch, with PyTorch's names for their fields. The controller has no PyTorch, so the
names are listed here; a test compares them with what PyTorch has.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from hansa.common.values.bounds import ASKED, Value

Kind = Literal[
    "sgd",
    "adam",
    "adamw",
    "nadam",
    "radam",
    "adamax",
    "adagrad",
    "adadelta",
    "rmsprop",
    "rprop",
    "asgd",
]
# The fields of each kind besides lr.
FIELDS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "weight_decay", "dampening", "nesterov"),
    "adam": ("weight_decay", "amsgrad", "betas", "eps"),
    "adamw": ("weight_decay", "amsgrad", "betas", "eps"),
    "nadam": ("weight_decay", "betas", "eps", "momentum_decay", "decoupled_weight_decay"),
    "radam": ("weight_decay", "betas", "eps", "decoupled_weight_decay"),
    "adamax": ("weight_decay", "betas", "eps"),
    "adagrad": ("weight_decay", "eps", "lr_decay", "initial_accumulator_value"),
    "adadelta": ("weight_decay", "eps", "rho"),
    "rmsprop": ("momentum", "weight_decay", "eps", "alpha", "centered"),
    "rprop": ("etas", "step_sizes"),
    "asgd": ("weight_decay", "alpha", "lambd", "t0"),
}
ALWAYS = ("momentum", "weight_decay", "amsgrad")  # fields whose default is ours
UNSUITABLE = {
    "lbfgs": "it evaluates a batch several times in a step; use another optimizer",
    "sparseadam": "it takes sparse gradients only; use adam",
    "muon": "it takes matrices only, and networks have other parameters, too; use adamw",
    "adafactor": "its fields differ between versions of PyTorch; use adamw",
}
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]


class OptimizerSpec(Value):
    """The local optimizer; each task starts with new state, unless `train.keep_optimizer` is set."""

    kind: Kind = "sgd"
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd and rmsprop only")
    weight_decay: float = Field(0.0, ge=0)
    amsgrad: bool = Field(False, description="adam and adamw only")
    # Without a value, these are PyTorch's.
    dampening: Share | None = Field(None, description="sgd")
    nesterov: bool | None = Field(None, description="sgd")
    betas: tuple[Share, Share] | None = Field(None, description="adam and its relatives")
    eps: Positive | None = Field(None, description="adam and its relatives, adagrad, adadelta, rmsprop")
    momentum_decay: Positive | None = Field(None, description="nadam")
    decoupled_weight_decay: bool | None = Field(None, description="nadam, radam")
    lr_decay: Annotated[float, Field(ge=0)] | None = Field(None, description="adagrad")
    initial_accumulator_value: Annotated[float, Field(ge=0)] | None = Field(None, description="adagrad")
    rho: Share | None = Field(None, description="adadelta")
    alpha: Share | None = Field(None, description="rmsprop, asgd")
    centered: bool | None = Field(None, description="rmsprop")
    etas: tuple[Share, Annotated[float, Field(gt=1)]] | None = Field(None, description="rprop")
    step_sizes: tuple[Positive, Positive] | None = Field(None, description="rprop")
    lambd: Positive | None = Field(None, description="asgd")
    t0: Positive | None = Field(None, description="asgd")

    @field_validator("kind", mode="before")
    @classmethod
    def _suits_sites(cls, kind: object) -> object:
        lower = kind.lower() if isinstance(kind, str) else ""
        if lower in UNSUITABLE:
            raise ValueError(f"{lower} cannot be used: {UNSUITABLE[lower]}")
        return lower if lower in FIELDS else kind  # RMSprop is written in many ways

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> "OptimizerSpec":
        if self.momentum and self.kind not in ("sgd", "rmsprop"):
            raise ValueError(f"momentum belongs to sgd and rmsprop; {self.kind} has its own, if any")
        for name, field in type(self).model_fields.items():
            given = getattr(self, name) != field.default
            if given and name not in ("kind", "lr", *FIELDS[self.kind]):
                owners = " and ".join(kind for kind in FIELDS if name in FIELDS[kind])
                raise ValueError(f"{name} belongs to {owners}; {self.kind} has no such thing")
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs momentum, and no dampening")
        return self

    @model_serializer(mode="wrap")
    def _without_unset_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is left to PyTorch, so that resolved jobs show the fields of their kind alone."""
        return {name: value for name, value in dump(self).items() if value is not None}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of PyTorch's class: without fields that are left to it."""
        values = {name: getattr(self, name) for name in ("lr", *FIELDS[self.kind])}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def more(self) -> dict[str, Any]:
        """The fields that have values and are not `kind`, `lr` or those whose defaults are ours."""
        own = self.model_dump(exclude_none=True, exclude={"kind", "lr", *ALWAYS})
        return dict(own)

    @property
    def plain_steps(self) -> bool:
        """Whether a step is the gradient times the rate, with momentum at most in its usual form."""
        return self.kind == "sgd" and not self.nesterov and not self.dampening


class ScheduleSpec(Value):
    """How the learning rate changes: it is multiplied by a factor of at most 1."""

    kind: Literal["constant", "step", "cosine", "exponential"] = "constant"
    by: Literal["round", "step"] = Field(
        "round", description="round: from task to task; step: within each task, which begins at lr again"
    )
    every: int | None = Field(
        None, ge=1, le=ASKED, strict=True, description="step: rounds or steps until the next"
    )
    factor: float | None = Field(
        None, gt=0, le=1, description="step and exponential: what each multiplies by"
    )
    over: int | None = Field(
        None,
        ge=1,
        le=ASKED,
        strict=True,
        description="cosine: rounds or steps until the end (default: those of the job or task)",
    )
    least: float = Field(0.0, ge=0, lt=1, description="cosine: the share of lr at the end")

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> "ScheduleSpec":
        wanted = {"step": {"every", "factor"}, "exponential": {"factor"}}.get(self.kind, set())
        for name in sorted(wanted):
            if getattr(self, name) is None:
                raise ValueError(f"{self.kind} needs {name}")
        allowed = wanted | ({"over", "least"} if self.kind == "cosine" else set())
        for name in ("every", "factor", "over", "least"):
            if name not in allowed and getattr(self, name):
                raise ValueError(f"{self.kind} has no {name}")
        return self

    @property
    def changes(self) -> bool:
        """Whether the rate changes at all."""
        return self.kind != "constant"

    def at(self, time: int, length: int) -> float:
        """Return the factor after so many rounds or steps; there are `length`, unless `over` says more."""
        match self.kind:
            case "constant":
                return 1.0
            case "step":
                assert self.factor is not None
                assert self.every is not None
                return self.factor ** (time // self.every)
            case "exponential":
                assert self.factor is not None
                return self.factor**time
            case "cosine":
                gone = min(time / (self.over or length), 1.0)
                return self.least + (1 - self.least) * (1 + math.cos(math.pi * gone)) / 2
