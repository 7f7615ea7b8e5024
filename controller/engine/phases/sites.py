"""Sites come and go: gathering enough of them, version 0 from one of them, and waiting while all are away."""

from collections.abc import Iterator, Set

from hansa.common.job.check import located
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import InvalidData, Stale
from hansa.common.values.history import Version
from hansa.common.values.ids import ModelKey, SiteName, update_key
from hansa.common.values.tasks import Init, Task
from hansa.common.values.words import in_order, listed
from hansa.controller.engine import events
from hansa.controller.engine.accounts import apps, participation
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.orders import Compare
from hansa.controller.engine.phases import endings, merges, probes, reports, survey
from hansa.controller.engine.phases.evaluation import offer_last
from hansa.controller.engine.phases.rounds import GATHER, act, next_round, wait_for_sites
from hansa.controller.engine.state import MERGING, PendingMerge
from hansa.controller.plugin.outline import Outline

FIRST_MODEL = "first-model"  # the alarm after which one more site is asked to build it
PATIENCE = 60.0  # seconds until then; long builds and uploads may go on, and the first to come counts


def joined(job: Job, event: events.SiteJoined) -> list[Effect]:
    """A daemon attends, or what it states has changed."""
    name = apps.daemon(event.role, event.site)
    misfit = apps.objection(job, event.role, event.site, event.app)
    if misfit:
        return _leave_out(job, event, name, misfit)
    new = apps.note(job, event.role, event.site, event.app)
    job.state.left_out.pop(name, None)
    if event.role == "evaluator":
        if event.site in job.state.evaluators:
            if not new:
                raise Stale(f"evaluator {event.site} is known")
            return []
        job.evaluator_came(event.site)
        return offer_last(job) if job.state.phase == "closing" and job.state.version > 0 else []
    if job.state.learners.get(event.site) == event.examples:
        if not new:
            raise Stale(f"learner {event.site} is known")
        return []
    job.learner_came(event.site, event.examples)
    participation.came(job, event.site)
    if job.state.phase == "surveying" and event.examples:
        return survey.ask(job)
    if job.state.phase == "initialising" and (not job.open_tasks.busy or FIRST_MODEL not in job.state.alarms):
        return ask_for_model(job, event.at)
    if job.state.phase == "training":
        with calling(job.rule.pace) as pacer:
            actions = pacer.on_joined(job.memory(pacer), event.site, job.view(event.at))
        return act(job, actions, event.at)
    return gathered(job, event.at)


def _leave_out(job: Job, event: events.SiteJoined, name: str, misfit: str) -> list[Effect]:
    """A daemon's app does not fit the others': a job that waits for its sites fails, any other goes on without it."""
    if job.state.status == "waiting":
        return endings.end(job, "failed", misfit, event.at)
    here = event.site in (job.state.evaluators if event.role == "evaluator" else job.state.learners)
    if not here and job.state.left_out.get(name) == misfit:
        raise Stale(f"{name} is left out")
    job.state.left_out[name] = misfit
    return left(job, events.SiteLeft(at=event.at, site=event.site, role=event.role)) if here else []


def left(job: Job, event: events.SiteLeft) -> list[Effect]:
    """A daemon is gone."""
    return _evaluator_left(job, event) if event.role == "evaluator" else _learner_left(job, event)


def unfit(job: Job, event: events.SiteUnfit) -> list[Effect]:
    """A daemon attends that can never work for this job: a job that waits for sites fails, another goes on without."""
    if job.state.status == "waiting":
        return endings.end(job, "failed", f"site {event.site} ({event.role}): {event.reason}", event.at)
    gone = events.SiteLeft(at=event.at, site=event.site, role=event.role)
    if event.role == "evaluator":
        return _evaluator_left(job, gone)
    here = (
        event.site in job.state.learners
    )  # it was restarted, and its app or its data are not what they were
    effects = _learner_left(job, gone) if here else []
    if not participation.went(job, event.site, event.reason) and not here:
        raise Stale(f"site {event.site} is known to be of no use to this job")
    return effects


def _evaluator_left(job: Job, event: events.SiteLeft) -> list[Effect]:
    if event.site not in job.state.evaluators:
        raise Stale(f"evaluator {event.site} is not here")
    job.evaluator_went(event.site)
    return reports.evaluator_left(job, event.site, event.at)


