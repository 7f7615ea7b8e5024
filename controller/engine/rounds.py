"""Rounds: from what the pacer wants to effects."""

from collections.abc import Iterable
from typing import assert_never

from hansa.common.tasks import Train
from hansa.controller.engine import appraisal, endings, inquiries
from hansa.controller.engine.effects import Effect, Pulse, SendTask, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.parts import Action, Ask, Examine, MergeNow, NextRound, Prepare, Stop, Wake, Withdraw
from hansa.controller.engine.state import PendingMerge

GATHER = "gather"  # the alarm that ends the wait for sites


def next_round(job: Job, now: float) -> list[Effect]:
    """Begin the next round, or wait if too few sites are here."""
    if len(job.eligible) < job.spec.sites.min:
        job.state.phase = "gathering"
        job.state.reason = f"waiting for {job.spec.sites.min} sites"
        return [wait_for_sites(job, now)]
    job.state.phase = "training"
    job.state.round += 1
    return act(job, job.rule.pace.on_start(job.pacing, job.draw, job.view(now)), now)


def wait_for_sites(job: Job, now: float) -> Effect:
    """Wait for sites only so long."""
    return job.set_alarm(GATHER, now + job.spec.sites.wait)


def act(job: Job, actions: Iterable[Action], now: float) -> list[Effect]:
    """Do what the pacer wants."""
    effects: list[Effect] = []
    for action in actions:
        match action:
            case Ask():
                effects.append(_ask(job, action, now))
            case NextRound():
                effects += next_round(job, now)
            case Withdraw(task, reason):
                withdrawn = job.finish(task)
                if withdrawn:
                    effects.append(WithdrawTask(withdrawn, reason))
            case Prepare(contribution):
                effects += appraisal.prepare(job, contribution, now)
            case MergeNow(contributions, lost):
                pending = PendingMerge(contributions=contributions, lost=dict(lost))
                effects += appraisal.merge_when_ready(job, pending, now)
            case Examine(contributions, label, question):
                effects.append(inquiries.ask(job, "pace", question, contributions, label))
            case Wake(seconds, alarm):
                effects.append(job.set_alarm(alarm, now + seconds))
            case Stop(reason, failed):
                effects += endings.end(job, "failed", reason, now) if failed else endings.close(job, reason, now)
            case _:
                assert_never(action)
    return effects


def pulse(job: Job) -> list[Effect]:
    """Tell sites that train how far the job has come meanwhile, if that matters to them."""
    if not any(policy.listens(job.memories[point]) for point, policy in job.rule.policies.items()):
        return []
    steps = job.state.steps
    training = [task for task in job.desk.work() if isinstance(task.work, Train) and task.work.committed < steps]
    return [Pulse(task.site, steps) for task in training]


def _ask(job: Job, ask: Ask, now: float) -> SendTask:
    assert job.state.current is not None
    work = Train(
        model=job.state.current,
        version=job.state.version,
        committed=job.state.steps,
        epochs=job.spec.train.epochs,
        steps=ask.steps,
        batch_size=job.spec.train.batch_size,
        optimizer=job.spec.train.optimizer,
        validate_update=job.rule.weigh.appraises,
        keep_optimizer=job.spec.train.keep_optimizer,
    )
    for point, policy in job.rule.policies.items():
        work = policy.shape(job.memories[point], ask.site, work, job.view(now))
    sent = job.issue(ask.site, job.state.round if ask.cycle is None else ask.cycle, work)
    job.rule.pace.on_asked(job.pacing, sent.task)
    return sent
