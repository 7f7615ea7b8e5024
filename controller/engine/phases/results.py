"""What comes back: updates and reports from sites, community models from the workers."""

from collections.abc import Mapping

from hansa.common.values.errors import Stale
from hansa.common.values.ids import update_key
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.controller.engine import events
from hansa.controller.engine.accounts import participation
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases import (
    appraisal,
    endings,
    evaluation,
    hops,
    inquiries,
    merges,
    probes,
    sites,
)
from hansa.controller.engine.phases.evaluation import settle
from hansa.controller.engine.phases.rounds import act, next_round, pulse
from hansa.controller.engine.state import MERGING, Heard
from hansa.controller.plugin.actions import Action, Stop
from hansa.controller.plugin.view import Contribution


def updated(job: Job, event: events.UpdateArrived) -> list[Effect]:
    """Take an update, or version 0."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Init | Train):
        raise Stale(f"task {task.id} asks for no model")
    effects: list[Effect] = []
    if isinstance(task.work, Init):
        if job.state.version >= 0:
            raise Stale(f"task {task.id} asks for a description: version 0 is here")
        effects = sites.built(job, task, event.digest, event.outline, event.at)
    else:
        contribution = Contribution(
            task=task, model=update_key(task.id), digest=event.digest, facts=event.facts
        )
        effects = _contributed(job, contribution, event.at)
    receipt = job.issue_receipt(task=task.id, site=task.site, digest=event.digest)
    job.state.receipts[task.site] = receipt
    if isinstance(task.work, Init):
        job.record(0).receipt = receipt.hash
    return effects


def described(job: Job, event: events.ModelDescribed) -> list[Effect]:
    """Take what a site tells of a version 0 that came from a file."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Init) or not sites.undescribed(job):
        raise Stale(f"task {task.id} asks for no description")
    effects = sites.described(job, task, event.outline, event.at)
    job.state.receipts[task.site] = job.issue_receipt(task=task.id, site=task.site, digest=event.digest)
    return effects


def _contributed(job: Job, contribution: Contribution, now: float) -> list[Effect]:
    """Let the pacer have an update, unless it is too stale for the server update."""
    task, pace = contribution.task, job.rule.pace
    assert isinstance(task.work, Train)
    # Every merge that waits will be one more version: merges are serial, and in the order of their updates.
    staleness = job.state.version + len(job.state.queue) - task.work.version
    refusal = job.rule.server.refuses(staleness)
    if refusal:
        actions = pace.on_refused(job.pacing, contribution, refusal, job.view(now))
        job.finish(task.id)
        participation.failed(job, task, refusal)
        _committed(job, contribution)
        job.models.add(contribution.model)
        return [*act(job, actions, now), *job.models.drop_idle()]
    actions = pace.on_result(job.pacing, contribution, job.view(now))
    job.finish(task.id)
    participation.answered(job, task)
    _committed(job, contribution)
    job.keep_update(contribution.model, contribution.base)
    job.rule.sample.observe(job.memories["sample"], contribution)
    return act(job, actions, now)


def _committed(job: Job, contribution: Contribution) -> None:
    """Tell those who shape tasks that an update is here for good."""
    for point, policy in job.rule.policies.items():
        policy.committed(job.memories[point], contribution)


def failed(job: Job, event: events.TaskFailed) -> list[Effect]:
    """A site could not do a task."""
    task = job.open_task(event.task, event.site)
    if event.final:
        participation.failed(job, task, event.reason)
        return endings.end(job, "failed", f"site {event.site}: {event.reason}", event.at)
    return lost(job, task, event.reason, event.at)


def lost(job: Job, task: Task, reason: str, now: float) -> list[Effect]:
    """A task will not be answered."""
    if task.id in job.state.judging:
        return appraisal.settle(job, task, None, now, reason)
    if task.id in job.state.scoring:
        return hops.scored(job, task, None, reason)
    if isinstance(task.work, Evaluate):
        return endings.judge(job, settle(job, task, None, reason), now)
    job.finish(task.id)
    participation.failed(job, task, reason)
    match task.work:
        case Survey():
            return sites.could_not_tell(job, task.site, reason, now)
        case Init():
            return sites.could_not_build(job, task.site, reason, now)
        case Probe():
            return next_round(job, now) if probes.complete(job) else []
        case Train():
            return act(job, job.rule.pace.on_lost(job.pacing, task, reason, job.view(now)), now)