def _learner_left(job: Job, event: events.SiteLeft) -> list[Effect]:
    if event.site not in job.state.learners:
        raise Stale(f"learner {event.site} is not here")
    job.learner_went(event.site)
    participation.went(job, event.site)
    effects: list[Effect] = []
    if job.state.phase == "surveying":
        for task in job.open_tasks.work(event.site):
            job.finish(task.id)
        effects = after_survey(job, event.at)
    elif job.state.phase == "initialising":
        effects = _ask_another(job, event.site, event.at)
    elif job.state.phase == "probing":
        for task in job.open_tasks.work(event.site):
            job.finish(task.id)
        effects = next_round(job, event.at) if probes.complete(job) else []
    elif job.state.phase == "training":
        with calling(job.rule.pace) as pacer:
            actions = pacer.on_left(job.memory(pacer), event.site, job.view(event.at))
        effects = act(job, actions, event.at)
    if job.state.phase in MERGING and job.rule.forgets and event.site in job.state.members:
        effects += merges.queue(job, PendingMerge(forgotten=event.site), event.at)
    return effects


def gathered(job: Job, now: float) -> list[Effect]:
    """Go on from gathering once enough sites are here."""
    if job.state.phase != "gathering" or len(job.eligible) < job.spec.sites.min:
        return []
    job.state.status = "running"
    job.state.reason = ""
    job.state.alarms.pop(GATHER, None)
    if survey.wanted(job):
        return survey.ask(job)
    if job.state.version < 0 or undescribed(job):
        job.state.phase = "initialising"
        return ask_for_model(job, now)
    return next_round(job, now)


def after_survey(job: Job, now: float) -> list[Effect]:
    """Go on once nobody is awaited; with too few answers, gather more sites."""
    if job.state.untold and len(survey.able(job)) < job.spec.sites.min:
        site, reason = next(iter(job.state.untold.items()))
        return endings.end(job, "failed", f"site {site} could not tell of its data: {reason}", now)
    if job.open_tasks.busy:
        return []
    try:
        survey.settle(job)
    except InvalidData as error:
        return endings.end(job, "failed", str(error), now)
    job.state.phase = "gathering"
    return gathered(job, now) or next_round(job, now)


def could_not_tell(job: Job, site: SiteName, reason: str, now: float) -> list[Effect]:
    """Go on without what a site should have told of its data, unless too few others can."""
    job.state.untold[site] = reason
    return after_survey(job, now)


def mind_absence(job: Job, now: float) -> list[Effect]:
    """While everybody we wait for is away, an alarm runs; it is off as soon as somebody is back."""
    if job.state.phase not in ("initialising", "training"):
        return []
    if job.state.merging or job.state.preparing or job.open_tasks.somebody_works:
        job.state.alarms.pop(GATHER, None)
    elif GATHER not in job.state.alarms:
        return [wait_for_sites(job, now)]
    return []


def too_few(job: Job) -> str:
    """Say who is missing."""
    wait = f"{job.spec.sites.wait:g} s"
    if job.state.phase != "gathering":
        awaited = listed(sorted(job.open_tasks.busy, key=in_order))
        away = f": {awaited}" if awaited else ""
        return f"the sites that round {job.state.round} waits for did not come back in {wait}{away}"
    here, needed = job.eligible, job.spec.sites.min
    names = f" ({listed(sorted(here, key=in_order))})" if here else ""
    count = f"{len(here)} of the {needed} sites needed" if needed > 1 else "no site"
    return f"{count} attended after {wait}{names}{''.join(_hindrances(job))}"


def _hindrances(job: Job) -> Iterator[str]:
    """Yield what keeps sites that are known or asked for from training."""
    learners = job.state.learners
    found: dict[str, Set[str]] = {
        "without examples": {site for site, examples in learners.items() if not examples},
        "with an evaluator, but no learner": job.state.evaluators - set(learners),
        "named in sites.names, but away": set(job.spec.sites.names or ())
        - set(learners)
        - job.state.evaluators,
    }
    yield from (f"; {what}: {listed(sorted(sites, key=in_order))}" for what, sites in found.items() if sites)


# Version 0.


