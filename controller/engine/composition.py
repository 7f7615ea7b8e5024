"""A rule with all its parts filled in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hansa.controller.engine.arithmetic import Aggregator, ServerUpdate
from hansa.controller.engine.parts import Pacer, Part, Policy, Sampler, Weigher


@dataclass(frozen=True)
class Composition:
    """The plugins of a job."""

    name: str
    pace: Pacer
    sample: Sampler
    weigh: Weigher
    merge: Aggregator
    server: ServerUpdate
    policies: Mapping[str, Policy] = field(default_factory=dict)  # by the point that each fills

    @property
    def redistributes(self) -> bool:
        """Whether sites are sent other sites' own models: to go on from, or to evaluate them."""
        return self.pace.redistributes or self.weigh.appraises

    @property
    def parts(self) -> dict[str, Part]:
        """All plugins by the point that they fill."""
        filled: dict[str, Part] = {
            "pace": self.pace,
            "sample": self.sample,
            "weigh": self.weigh,
            "merge": self.merge,
            "server": self.server,
        }
        return filled | dict(self.policies)
