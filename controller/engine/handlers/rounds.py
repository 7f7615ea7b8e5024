"""Rounds: carries out what the pacer wants."""

from dataclasses import replace
from typing import Any, assert_never

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Account
from hansa.common.values.settings.optimizers import OptimizerSpec, ScheduleSpec
from hansa.common.values.settings.training import AuxiliarySpec
from hansa.common.values.tasks import Train
from hansa.controller.engine import versions
from hansa.controller.engine.accounts import participation
from hansa.controller.engine.effects import Effect, Pulse, SendTask, WithdrawTask
from hansa.controller.engine.handlers import endings, evaluated_updates, hops, probes
from hansa.controller.engine.job import Job
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
from hansa.controller.plugin.policies import Policy

LEAST_RATE = 1e-30  # learning rates never become 0, however long a schedule is
GATHER = "gather"  # the alarm that ends the wait for sites


def next_round(job: Job, now: float) -> list[Effect]:
    """Begin the next round, or wait if too few sites are connected."""
    if len(job.eligible) < job.spec.sites.min:
        job.state.phase = "gathering"
        job.state.reason = f"waiting for {job.spec.sites.min} sites"
        return [wait_for_sites(job, now)]
    asked = probes.ask(job, now)
    if asked:
        return asked
    job.state.phase = "training"
    job.state.round += 1
    job.state.round_sites = len(job.eligible)
    for policy in job.rule.policies if job.rule.pace.common_rounds else ():
        with calling(policy):
            policy.round_begins(job.memory(policy), job.view(now))
    with calling(job.rule.pace) as pacer:
        actions = pacer.on_start(job.memory(pacer), job.draw, job.view(now))
    return act(job, actions, now)


def _auxiliary(job: Job) -> tuple[AuxiliarySpec, ...]:
    """Return the tensors that travel beside the model with a task and with its update."""
    resets = job.resets if job.rule.auxiliary else ()
    return tuple(
        AuxiliarySpec(name=each.name, down=each.down, up=each.up, reset=each.name in resets)
        for each in job.rule.auxiliary
    )


def wait_for_sites(job: Job, now: float) -> Effect:
    """Set the alarm that ends the wait for sites."""
    return job.set_alarm(GATHER, now + job.spec.sites.wait)


def act(job: Job, actions: list[Action], now: float) -> list[Effect]:
    """Carry out the actions that the pacer wants."""
    effects: list[Effect] = []
    for action in checks.require_actions(job.rule.pace, actions):
        match action:
            case Ask():
                effects.append(_ask(job, action, now))
            case NextRound():
                effects += next_round(job, now)
            case NextHop():
                with calling(job.rule.pace) as pacer:
                    more = pacer.on_hop(job.memory(pacer), job.draw, job.view(now))
                effects += act(job, more, now)
            case Release(model):
                versions.release_update(job, model)
                effects += job.retention.drop_idle()
            case HopEnded():
                effects += hops.finish(job, action, now)
            case Withdraw(task, reason):
                withdrawn = job.finish(task)
                if withdrawn:
                    participation.note_failure(job, withdrawn, reason)
                    effects.append(WithdrawTask(withdrawn, reason))
            case Prepare(contribution):
                effects += evaluated_updates.prepare(job, contribution, now)
            case MergeNow(contributions, lost, steps):
                pending = PendingMerge(
                    contributions=contributions, account=Account(lost=dict(lost)), steps=steps
                )
                for site, reason in lost.items():
                    participation.explain_failure(job, site, reason)
                effects += evaluated_updates.merge_when_ready(job, pending, now)
            case Wake(seconds, alarm):
                effects.append(job.set_alarm(alarm, now + seconds))
            case Stop(reason, failed):
                if failed:
                    effects += endings.end(job, "failed", reason, now)
                else:
                    effects += endings.close(job, reason, now)
            case _:
                assert_never(action)
    return effects


def pulses(job: Job) -> list[Pulse]:
    """Return how far the job has come meanwhile, for sites in training that need to know."""
    if not any(_listens(job, policy) for policy in job.rule.policies_with(Policy.listens)):
        return []
    steps = job.state.steps
    return [
        Pulse(task.site, steps)
        for task in job.open_tasks.work()
        if isinstance(task.work, Train) and task.work.committed < steps
    ]


def _listens(job: Job, policy: Policy[Any]) -> bool:
    with calling(policy):
        return policy.listens(job.memory(policy))


def scheduled(job: Job, turn: int) -> OptimizerSpec:
    """Return the optimizer of a round, of a hop or of one of a site's cycles, by the schedule of the job."""
    optimizer, schedule = job.spec.train.optimizer, job.spec.train.schedule
    if schedule.by == "step" or not schedule.changes:
        return optimizer
    factor = schedule.at(max(turn - 1, 0), job.rule.rounds_asked)
    return optimizer.model_copy(update={"lr": max(optimizer.lr * factor, LEAST_RATE)})


def _within(schedule: ScheduleSpec) -> ScheduleSpec:
    """Return the schedule that tasks carry: what changes from task to task is settled here."""
    return schedule if schedule.by == "step" else ScheduleSpec()


def _ask(job: Job, ask: Ask, now: float) -> SendTask:
    assert job.state.current is not None
    with checks.require_sendable(job.rule.pace):
        work = Train(
            model=ask.start.model if ask.start else job.state.current,
            base=ask.start.base if ask.start else None,
            version=job.state.version,
            committed=job.state.steps,
            epochs=job.rule.epochs,
            steps=ask.steps,
            after=job.state.accepted.get(ask.site, ""),
            batch_size=job.spec.train.batch_size,
            optimizer=scheduled(job, ask.turn or ask.cycle or job.state.round),
            schedule=_within(job.spec.train.schedule),
            clip=job.spec.train.clip or 0,
            accumulate=job.spec.train.accumulate,
            precision=job.spec.train.precision,
            max_seconds=job.spec.train.max_seconds or 0,
            plugins=job.rule.plugins,
            validate_update=job.rule.weigh.validates,
            keep_optimizer=job.spec.train.keep_optimizer,
            auxiliary=_auxiliary(job),
        )
    view = replace(job.view(now), turn=ask.turn)
    for policy in job.rule.policies:
        with calling(policy):
            shaped = policy.shape(job.memory(policy), ask.site, work, view)
        if shaped is not work:
            work = checks.require_training(policy, shaped)
    travel = {"hop": ask.hop, "slot": ask.slot, "turn": ask.turn}
    with checks.require_sendable(job.rule.pace):
        sent = job.issue(ask.site, job.state.round if ask.cycle is None else ask.cycle, work, travel=travel)
    participation.note_request(job, ask.site)
    with calling(job.rule.pace) as pacer:
        pacer.on_asked(job.memory(pacer), sent.task)
    return sent