def undescribed(job: Job) -> bool:
    """Whether version 0 came from a file, and the rule must know what only a site can tell of it."""
    return job.state.version >= 0 and job.rule.needs_anatomy and job.state.outline is None


def _building(job: Job) -> str:
    """Say what a site is asked to do with the first model."""
    return "describe the first model" if undescribed(job) else "build the first model"


def ask_for_model(job: Job, now: float) -> list[Effect]:
    """Ask a site that has not been asked yet to build version 0. Every site builds the same.

    If version 0 came from a file, what the site built tells its outline, and its numbers stay where they are.
    """
    candidates = [
        site for site in job.eligible if site not in job.state.init_tried and site not in job.open_tasks.busy
    ]
    if candidates:
        return [job.issue(candidates[0], 0, Init()), job.set_alarm(FIRST_MODEL, now + PATIENCE)]
    if job.open_tasks.busy:
        return []  # all have been asked: one will do
    job.state.alarms.pop(FIRST_MODEL, None)
    if job.eligible:
        return endings.end(job, "failed", f"no site could {_building(job)}", now)
    return []  # all are away; the next to join is asked


def ask_one_more(job: Job, now: float) -> list[Effect]:
    """Ask another site for version 0, too: the one that was asked may hang."""
    slow = listed(sorted(job.open_tasks.busy, key=in_order))
    effects = ask_for_model(job, now)
    what = "first model has not been described by" if undescribed(job) else "first model has not come from"
    job.state.reason = f"the {what} {slow} in {PATIENCE:g} s" + (
        "; another site was asked, too" if effects else "; no other site is here to be asked"
    )
    return effects


def built(job: Job, task: Task, digest: str, outline: Outline | None, now: float) -> list[Effect]:
    """Take version 0 and go on; others who build it need not."""
    effects = _answered(job, task)
    effects += first_version(job, update_key(task.id), digest, outline, now)
    return _begin(job, effects, now)


def described(job: Job, task: Task, outline: Outline, now: float) -> list[Effect]:
    """Take what a site tells of version 0 and go on; others who build the model need not."""
    effects = _answered(job, task)
    effects += _outlined(job, outline, now)
    return _begin(job, effects, now)


def _answered(job: Job, task: Task) -> list[Effect]:
    """Close the task that brought the first model, and those of others who were asked for it, too."""
    job.state.alarms.pop(FIRST_MODEL, None)
    job.finish(task.id)
    effects: list[Effect] = [
        WithdrawTask(other, "the first model is here") for other in job.open_tasks.work()
    ]
    for other in job.open_tasks.work():
        job.finish(other.id)
    return effects


def _begin(job: Job, effects: list[Effect], now: float) -> list[Effect]:
    """Go on from the first model to the first round."""
    if job.ended:
        return effects
    job.state.phase = "gathering"
    return [*effects, *(gathered(job, now) or next_round(job, now))]


def could_not_build(job: Job, site: SiteName, reason: str, now: float) -> list[Effect]:
    """Ask another site for version 0."""
    job.state.init_tried.add(site)
    if not job.open_tasks.busy and not set(job.eligible) - job.state.init_tried:
        return endings.end(job, "failed", f"site {site} could not {_building(job)}: {reason}", now)
    return ask_for_model(job, now)


def _ask_another(job: Job, gone: SiteName, now: float) -> list[Effect]:
    under_way = job.open_tasks.work(gone)
    if not under_way:
        return []
    job.finish(under_way[0].id)
    return ask_for_model(job, now)


def first_version(job: Job, key: ModelKey, digest: str, outline: Outline | None, at: float) -> list[Effect]:
    """Enter version 0; a job whose rule cannot do with such a model ends."""
    job.enter_version(Version(version=0, round=0, seconds=job.seconds(at), digest=digest), key)
    effects = _outlined(job, outline, at) if outline is not None else []
    if not job.ended and job.state.reference is not None:
        effects.append(job.order(Compare(key, job.state.reference)))
    return effects


def _outlined(job: Job, outline: Outline, at: float) -> list[Effect]:
    """Take note of what the model is; a job whose rule cannot do with such a model ends."""
    job.state.outline = outline
    wrong = job.rule.misfits(outline)
    return (
        endings.end(job, "failed", "; ".join(located(problem, {}) for problem in wrong), at) if wrong else []
    )