def reported(job: Job, event: events.Reported) -> list[Effect]:
    """Take an evaluator's findings."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Evaluate):
        raise Stale(f"task {task.id} is no evaluation")
    if task.id in job.state.judging:
        return appraisal.settle(job, task, event.evaluation, event.at)
    if task.id in job.state.scoring:
        return hops.scored(job, task, event.evaluation)
    return endings.judge(job, settle(job, task, event.evaluation), event.at)


def measured(job: Job, event: events.Measured) -> list[Effect]:
    """Enter how far version 0 is from the reference; a job with a reference of another model ends."""
    if job.state.measuring is None:
        raise Stale("version 0 is not being measured")
    job.end_measurement()
    job.record(0).distance = event.distance
    if event.trouble:
        return endings.end(job, "failed", event.trouble, event.at)
    return endings.complete(job, event.at)


def surveyed(job: Job, event: events.Surveyed) -> list[Effect]:
    """Take what a site tells of its data."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Survey):
        raise Stale(f"task {task.id} is no survey")
    job.finish(task.id)
    job.state.profiles[event.site] = event.profile
    return sites.after_survey(job, event.at)


def probed(job: Job, event: events.Probed) -> list[Effect]:
    """Take what a site measured on the first model."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Probe):
        raise Stale(f"task {task.id} is no probe")
    job.finish(task.id)
    job.rule.sample.probed(job.memories["sample"], event.site, event.importance)
    return next_round(job, event.at) if probes.complete(job) else []


def probes_late(job: Job, now: float) -> list[Effect]:
    """Begin without those who have not measured the first model."""
    effects = probes.give_up(job)
    return effects + (next_round(job, now) if probes.complete(job) else [])


def studied(job: Job, event: events.HopStudied) -> list[Effect]:
    """Take what was found of a hop's models; it may be the last thing that the job waits for."""
    return hops.studied(job, event) + endings.complete(job, event.at)


def merged(job: Job, event: events.Merged) -> list[Effect]:
    """Take the next community model; evaluate it and let the pacer go on."""
    plan = job.state.plan
    if plan is None or plan.version != event.version:
        raise Stale(f"version {event.version} is not being merged")
    pending = job.state.queue.pop(0)
    merges.enter_version(job, plan, pending, event)
    evaluation.put_away(job, plan.version - 1)
    weights = {member.task: member.weight for member in (*plan.added, *plan.reweighed)}
    receipt = job.issue_receipt(
        version=event.version, contributions=weights, digest=event.digest, moments=event.moments
    )
    job.record(event.version).receipt = receipt.hash
    merges.forget_absent(job, plan)
    actions: list[Action] = []
    if pending.forgotten is None:
        for point, policy in job.rule.policies.items():
            policy.merged(job.memories[point], pending.contributions, job.view(event.at))
        contributors = [c.site for c in pending.contributions]
        actions = job.rule.pace.on_merged(job.pacing, contributors, job.view(event.at))
    stopping = any(isinstance(action, Stop) for action in actions)
    effects = [] if stopping else evaluation.offer(job, event.at)
    effects += act(job, actions, event.at)
    if job.state.queue and not job.state.merging and job.state.phase in MERGING:
        effects += merges.start(job, event.at)
    return [*effects, *pulse(job), *job.models.drop_idle()]


def merge_failed(job: Job, event: events.MergeFailed) -> list[Effect]:
    """The next community model could not be made."""
    if job.state.plan is None or job.state.plan.version != event.version:
        raise Stale(f"version {event.version} is not being merged")
    return endings.end(job, "failed", f"merging version {event.version}: {event.reason}", event.at)


def examined(job: Job, event: events.Examined) -> list[Effect]:
    """Take what a part of the rule found of updates."""
    return _heard(job, event.inquiry, Heard(facts=event.facts), event.at, event.kept)


def examination_failed(job: Job, event: events.ExaminationFailed) -> list[Effect]:
    """A part of the rule could not look at updates."""
    return _heard(job, event.inquiry, Heard(trouble=event.reason), event.at)


def _heard(
    job: Job, number: int, heard: Heard, now: float, kept: Mapping[str, str] | None = None
) -> list[Effect]:
    """Go on with a merge when it has waited for the last of its inquiries."""
    inquiry = inquiries.close(job, number, kept)
    job.state.heard[inquiry.point] = heard
    effects = [] if job.state.merging else merges.weigh(job, now)
    return effects + job.models.drop_idle()
