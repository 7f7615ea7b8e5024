"""What sites bring back: updates, reports, or the reason why there is none."""

from hansa.common.plugins.calling import calling
from hansa.common.values.errors import Stale
from hansa.common.values.ids import update_key
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.controller.engine import events, versions
from hansa.controller.engine.accounts import participation
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.events import Role
from hansa.controller.engine.handlers import endings, first_model, gathering, probes, reports, sites
from hansa.controller.engine.handlers.rounds import act, next_round
from hansa.controller.engine.job import Job
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution


def take_update(job: Job, event: events.UpdateArrived) -> list[Effect]:
    """Take an update, or version 0."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Init | Train):
        raise Stale(f"task {task.id} does not ask for a model")
    effects: list[Effect] = []
    if isinstance(task.work, Init):
        if job.state.version >= 0:
            raise Stale(f"task {task.id} asks only for a description: version 0 came with the submission")
        first_model.note(job, event.facts.backbone, event.facts.anatomy, event.averaged)
        effects = first_model.take(job, task, event.digest, event.outline, event.at)
        effects += gathering.proceed_from_first_model(job, event.at)
    else:
        contribution = Contribution(
            task=task,
            model=update_key(task.id),
            digest=event.decoded or event.digest,
            facts=event.facts,
            bytes_up=event.bytes_up,
        )
        effects = _take_contribution(job, contribution, event.at)
    receipt = job.issue_receipt(task=task.id, site=task.site, digest=event.digest, decoded=event.decoded)
    job.state.receipts[task.site] = receipt
    if isinstance(task.work, Init):
        job.record(0).receipt = receipt.hash
    return effects


def take_description(job: Job, event: events.ModelDescribed) -> list[Effect]:
    """Take a site's description of a version 0 that came as a file."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Init) or not first_model.is_undescribed(job):
        raise Stale(f"task {task.id} does not ask for a description")
    first_model.note(job, event.backbone, event.outline.anatomy)
    effects = first_model.take_description(job, task, event.outline, event.at)
    effects += gathering.proceed_from_first_model(job, event.at)
    job.state.receipts[task.site] = job.issue_receipt(task=task.id, site=task.site, digest=event.digest)
    return effects


def _take_contribution(job: Job, contribution: Contribution, now: float) -> list[Effect]:
    """Pass an update on to the pacer; one that is too stale for the server update is refused."""
    task = contribution.task
    assert isinstance(task.work, Train)
    # Every merge in the queue makes one more version before this one: merges are serial and in order.
    staleness = job.state.version + len(job.state.queue) - task.work.version
    refusal = job.rule.refuses(staleness)
    with calling(job.rule.pace, Stale) as pacer:
        if refusal:
            actions = pacer.on_refused(job.memory(pacer), contribution, refusal, job.view(now))
        else:
            actions = pacer.on_result(job.memory(pacer), contribution, job.view(now))
    job.finish(task.id)
    job.state.accepted[task.site] = task.id
    if refusal:
        participation.note_failure(job, task, refusal)
        _announce(job, contribution)
        job.retention.add(contribution.model)
        return [*act(job, actions, now), *job.retention.drop_idle()]
    participation.note_update(job, task)
    _announce(job, contribution)
    versions.keep_update(job, contribution.model, task.work.model if job.rule.adds else contribution.base)
    with calling(job.rule.sample) as sampler:
        sampler.observe(job.memory(sampler), contribution)
    return act(job, actions, now)


def _announce(job: Job, contribution: Contribution) -> None:
    """Tell all policies that an update is committed."""
    for policy in job.rule.policies_with(Policy.committed):
        with calling(policy):
            policy.committed(job.memory(policy), contribution)


def take_failure(job: Job, event: events.TaskFailed) -> list[Effect]:
    """Take a site's message that it could not do a task; a final failure ends the job."""
    task = job.open_task(event.task, event.site)
    if event.unfit:
        return _go_on_without(job, task, event)
    if event.final:
        participation.note_failure(job, task, event.reason)
        return endings.end(job, "failed", f"site {event.site}: {event.reason}", event.at, event.site)
    return lose(job, task, event.reason, event.at)


def _go_on_without(job: Job, task: Task, event: events.TaskFailed) -> list[Effect]:
    """Leave a daemon out that can do no task of this job."""
    role: Role = "evaluator" if isinstance(task.work, Evaluate) else "learner"
    effects = sites.leave_out(job, role, task.site, event.reason, event.at)
    if task.id in job.state.tasks and not job.ended:  # the pacer might wait until the site is back
        effects += lose(job, task, event.reason, event.at)
    return effects


def lose(job: Job, task: Task, reason: str, now: float) -> list[Effect]:
    """Go on without the result of a task."""
    if isinstance(task.work, Evaluate):
        return reports.settle(job, task, None, now, reason)
    job.finish(task.id)
    participation.note_failure(job, task, reason)
    match task.work:
        case Survey():
            return gathering.skip_in_survey(job, task.site, reason, now)
        case Init():
            return first_model.take_failure(job, task.site, reason, now)
        case Probe():
            return next_round(job, now) if probes.conclude(job) else []
        case Train():
            with calling(job.rule.pace) as pacer:
                actions = pacer.on_lost(job.memory(pacer), task, reason, job.view(now))
            return act(job, actions, now)


def take_report(job: Job, event: events.Reported) -> list[Effect]:
    """Take an evaluator's report."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Evaluate):
        raise Stale(f"task {task.id} is not an evaluation")
    return reports.settle(job, task, event.evaluation, event.at)


def take_profile(job: Job, event: events.Surveyed) -> list[Effect]:
    """Take a site's description of its data."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Survey):
        raise Stale(f"task {task.id} is not a survey")
    job.finish(task.id)
    job.state.profiles[event.site] = event.profile
    return gathering.proceed_from_survey(job, event.at)


def take_probe(job: Job, event: events.Probed) -> list[Effect]:
    """Take what a site's probe found in the newest model."""
    task = job.open_task(event.task, event.site)
    if not isinstance(task.work, Probe):
        raise Stale(f"task {task.id} is not a probe")
    job.finish(task.id)
    with calling(job.rule.sample) as sampler:
        sampler.probed(job.memory(sampler), event.site, event.result)
    return next_round(job, event.at) if probes.conclude(job) else []


def stop_waiting_for_probes(job: Job, now: float) -> list[Effect]:
    """Begin the round without the sites whose probes have not arrived in time."""
    effects = probes.give_up(job)
    return effects + (next_round(job, now) if probes.conclude(job) else [])
