"""The resolved job: what a submission means, with every default filled in."""

from typing import Any

from hansa import __version__
from hansa.common.job.duration import SPELLING
from hansa.common.job.spec import JobSpec
from hansa.common.plugins.packages import origin_of, plugin_packages
from hansa.common.plugins.registry import POINTS, RULE_POINTS
from hansa.common.values.resolved import Resolved, Software
from hansa.controller.plugin.composition import Composition
from hansa.controller.rulebook.compose import composed_again

# Not part of the job itself: files that came with the submission (their digests are stored beside the job),
# what only `hansa run` reads, and the operator who submitted it.
ELSEWHERE = {"init", "reference", "data", "operator", "key", "made_with"}


def resolved(spec: JobSpec) -> Resolved:
    """Return a job with all its rule's defaults written out; read again, it gives the same composition."""
    rule = composed_again(spec)
    job: dict[str, Any] = spec.model_dump(mode="json", exclude=ELSEWHERE | set(POINTS))
    for point in POINTS:
        part = rule.parts[point]
        job[point] = {"kind": part.kind} | part.model_dump(mode="json", by_alias=True)
    job["train"] |= _training(rule)
    return Resolved(
        job=job,
        made_with=spec.made_with or software(rule),
        init=spec.init or "",
        reference=spec.reference or "",
    )


def software(rule: Composition) -> Software:
    """Return the versions of the software that runs a job of this rule here and now."""
    plugins = {point: origin_of(rule.parts[point]) for point in RULE_POINTS}
    return Software(hansa=__version__, plugins=plugins, packages=plugin_packages())


def _training(rule: Composition) -> dict[str, Any]:
    """Return how long a task trains; `proximal` is left out, because it is short for a setting of `local`."""
    return dict.fromkeys((*SPELLING, "proximal")) | rule.train.model_dump(mode="json", include=set(SPELLING))
