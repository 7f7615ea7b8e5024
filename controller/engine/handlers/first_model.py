"""Version 0: it comes with the submission, or a site builds it.

Every site builds the same model. If version 0 came as a file and the rule must know what only the app can say
about the model, a site builds the model, too, but only describes it.
"""

from hansa.common.job.check import located
from hansa.common.values.history import Version
from hansa.common.values.ids import ModelKey, SiteName, update_key
from hansa.common.values.results import Anatomy
from hansa.common.values.tasks import Init, Task
from hansa.common.values.wording.words import in_order, listed
from hansa.controller.engine import versions
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.handlers import endings
from hansa.controller.engine.job import Job
from hansa.controller.engine.orders import Compare
from hansa.controller.plugin.outline import Outline

ALARM = "first-model"  # rings when one more site is asked to build the model
NOTHING_AVERAGED = (
    "nothing in the model is averaged: it has no parameters of a floating-point type, and of other tensors"
    " every version has a copy from one site"
)
PATIENCE = 60.0  # seconds until then; slow builds and uploads may go on, and the first to arrive counts


def is_undescribed(job: Job) -> bool:
    """Whether version 0 came as a file, and a site has yet to describe it."""
    return job.state.version >= 0 and job.rule.needs_description and not job.state.described


def _request(job: Job) -> str:
    """Say what a site is asked to do."""
    return "describe the first model" if is_undescribed(job) else "build the first model"


def ask(job: Job, now: float) -> list[Effect]:
    """Ask a site that has not been asked yet to build or describe version 0."""
    tried, busy = job.state.init_tried, job.open_tasks.busy
    candidates = [site for site in job.eligible if site not in tried and site not in busy]
    if candidates:
        return [job.issue(candidates[0], 0, Init()), job.set_alarm(ALARM, now + PATIENCE)]
    if busy:
        return []  # all sites have been asked, and one result is enough
    job.state.alarms.pop(ALARM, None)
    if job.eligible:
        return endings.end(job, "failed", f"no site could {_request(job)}", now)
    return []  # all sites are away; the next one to join is asked


def ask_one_more(job: Job, now: float) -> list[Effect]:
    """Ask one more site for version 0, because the one that was asked may hang."""
    slow = listed(sorted(job.open_tasks.busy, key=in_order))
    effects = ask(job, now)
    delay = "has not been described by" if is_undescribed(job) else "has not arrived from"
    remedy = "another site was asked, too" if effects else "no other site is connected that could be asked"
    job.state.reason = f"the first model {delay} {slow} in {PATIENCE:g} s; {remedy}"
    return effects


def take(job: Job, task: Task, digest: str, outline: Outline | None, now: float) -> list[Effect]:
    """Take the version 0 that a site has built."""
    return [*_close_tasks(job, task), *enter(job, update_key(task.id), digest, outline, now)]


def note(job: Job, backbone: str, anatomy: Anatomy | None, averaged: bool = True) -> None:
    """Remember what a site says about the model it built, and what operators should know about it."""
    job.state.backbone, job.state.described = backbone, True
    if not averaged:
        job.state.remarks.append(NOTHING_AVERAGED)
    kind = job.rule.travel.kind
    if anatomy and kind != "trainable" and 2 * anatomy.frozen_parameters > anatomy.parameters:
        remedy = "{kind: trainable, personal: […]}" if kind == "personal" else "{kind: trainable}"
        job.state.remarks.append(
            f"the app never trains {anatomy.frozen_parameters:,} of the model's {anatomy.parameters:,}"
            f" parameters, but they travel; with `layers: {remedy}` only the others do"
        )


def take_description(job: Job, task: Task, outline: Outline, now: float) -> list[Effect]:
    """Take a site's description of version 0."""
    return [*_close_tasks(job, task), *_enter_outline(job, outline, now)]


def _close_tasks(job: Job, task: Task) -> list[Effect]:
    """Close the task that brought the result, and withdraw those of other sites that were asked as well."""
    job.state.alarms.pop(ALARM, None)
    job.finish(task.id)
    others = job.open_tasks.work()
    for other in others:
        job.finish(other.id)
    return [WithdrawTask(other, "the first model is here") for other in others]


def take_failure(job: Job, site: SiteName, reason: str, now: float) -> list[Effect]:
    """Ask another site for version 0, because this one could not build or describe it."""
    job.state.init_tried.add(site)
    if not job.open_tasks.busy and not set(job.eligible) - job.state.init_tried:
        return endings.end(job, "failed", f"site {site} could not {_request(job)}: {reason}", now, site)
    return ask(job, now)


def replace_site(job: Job, site: SiteName, now: float) -> list[Effect]:
    """Ask another site for version 0, if the one that left was asked for it."""
    open_tasks = job.open_tasks.work(site)
    if not open_tasks:
        return []
    job.finish(open_tasks[0].id)
    return ask(job, now)


def enter(job: Job, key: ModelKey, digest: str, outline: Outline | None, at: float) -> list[Effect]:
    """Enter version 0; the job ends if its rule cannot work with such a model."""
    versions.enter(job, Version(version=0, round=0, seconds=job.seconds(at), digest=digest), key)
    effects = _enter_outline(job, outline, at) if outline is not None else []
    if not job.ended and job.state.reference is not None:
        effects.append(job.order(Compare(key, job.state.reference)))
    return effects


def _enter_outline(job: Job, outline: Outline, at: float) -> list[Effect]:
    """Enter the outline of the model; the job ends if its rule cannot work with such a model."""
    job.state.outline = outline
    problems = job.rule.misfits(outline)
    if not problems:
        return []
    return endings.end(job, "failed", "; ".join(located(problem, {}) for problem in problems), at)
