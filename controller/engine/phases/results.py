"""What sites bring back: updates, reports, and the reasons why there is none."""

from hansa.common.plugins.calling import calling
from hansa.common.values.errors import Stale
from hansa.common.values.ids import update_key
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.controller.engine import events
from hansa.controller.engine.accounts import participation
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases import endings, probes, reports, sites
from hansa.controller.engine.phases.rounds import act, next_round
from hansa.controller.plugin.view import Contribution


def updated(job: Job, event: events.UpdateArrived) -> list[Effect]:
    """Take an update, or version 0."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Init | Train):
        raise Stale(f"task {task.id} does not ask for a model")
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
        raise Stale(f"task {task.id} does not ask for a description")
    effects = sites.described(job, task, event.outline, event.at)
    job.state.receipts[task.site] = job.issue_receipt(task=task.id, site=task.site, digest=event.digest)
    return effects


def _contributed(job: Job, contribution: Contribution, now: float) -> list[Effect]:
    """Let the pacer have an update, unless it is too stale for the server update."""
    task = contribution.task
    assert isinstance(task.work, Train)
    # Every merge that waits will be one more version: merges are serial, and in the order of their updates.
    staleness = job.state.version + len(job.state.queue) - task.work.version
    refusal = job.rule.refuses(staleness)
    with calling(job.rule.pace, Stale) as pacer:
        if refusal:
            actions = pacer.on_refused(job.memory(pacer), contribution, refusal, job.view(now))
        else:
            actions = pacer.on_result(job.memory(pacer), contribution, job.view(now))
    if refusal:
        job.finish(task.id)
        participation.failed(job, task, refusal)
        _committed(job, contribution)
        job.retention.add(contribution.model)
        return [*act(job, actions, now), *job.retention.drop_idle()]
    job.finish(task.id)
    participation.answered(job, task)
    _committed(job, contribution)
    job.keep_update(contribution.model, contribution.base)
    with calling(job.rule.sample) as sampler:
        sampler.observe(job.memory(sampler), contribution)
    return act(job, actions, now)


def _committed(job: Job, contribution: Contribution) -> None:
    """Tell those who shape tasks that an update is here for good."""
    for policy in job.rule.policies:
        with calling(policy):
            policy.committed(job.memory(policy), contribution)


def failed(job: Job, event: events.TaskFailed) -> list[Effect]:
    """A site could not do a task."""
    task = job.open_task(event.task, event.site)
    if event.final:
        participation.failed(job, task, event.reason)
        return endings.end(job, "failed", f"site {event.site}: {event.reason}", event.at)
    return lost(job, task, event.reason, event.at)


def lost(job: Job, task: Task, reason: str, now: float) -> list[Effect]:
    """A task will not be answered."""
    if isinstance(task.work, Evaluate):
        return reports.settle(job, task, None, now, reason)
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
            with calling(job.rule.pace) as pacer:
                actions = pacer.on_lost(job.memory(pacer), task, reason, job.view(now))
            return act(job, actions, now)


def reported(job: Job, event: events.Reported) -> list[Effect]:
    """Take an evaluator's report."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Evaluate):
        raise Stale(f"task {task.id} is not an evaluation")
    return reports.settle(job, task, event.evaluation, event.at)


def surveyed(job: Job, event: events.Surveyed) -> list[Effect]:
    """Take what a site tells of its data."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Survey):
        raise Stale(f"task {task.id} is not a survey")
    job.finish(task.id)
    job.state.profiles[event.site] = event.profile
    return sites.after_survey(job, event.at)


def probed(job: Job, event: events.Probed) -> list[Effect]:
    """Take what a site measured on the first model."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Probe):
        raise Stale(f"task {task.id} is not a probe")
    job.finish(task.id)
    with calling(job.rule.sample) as sampler:
        sampler.probed(job.memory(sampler), event.site, event.importance)
    return next_round(job, event.at) if probes.complete(job) else []


def probes_late(job: Job, now: float) -> list[Effect]:
    """Begin without those who have not measured the first model."""
    effects = probes.give_up(job)
    return effects + (next_round(job, now) if probes.complete(job) else [])
