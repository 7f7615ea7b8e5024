"""Which community models of a job are kept, and what stops it before its pace does."""

from pydantic import Field, field_validator, model_validator

from hansa.common.values.bounds import ROUNDS, SECONDS, MetricName, Value
from hansa.common.values.settings.metrics import Mode, mode_of, require_mode

LAST = 1000  # newest models that are kept


class BestSpec(Value):
    """By which metric versions are compared."""

    metric: MetricName | None = Field(None, description="default: accuracy, or loss where there is none")
    mode: Mode | None = Field(None, description="max or min; needed if the metric's name does not say it")

    @model_validator(mode="after")
    def _has_mode(self) -> "BestSpec":
        require_mode(self.metric, self.mode)
        return self


class KeepSpec(Value):
    """Which community models are kept, while the job runs and when it has ended."""

    best: BestSpec | None = Field(BestSpec(), description="the best version; null: do not look for it")
    last: int = Field(1, le=LAST, strict=True, description="so many of the newest versions")
    every: int | None = Field(None, le=ROUNDS, strict=True, description="besides, every n-th version")

    @field_validator("last")
    @classmethod
    def _keeps_the_newest(cls, last: int) -> int:
        if last < 1:
            raise ValueError(f"the newest version is always kept, so give 1 or more (given: {last})")
        return last

    @field_validator("every")
    @classmethod
    def _is_a_step(cls, every: int | None) -> int | None:
        if every is not None and every < 1:
            raise ValueError(f"give 1 to keep every version, 10 for every tenth (given: {every})")
        return every


class TargetSpec(Value):
    """Stop as soon as a metric is good enough."""

    metric: MetricName
    value: float
    mode: Mode | None = Field(None, description="max or min; needed if the metric's name does not say it")

    @model_validator(mode="after")
    def _has_mode(self) -> "TargetSpec":
        require_mode(self.metric, self.mode)
        return self

    def reached_by(self, value: float) -> bool:
        """Whether a value of the metric is good enough."""
        return value >= self.value if (self.mode or mode_of(self.metric)) == "max" else value <= self.value


class StopSpec(Value):
    """When to stop earlier than the pace does."""

    seconds: float | None = Field(None, gt=0, le=SECONDS)
    target: TargetSpec | None = None
    patience: int | None = Field(
        None,
        le=ROUNDS,
        strict=True,
        description="stop after so many versions that are no better than the best",
    )

    @field_validator("patience")
    @classmethod
    def _has_patience(cls, patience: int | None) -> int | None:
        if patience is not None and patience < 1:
            raise ValueError(
                f"give the number of versions to wait for a better one, 1 or more (given: {patience});"
                " leave it out to wait for the end"
            )
        return patience
