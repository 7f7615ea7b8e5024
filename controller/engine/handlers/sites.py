"""Sites that join and leave a job."""

from hansa.common.plugins.calling import calling
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName
from hansa.controller.engine import events
from hansa.controller.engine.accounts import apps, participation
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.handlers import (
    endings,
    evaluation,
    first_model,
    gathering,
    probes,
    reports,
    survey,
)
from hansa.controller.engine.handlers.rounds import act, next_round
from hansa.controller.engine.job import Job
from hansa.controller.engine.merging import merges
from hansa.controller.engine.state import MERGING, PendingMerge


def join(job: Job, event: events.SiteJoined) -> list[Effect]:
    """Take in a daemon that is connected, or what it now states about itself."""
    name = apps.daemon_name(event.role, event.site)
    objection = apps.objection(job, event.role, event.site, event.app)
    if objection:
        return _leave_out(job, event, name, objection)
    is_new = apps.note(job, event.role, event.site, event.app)
    job.state.left_out.pop(name, None)
    if event.role == "evaluator":
        return _evaluator_joined(job, event, is_new)
    return _learner_joined(job, event, is_new)


def _evaluator_joined(job: Job, event: events.SiteJoined, app_is_new: bool) -> list[Effect]:
    if event.site in job.state.evaluators:
        if not app_is_new:
            raise Stale(f"evaluator {event.site} is already known")
        return []
    job.add_evaluator(event.site)
    closing = job.state.phase == "closing" and job.state.version > 0
    return evaluation.offer_last(job) if closing else []


def _learner_joined(job: Job, event: events.SiteJoined, app_is_new: bool) -> list[Effect]:
    if job.state.learners.get(event.site) == event.examples:
        if not app_is_new:
            raise Stale(f"learner {event.site} is already known")
        return []
    job.add_learner(event.site, event.examples)
    participation.note_arrival(job, event.site)
    if job.state.phase == "surveying" and event.examples:
        return survey.ask(job)
    asks_for_model = not job.open_tasks.busy or first_model.ALARM not in job.state.alarms
    if job.state.phase == "initialising" and asks_for_model:
        return first_model.ask(job, event.at)
    if job.state.phase == "training":
        with calling(job.rule.pace) as pacer:
            actions = pacer.on_joined(job.memory(pacer), event.site, job.view(event.at))
        return act(job, actions, event.at)
    return gathering.proceed(job, event.at)


def _leave_out(job: Job, event: events.SiteJoined, name: str, objection: str) -> list[Effect]:
    """Leave out a daemon whose app does not fit the others'; a job that still waits for sites fails."""
    if job.state.status == "waiting":
        return endings.end(job, "failed", objection, event.at, event.site)
    if not _takes_part(job, event.role, event.site) and job.state.left_out.get(name) == objection:
        raise Stale(f"{name} is already left out")
    return leave_out(job, event.role, event.site, objection, event.at)


def leave_out(job: Job, role: events.Role, site: SiteName, reason: str, now: float) -> list[Effect]:
    """Go on without a daemon that is connected but cannot work for this job, until it connects anew."""
    job.state.left_out[apps.daemon_name(role, site)] = reason
    if not _takes_part(job, role, site):
        return []
    return leave(job, events.SiteLeft(at=now, site=site, role=role))


def _takes_part(job: Job, role: events.Role, site: SiteName) -> bool:
    return site in (job.state.evaluators if role == "evaluator" else job.state.learners)


def leave(job: Job, event: events.SiteLeft) -> list[Effect]:
    """Go on without a daemon that is gone."""
    return _evaluator_left(job, event) if event.role == "evaluator" else _learner_left(job, event)


def exclude(job: Job, event: events.SiteUnfit) -> list[Effect]:
    """Go on without a daemon that cannot work for this job; a job that still waits for sites fails."""
    if job.state.status == "waiting":
        reason = f"site {event.site} ({event.role}): {event.reason}"
        return endings.end(job, "failed", reason, event.at, event.site)
    departure = events.SiteLeft(at=event.at, site=event.site, role=event.role)
    if event.role == "evaluator":
        return _evaluator_left(job, departure)
    # A learner that took part was restarted, and its app or its data have changed.
    took_part = event.site in job.state.learners
    effects = _learner_left(job, departure) if took_part else []
    if not participation.note_departure(job, event.site, event.reason) and not took_part:
        raise Stale(f"site {event.site} is already known to be unfit for this job")
    return effects


def _evaluator_left(job: Job, event: events.SiteLeft) -> list[Effect]:
    if event.site not in job.state.evaluators:
        raise Stale(f"evaluator {event.site} is not connected")
    job.remove_evaluator(event.site)
    return reports.settle_departed(job, event.site, event.at)


def _learner_left(job: Job, event: events.SiteLeft) -> list[Effect]:
    if event.site not in job.state.learners:
        raise Stale(f"learner {event.site} is not connected")
    job.remove_learner(event.site)
    participation.note_departure(job, event.site)
    effects = _go_on_without(job, event)
    if job.state.phase in MERGING and job.rule.forgets and event.site in job.state.members:
        effects += merges.queue(job, PendingMerge(forgotten=event.site), event.at)
    return effects


def _go_on_without(job: Job, event: events.SiteLeft) -> list[Effect]:
    match job.state.phase:
        case "surveying":
            _close_tasks(job, event)
            return gathering.proceed_from_survey(job, event.at)
        case "initialising":
            return first_model.replace_site(job, event.site, event.at)
        case "probing":
            _close_tasks(job, event)
            return next_round(job, event.at) if probes.conclude(job) else []
        case "training":
            with calling(job.rule.pace) as pacer:
                actions = pacer.on_left(job.memory(pacer), event.site, job.view(event.at))
            return act(job, actions, event.at)
    return []


def _close_tasks(job: Job, event: events.SiteLeft) -> None:
    for task in job.open_tasks.work(event.site):
        job.finish(task.id)
