"""Endings: a job stops training and waits for its last evaluation, or it ends at once."""

from hansa.common.values.history import Version
from hansa.common.values.ids import SiteName
from hansa.common.values.wording.words import share_of
from hansa.controller.engine import versions
from hansa.controller.engine.accounts import best, participation
from hansa.controller.engine.effects import Effect, JobEnded, WithdrawTask
from hansa.controller.engine.handlers import hops
from hansa.controller.engine.handlers.evaluation import (
    ALARM,
    give_up,
    is_awaited,
    metrics,
    offer,
    offer_last,
)
from hansa.controller.engine.job import Job
from hansa.controller.engine.merging import examinations
from hansa.controller.engine.orders import Examine, Merge
from hansa.controller.engine.state import MERGING, Status
from hansa.controller.engine.subjects import OfUpdate


def close(job: Job, reason: str, now: float) -> list[Effect]:
    """Stop training; the job is completed once its last version is evaluated and no order is open."""
    state = job.state
    if state.version < 0:
        return end(job, "failed", f"{reason} before there was a model", now)
    if state.version > 0 and not state.merged:
        return end(job, "failed", f"{reason}, but no site delivered an update in time", now)
    state.phase = "closing"
    state.reason = reason
    participation.note_stop(job)
    _give_up_merges(job)
    tasks = job.open_tasks
    unfinished = [*tasks.work(), *tasks.evaluations_of(*tasks.subjects(OfUpdate))]
    effects: list[Effect] = [WithdrawTask(task, reason) for task in unfinished]
    for task in unfinished:
        job.finish(task.id)
    effects += hops.withdraw(job, reason)
    if state.version > 0:
        effects += offer_last(job)
    if _is_done(job):
        return [*effects, *end(job, "completed", reason, now)]
    state.alarms = {}
    return [*effects, job.set_alarm(ALARM, now + job.rule.evaluate.timeout)]


def end(job: Job, status: Status, reason: str, now: float, site: SiteName | None = None) -> list[Effect]:
    """End the job at once, and stop keeping what only it needs; `site` is the one that failed, if one did."""
    state = job.state
    participation.note_stop(job)
    effects: list[Effect] = [WithdrawTask(task, reason) for task in state.tasks.values()]
    give_up(job)
    for task in list(state.tasks):
        job.finish(task)
    for key in list(state.unmerged):
        versions.release_update(job, key)
    for number in list(state.orders):
        job.close_order(number)
    state.alarms = {}
    _give_up_merges(job)
    examinations.release_all(job)
    versions.release_first(job)
    versions.release_reference(job)
    if state.version >= 0:
        job.touch(state.version)  # it is final now
    state.status, state.reason, state.failed_site = status, reason, site
    state.phase, state.ended = "ended", now
    return [*effects, *job.retention.drop_idle(), JobEnded(status, reason)]


def _give_up_merges(job: Job) -> None:
    """Give up all merges: those in progress, in the queue, or waiting for evaluations."""
    state = job.state
    for number, order in list(state.orders.items()):
        if isinstance(order, Merge | Examine):
            job.close_order(number)
    for update in state.updates:
        state.reports.pop(OfUpdate(update).name, None)
    state.queue, state.preparing, state.examined, state.updates = [], {}, {}, {}


def consider(job: Job, record: Version, now: float) -> list[Effect]:
    """Act on an evaluation that is over: complete or close the job, or offer the newest version."""
    if job.state.phase == "closing":
        return complete(job, now)
    effects: list[Effect] = []
    if job.state.phase in MERGING and not is_awaited(job, record):
        reason = _target_reached(job, record) or best.patience_lost(job)
        effects = close(job, reason, now) if reason else offer(job, now)
    return effects + job.retention.drop_idle()


def complete(job: Job, now: float) -> list[Effect]:
    """Complete a job that has stopped training, if it waits for nothing else."""
    if job.state.phase == "closing" and _is_done(job):
        return end(job, "completed", job.state.reason, now)
    return job.retention.drop_idle()


def _is_done(job: Job) -> bool:
    return not job.open_tasks.versions and not job.state.orders


def _target_reached(job: Job, record: Version) -> str:
    """Say that a version has reached the target, if it was evaluated on enough examples; else nothing."""
    target = job.spec.stop.target
    if target is None or not record.covered:
        return ""
    found = metrics(job, record)
    if target.metric not in found:
        best.remark_unknown(job, "stop.target.metric", target.metric, record)
    value = found.get(target.metric)
    if value is None or not target.reached_by(value):
        return ""
    basis = ""
    if record.examples != record.examples_total or record.drawn is not None:
        basis = f" on {share_of(record.examples, record.examples_total, record.drawn)} examples"
    return f"target reached: {target.metric} {value:.4f} at version {record.version}{basis}"
