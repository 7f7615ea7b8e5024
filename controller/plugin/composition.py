"""A rule with all its parts filled in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.check import ANYTHING
from hansa.common.values.errors import one_line
from hansa.controller.plugin.arithmetic import Aggregator, ServerUpdate
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.parts import EvalPlan, Pacer, Part, Policy, Sampler, Weigher

PROBLEMS = TypeAdapter(list[Problem])


@dataclass(frozen=True)
class Composition:
    """The plugins of a job."""

    name: str
    pace: Pacer
    sample: Sampler
    weigh: Weigher
    merge: Aggregator
    server: ServerUpdate
    evaluate: EvalPlan
    epochs: int = 1  # of a task, if no policy says otherwise
    policies: Mapping[str, Policy] = field(default_factory=dict)  # by the point that each fills

    @property
    def redistributes(self) -> bool:
        """Whether sites are sent other sites' own models: to go on from, or to evaluate them."""
        return self.pace.redistributes or self.weigh.appraises

    def objections(self, spec: JobSpec) -> list[Problem]:
        """Return what in a job does not go together, and why."""

        def against(part: Part) -> list[Problem]:
            part.begin()  # one that cannot is found out here, not when the job is durable
            return part.objections(spec, self)

        return self._asked(against)

    def warnings(self, spec: JobSpec) -> list[Problem]:
        """Return what in a job is likely not meant, though nothing speaks against it."""
        return self._asked(lambda part: part.warnings(spec, self))

    @property
    def local_statistics(self) -> bool:
        """Whether batch-norm statistics stay at the sites."""
        return any(policy.local_statistics for policy in self.policies.values())

    @property
    def needs_outline(self) -> bool:
        """Whether some part must know the model's tensors and layers."""
        return any(part.needs_outline for part in self.parts.values())

    @property
    def needs_anatomy(self) -> bool:
        """Whether some part must know what only the app can tell of the model."""
        return any(part.needs_anatomy for part in self.parts.values())

    def misfits(self, model: Outline) -> list[Problem]:
        """Return what does not go together with a model, and why."""
        return self._asked(lambda part: part.misfits(model) if part.needs_outline else [])

    def _asked(self, question: Callable[[Part], list[Problem]]) -> list[Problem]:
        """Put a question to every part; one that fails on it is named."""
        found: list[Problem] = []
        for part in self.parts.values():
            try:
                found += _problems(question(part))
            except ANYTHING as error:
                found.append(((part.point,), f"{part.kind} failed: {one_line(error)}"))
        return found

    @property
    def parts(self) -> dict[str, Part]:
        """All plugins by the point that they fill."""
        filled: dict[str, Part] = {
            "pace": self.pace,
            "sample": self.sample,
            "weigh": self.weigh,
            "merge": self.merge,
            "server": self.server,
            "evaluate": self.evaluate,
        }
        return filled | dict(self.policies)


def _problems(given: object) -> list[Problem]:
    """Return what a part answered; it may come from somebody else's package."""
    try:
        return PROBLEMS.validate_python(given)
    except ValidationError:
        raise TypeError(f"it returned {given!r:.100}, which is no list of places and reasons") from None
