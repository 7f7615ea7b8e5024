"""How long things take in virtual time (`simulate:` in a job file)."""

import zlib
from collections.abc import Sequence

import numpy as np

from hansa.common.job.simulate import SimulateSpec, SlowSpec
from hansa.common.values.ids import SiteName
from hansa.simulation.clock.agenda import SECOND, nanoseconds


class Timing:
    """The speed of sites and of their connections. Everything lasts at least a nanosecond."""

    def __init__(self, spec: SimulateSpec, names: Sequence[SiteName], seed: int) -> None:
        self._latency = nanoseconds(spec.latency)
        self._up, self._down = spec.bandwidth.up, spec.bandwidth.down
        slow = _factors(spec.slow, names, np.random.default_rng([seed, zlib.crc32(b"slow")]))
        self._steps = [max(1, nanoseconds(spec.step_seconds * factor)) for factor in slow]
        self._examples = [max(1, nanoseconds(spec.eval_seconds * factor)) for factor in slow]
        self.merge = nanoseconds(spec.merge_seconds)

    def download(self, bytes_: int) -> int:
        """Return how long it takes to send a site this much."""
        return self._latency + round(bytes_ * SECOND / self._down)

    def upload(self, bytes_: int) -> int:
        """Return how long it takes a site to send this much."""
        return self._latency + round(bytes_ * SECOND / self._up)

    def training(self, site: int, steps: int) -> int:
        """Return how long a site takes for optimizer steps."""
        return max(1, steps * self._steps[site])

    def evaluation(self, site: int, examples: int) -> int:
        """Return how long a site takes to evaluate a model on its examples."""
        return max(1, examples * self._examples[site])


def _factors(spec: SlowSpec, names: Sequence[SiteName], rng: np.random.Generator) -> list[float]:
    """Return how many times slower than usual each site is."""
    if spec.kind == "lognormal":
        drawn = spec.factor * np.exp(spec.sigma * rng.standard_normal(len(names)))
    elif spec.kind == "uniform":
        drawn = rng.uniform(1.0, spec.most, len(names))
    else:
        drawn = np.full(len(names), spec.factor)
    return [float(spec.sites.get(name, value)) for name, value in zip(names, drawn, strict=True)]
