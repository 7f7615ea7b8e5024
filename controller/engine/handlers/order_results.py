"""What worker threads bring back: community models, and findings on updates."""

from hansa.common.plugins.calling import calling
from hansa.common.values.history import finite
from hansa.controller.engine import events, versions
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.handlers import endings, evaluation, hops
from hansa.controller.engine.handlers.rounds import act, pulses
from hansa.controller.engine.job import Job
from hansa.controller.engine.merging import examinations, merges
from hansa.controller.engine.orders import (
    Compare,
    Compared,
    Examine,
    Examined,
    ExamineHop,
    HopExamined,
    Merge,
    Merged,
    Order,
    Result,
)
from hansa.controller.engine.state import MERGING, Outcome
from hansa.controller.plugin import checks
from hansa.controller.plugin.actions import Action, Stop
from hansa.controller.plugin.policies import Policy


def take(job: Job, event: events.OrderDone) -> list[Effect]:
    """Take the result of an order."""
    order = job.close_order(event.order)
    return [*_enter(job, event.order, order, event.result, event.at), *job.retention.drop_idle()]


def _enter(job: Job, number: int, order: Order, result: Result, now: float) -> list[Effect]:
    match order, result:
        case Merge(), Merged():
            return _take_version(job, order, result, now)
        case Examine(), Examined():
            examinations.keep(job, number, order.point, result.kept)
            return _take_outcome(job, order, Outcome(facts=result.facts), now)
        case ExamineHop(), HopExamined():
            return [*hops.take_findings(job, order, result, now), *endings.complete(job, now)]
        case Compare(), Compared(distance=distance):
            job.record(0).distance = finite(distance)
            return endings.complete(job, now)
    raise ValueError(f"order {number} ({order.kind}) has a result of the wrong kind: {result.kind}")


def take_failure(job: Job, event: events.OrderFailed) -> list[Effect]:
    """Go on without the result of an order; end the job if a merge or the comparison failed."""
    order, now = job.close_order(event.order), event.at
    match order:
        case Merge(version=version):
            return endings.end(job, "failed", f"merging version {version}: {event.reason}", now)
        case Compare():
            return endings.end(job, "failed", event.reason, now)
        case Examine():
            effects = _take_outcome(job, order, Outcome(trouble=event.reason), now)
        case ExamineHop(version=version, hop=hop):
            versions.hop_of(job, version, hop).trouble = event.reason
            effects = endings.complete(job, now)
    return [*effects, *job.retention.drop_idle()]


def _take_outcome(job: Job, order: Examine, outcome: Outcome, now: float) -> list[Effect]:
    """Go on with the merge when its last examination is over."""
    job.state.examined[order.point] = outcome
    return [] if job.state.merging else merges.order_merge(job, now)


def _take_version(job: Job, order: Merge, result: Merged, now: float) -> list[Effect]:
    """Take the next community model, have it evaluated, and let the pacer go on."""
    pending = job.state.queue.pop(0)
    merges.enter_version(job, order, pending, result, now)
    evaluation.drop_reports(job, order.version - 1)
    receipt = job.issue_receipt(
        version=order.version,
        contributions={member.task: member.weight for member in (*order.added, *order.reweighed)},
        digest=job.record(order.version).stored_digest,
        moments=result.moments,
    )
    job.record(order.version).receipt = receipt.hash
    merges.forget_absent(job, order)
    actions: list[Action] = []
    if pending.forgotten is None:
        weight_of = {member.task: member.weight for member in order.added}
        merged = [
            c.model_copy(update={"weight": weight_of.get(c.task.id, 0.0)}) for c in pending.contributions
        ]
        for policy in job.rule.policies_with(Policy.merged):
            with calling(policy):
                policy.merged(job.memory(policy), merged, job.view(now))
        contributors = [c.site for c in pending.contributions]
        with calling(job.rule.pace) as pacer:
            actions = pacer.on_merged(job.memory(pacer), contributors, job.view(now))
        actions = checks.require_actions(pacer, actions)
    stopping = any(isinstance(action, Stop) for action in actions)
    effects = [] if stopping else evaluation.offer(job, now)
    effects += act(job, actions, now)
    if job.state.queue and not job.state.merging and job.state.phase in MERGING:
        effects += merges.start(job, now)
    return [*effects, *pulses(job)]
