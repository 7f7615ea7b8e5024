"""A composition: a rule with all its parts filled in."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.calling import calling
from hansa.common.values.bounds import AUXILIARY
from hansa.common.values.errors import PluginFailed
from hansa.common.values.results import OWN
from hansa.common.values.settings.training import LocalPluginSpec, Travel
from hansa.controller.plugin.arithmetic import Additive, Aggregator, ServerUpdate
from hansa.controller.plugin.auxiliary import Auxiliary
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.parts import Pacer, Part, Sampler, Weigher
from hansa.controller.plugin.plans import EvalPlan
from hansa.controller.plugin.policies import Duration, Policy

PROBLEMS = TypeAdapter(list[Problem])


@dataclass(frozen=True)
class Composition:
    """The plugins of a job."""

    name: str
    pace: Pacer[Any]
    sample: Sampler[Any]
    local: Policy[Any]
    layers: Policy[Any]
    transfer: Policy[Any]
    train: Duration[Any]
    weigh: Weigher[Any]
    merge: Aggregator[Any]
    server: ServerUpdate[Any]
    evaluate: EvalPlan[Any]

    @cached_property
    def policies(self) -> tuple[Policy[Any], ...]:
        """The parts that shape training tasks, in the order in which they are asked."""
        return self.local, self.layers, self.transfer, self.train

    @cached_property
    def parts(self) -> dict[str, Part[Any]]:
        """All plugins by point."""
        others = (self.pace, self.sample, self.weigh, self.merge, self.server, self.evaluate)
        return {part.point: part for part in (*others, *self.policies)}

    # Few parts have anything to say about a merge, and asking the others for every update takes time.

    @cached_property
    def examining(self) -> tuple[Part[Any], ...]:
        """The parts that may examine contributions before they are weighed."""
        return tuple(part for part in self.parts.values() if type(part).question is not Part.question)

    @cached_property
    def diagnosing(self) -> tuple[Part[Any], ...]:
        """The parts that tell operators something about a merge."""
        return tuple(part for part in self.parts.values() if type(part).diagnostics is not Part.diagnostics)

    def policies_with(self, method: Callable[..., Any]) -> tuple[Policy[Any], ...]:
        """Return the policies that have this method of Policy in a form of their own."""
        name = method.__name__
        if name not in self._policies_with:
            own = (policy for policy in self.policies if getattr(type(policy), name) is not method)
            self._policies_with[name] = tuple(own)
        return self._policies_with[name]

    @cached_property
    def _policies_with(self) -> dict[str, tuple[Policy[Any], ...]]:
        return {}

    @cached_property
    def plugins(self) -> tuple[LocalPluginSpec, ...]:
        """The learner plugins that every training task must use, each once."""
        wanted: list[LocalPluginSpec] = []
        for part in self.parts.values():
            with calling(part):
                wanted += [plugin for plugin in part.plugins if plugin not in wanted]
        return tuple(wanted)

    @property
    def epochs(self) -> int:
        """The epochs of a task before policies have shaped it."""
        with calling(self.train) as duration:
            return duration.usual_epochs

    @property
    def rounds_asked(self) -> int:
        """How many merges the job is to have."""
        with calling(self.pace) as pacer:
            return pacer.rounds_asked()

    @property
    def redistributes(self) -> bool:
        """Whether sites are sent other sites' models, to train them further or to evaluate them."""
        with calling(self.pace) as pacer:
            return pacer.redistributes or self.weigh.evaluates

    @cached_property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        """The tensors that travel beside the model, in the order in which models have them."""
        declared: list[Auxiliary] = []
        for part in self.parts.values():
            with calling(part):
                declared += _require_auxiliary(part.auxiliary)
        return tuple(declared)

    @property
    def may_restart(self) -> bool:
        """Whether any policy may want version 0 again."""
        for policy in self.policies:
            with calling(policy):
                if policy.may_restart:
                    return True
        return False

    @property
    def forgets(self) -> bool:
        """Whether a site that leaves takes its contribution with it."""
        with calling(self.merge) as aggregator:
            return aggregator.forgets

    @property
    def builds_on_current(self) -> bool:
        """Whether the next model follows from the current one, too, and not from contributions alone."""
        return self.adds or not self.server.plain or bool(self.auxiliary)

    @property
    def adds(self) -> bool:
        """Whether contributions count as differences from the models that their sites started from."""
        return isinstance(self.merge, Additive)

    @property
    def moments(self) -> Mapping[str, float]:
        """What the server update carries from version to version: names and initial values."""
        with calling(self.server) as server:
            return server.moments

    def refuses(self, staleness: int) -> str:
        """Say why the server update refuses an update that is this many versions old, if it does."""
        with calling(self.server) as server:
            return server.refuses(staleness)

    def objections(self, spec: JobSpec) -> list[Problem]:
        """Return what in a job does not fit together, and why."""

        def against(part: Part[Any]) -> list[Problem]:
            part.begin()  # so that a failure shows now, and not once the job is durable
            return [*part.objections(spec, self), *self._against_auxiliary(part)]

        own = (
            *self._against_target(spec),
            *self._against_held_out_sites(spec),
            *self._against_schedule(spec),
        )
        return [*self._ask(against), *own]

    def _against_schedule(self, spec: JobSpec) -> list[Problem]:
        """Refuse a schedule that ends, with a learning rate of 0, before the job does."""
        schedule = spec.train.schedule
        if schedule.kind != "cosine":
            return []
        place = ("train", "schedule", "over")
        if schedule.by == "step":
            if schedule.over is None and self.train.adaptive:
                return [(place, "with until nobody knows how many steps a task has; give over")]
            return []
        if schedule.over is None and (self.pace.travels or not self.pace.common_rounds):
            what = "hops" if self.pace.travels else "tasks of a site"
            return [
                (place, f"with pace {self.pace.kind} the schedule counts {what}; say over how many it goes")
            ]
        if schedule.least or schedule.over is None:
            return []
        if not self.pace.common_rounds:
            why = "a site may have more tasks, with a learning rate of 0"
            return [(("train", "schedule", "least"), f"{why}; give a share such as 0.01")]
        if not self.pace.travels and schedule.over < self.rounds_asked:
            why = f"the schedule ends after {schedule.over} rounds, and the job has {self.rounds_asked}"
            return [
                (place, f"{why}: later ones would have a learning rate of 0; give a larger over, or least")
            ]
        return []

    def _against_target(self, spec: JobSpec) -> list[Problem]:
        """Refuse a target and a best version by models that the job does not have."""
        target, best = spec.stop.target, spec.keep.best
        metrics: dict[tuple[str, ...], str | None] = {
            ("stop", "target", "metric"): target.metric if target else None,
            ("keep", "best", "metric"): best.metric if best else None,
        }
        why = "sites have no models of their own beside the community's, so there is no"
        return [
            (place, f"{why} {metric}; use local ditto")
            for place, metric in metrics.items()
            if metric and metric.endswith(OWN) and not self.own_models
        ]

    def _against_held_out_sites(self, spec: JobSpec) -> list[Problem]:
        """Refuse sites that never train where each site has tensors or a model of its own."""
        if not spec.holds_out:
            return []
        held_out = "sites that are held out (data.holdout, sites.validation, sites.test)"
        why = f"{held_out} never train, so they have no"
        problems: list[Problem] = []
        if self.travel.kind == "personal" or self.travel.personal:
            problems.append((("layers",), f"{self.layers.kind}: {why} tensors of their own to evaluate"))
        if self.own_models:
            problems.append((("local",), f"{self.local.kind}: {why} models of their own to evaluate"))
        return problems

    def _against_auxiliary(self, part: Part[Any]) -> list[Problem]:
        """Return what is wrong with the auxiliary tensors of a part."""
        if not _require_auxiliary(part.auxiliary):
            return []
        names = Counter(each.name for each in self.auxiliary)
        faults = [f"two sets of auxiliary tensors are called {each}" for each in names if names[each] > 1]
        if len(names) > AUXILIARY:
            faults.append(
                f"the rule has {len(names)} sets of auxiliary tensors; at most {AUXILIARY} can be sent"
            )
        problems: list[Problem] = [((part.point,), f"{part.kind}: {fault}") for fault in faults]
        if self.pace.travels:
            problems.append(part.clash(self.pace, "auxiliary tensors cannot travel from site to site"))
        restarting = [policy for policy in self.policies if policy.may_restart]
        why = "it may begin again from version 0, which has no auxiliary tensors"
        return problems + [part.clash(policy, why) for policy in restarting]

    def warnings(self, spec: JobSpec) -> list[Problem]:
        """Return what in a job is probably a mistake, though it would work."""
        return self._ask(lambda part: part.warnings(spec, self))

    @property
    def local_statistics(self) -> bool:
        """Whether batch-norm statistics stay at the sites."""
        return any(policy.local_statistics for policy in self.policies)

    @property
    def own_models(self) -> bool:
        """Whether each site trains a model of its own beside the community's."""
        return any(policy.own_models for policy in self.policies)

    @cached_property
    def travel(self) -> Travel:
        """Which tensors of the app's model travel."""
        with calling(self.layers) as layers:
            return layers.travel

    @property
    def needs_description(self) -> bool:
        """Whether a site must describe a version 0 that comes as a file."""
        return self.needs_anatomy or not self.travel.whole

    @property
    def needs_outline(self) -> bool:
        """Whether any part must know the model's tensors and layers."""
        return any(part.needs_outline for part in self.parts.values())

    @property
    def needs_anatomy(self) -> bool:
        """Whether any part must know what only the app can say about the model."""
        return any(part.needs_anatomy for part in self.parts.values())

    def misfits(self, model: Outline) -> list[Problem]:
        """Return what does not fit a model, and why."""
        return self._ask(lambda part: part.misfits(model) if part.needs_outline else [])

    def _ask(self, question: Callable[[Part[Any]], list[Problem]]) -> list[Problem]:
        """Put a question to every part; a part that fails to answer is a problem, too."""
        problems: list[Problem] = []
        for part in self.parts.values():
            try:
                with calling(part):
                    problems += _require_problems(question(part))
            except PluginFailed as failure:
                why = failure.why if failure.part is part else str(failure)
                problems.append(((part.point,), f"{part.kind} failed: {why}"))
        return problems


def _require_auxiliary(returned: object) -> tuple[Auxiliary, ...]:
    """Return what a part declares, if these are sets of auxiliary tensors."""
    if isinstance(returned, tuple) and all(isinstance(each, Auxiliary) for each in returned):
        return returned
    raise TypeError(f"its auxiliary tensors are {returned!r:.100}, which is not a tuple of Auxiliary")


def _require_problems(returned: object) -> list[Problem]:
    """Return a part's answer, if it is a list of problems: the part may come from another package."""
    try:
        return PROBLEMS.validate_python(returned)
    except ValidationError:
        raise TypeError(f"it returned {returned!r:.100}, which is not a list of places and reasons") from None
