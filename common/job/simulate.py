"""`simulate:` in a job file: how fast virtual sites and their connections are.

`hansa run` and `hansa job submit` ignore it: real sites are as fast as they are.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from hansa.common.values.bounds import SECONDS, Value

FASTEST = 1e15  # bytes per second
SLOWEST = 1e6  # times slower than usual


class BandwidthSpec(Value):
    """How many bytes per second a site's connection carries."""

    up: float = Field(1e7, gt=0, le=FASTEST)
    down: float = Field(1e8, gt=0, le=FASTEST)


class SlowSpec(Value):
    """How many times slower than usual sites are."""

    kind: Literal["same", "lognormal", "uniform"] = Field(
        "same", description="the same for all, or drawn for each site"
    )
    factor: float = Field(1.0, gt=0, le=SLOWEST, description="same: the factor; lognormal: the median")
    sigma: float = Field(0.5, ge=0, le=5, description="lognormal: the deviation of the logarithm")
    most: float = Field(5.0, ge=1, le=SLOWEST, description="uniform: drawn between 1 and this")
    sites: Mapping[str, float] = Field({}, description="the factors of single sites, whatever the kind")

    @field_validator("sites")
    @classmethod
    def _factors_in_range(cls, sites: Mapping[str, float]) -> Mapping[str, float]:
        for name, factor in sites.items():
            if not 0 < factor <= SLOWEST:
                raise ValueError(f"{name}: a factor is above 0 and at most {SLOWEST:g}")
        return sites


class RandomAvailability(Value):
    """Sites come and go by themselves."""

    kind: Literal["random"]
    up: float = Field(gt=0, le=SECONDS, description="the mean number of seconds that a site stays")
    down: float = Field(gt=0, le=SECONDS, description="the mean number of seconds that it is away")


class SimulateSpec(Value):
    """How long things take in a simulation."""

    step_seconds: float = Field(0.01, ge=0, le=SECONDS, description="an optimizer step")
    eval_seconds: float = Field(0.0001, ge=0, le=SECONDS, description="the evaluation of an example")
    merge_seconds: float = Field(0.0, ge=0, le=SECONDS, description="a merge or an examination of updates")
    latency: float = Field(0.05, ge=0, le=SECONDS, description="seconds before a transfer begins")
    bandwidth: BandwidthSpec = BandwidthSpec()
    slow: SlowSpec = SlowSpec()
    availability: str | RandomAvailability | None = Field(
        None, description="a CSV file with site, from, to; or {kind: random, up: …, down: …}"
    )
