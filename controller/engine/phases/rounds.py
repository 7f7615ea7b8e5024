"""Rounds: from what the pacer wants to effects."""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from hansa.common.values.history import Account
from hansa.common.values.tasks import Train
from hansa.controller.engine.accounts import participation
from hansa.controller.engine.effects import Effect, Pulse, SendTask, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases import endings, hops, probes, updates
from hansa.controller.engine.state import PendingMerge
from hansa.controller.plugin import checks
from hansa.controller.plugin.actions import (
    Action,
    Ask,
    HopEnded,
    MergeNow,
    NextHop,
    NextRound,
    Prepare,
    Release,
    Stop,
    Wake,
    Withdraw,
)

GATHER = "gather"  # the alarm that ends the wait for sites


def next_round(job: Job, now: float) -> list[Effect]:
    """Begin the next round, or wait if too few sites are here."""
    if len(job.eligible) < job.spec.sites.min:
        job.state.phase = "gathering"
        job.state.reason = f"waiting for {job.spec.sites.min} sites"
        return [wait_for_sites(job, now)]
    if probes.wanted(job):
        return probes.ask(job, now)
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
            case NextHop():
                effects += act(job, job.rule.pace.on_hop(job.pacing, job.draw, job.view(now)), now)
            case Release(model):
                job.let_go(model)
                effects += job.retention.drop_idle()
            case HopEnded():
                effects += hops.ended(job, action, now)
            case Withdraw(task, reason):
                withdrawn = job.finish(task)
                if withdrawn:
                    participation.failed(job, withdrawn, reason)
                    effects.append(WithdrawTask(withdrawn, reason))
            case Prepare(contribution):
                effects += updates.prepare(job, contribution, now)
            case MergeNow(contributions, lost, steps):
                pending = PendingMerge(
                    contributions=contributions, account=Account(lost=dict(lost)), steps=steps
                )
                for site, reason in lost.items():
                    participation.explain(job, site, reason)
                effects += updates.merge_when_ready(job, pending, now)
            case Wake(seconds, alarm):
                effects.append(job.set_alarm(alarm, now + seconds))
            case Stop(reason, failed):
                effects += (
                    endings.end(job, "failed", reason, now) if failed else endings.close(job, reason, now)
                )
            case _:
                assert_never(action)
    return effects


def pulse(job: Job) -> list[Pulse]:
    """Tell sites that train how far the job has come meanwhile, if that matters to them."""
    if not any(policy.listens(job.memories[point]) for point, policy in job.rule.policies.items()):
        return []
    steps = job.state.steps
    training = [
        task for task in job.open_tasks.work() if isinstance(task.work, Train) and task.work.committed < steps
    ]
    return [Pulse(task.site, steps) for task in training]


def _ask(job: Job, ask: Ask, now: float) -> SendTask:
    assert job.state.current is not None
    with checks.sendable(job.rule.pace):
        work = Train(
            model=ask.start.model if ask.start else job.state.current,
            base=ask.start.base if ask.start else None,
            version=job.state.version,
            committed=job.state.steps,
            epochs=job.rule.epochs,
            steps=ask.steps,
            batch_size=job.spec.train.batch_size,
            optimizer=job.spec.train.optimizer,
            plugins=job.rule.sample.plugins,
            validate_update=job.rule.weigh.appraises,
            keep_optimizer=job.spec.train.keep_optimizer,
        )
    view = replace(job.view(now), turn=ask.turn)
    for point, policy in job.rule.policies.items():
        work = checks.require_work(policy, policy.shape(job.memories[point], ask.site, work, view))
    travel = {"hop": ask.hop, "slot": ask.slot, "turn": ask.turn}
    with checks.sendable(job.rule.pace):
        sent = job.issue(ask.site, job.state.round if ask.cycle is None else ask.cycle, work, travel=travel)
    participation.asked(job, ask.site)
    job.rule.pace.on_asked(job.pacing, sent.task)
    return sent
