"""Probes: before a round, sites that the sampler names report what they find in the newest model."""

from dataclasses import replace

from hansa.common.plugins.calling import calling
from hansa.common.values.tasks import Probe
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.plugin import checks

ALARM = "probes"  # the alarm that ends the wait for them
PATIENCE = 600.0  # seconds; a site that has not reported by then is drawn as if it had never been asked


def ask(job: Job, now: float) -> list[Effect]:
    """Ask the sites that are to be probed before the next round, unless they have been asked already.

    A site that joins meanwhile is drawn without a probe.
    """
    next_round = job.state.round + 1
    with calling(job.rule.sample) as sampler:
        plugin = sampler.probe
        if plugin is None or job.state.probed >= next_round:
            return []
        returned = sampler.to_probe(job.memory(sampler), replace(job.view(now), round=next_round))
    sites = checks.require_probed(sampler, returned, job.eligible)
    job.state.probed = next_round
    if not sites:
        return []
    assert job.state.current is not None
    job.state.phase = "probing"
    work = Probe(model=job.state.current, batch_size=job.spec.train.batch_size, plugin=plugin)
    asked = [job.issue(site, job.state.round, work) for site in sites]
    return [*asked, job.set_alarm(ALARM, now + PATIENCE)]


def conclude(job: Job) -> bool:
    """End the probes if all sites have answered; return whether they end with this call."""
    if job.state.phase != "probing" or job.open_tasks.busy:
        return False
    job.state.alarms.pop(ALARM, None)
    job.state.phase = "gathering"
    return True


def give_up(job: Job) -> list[Effect]:
    """Withdraw the probes of sites that have not answered in time."""
    late = job.open_tasks.work()
    for task in late:
        job.finish(task.id)
    return [WithdrawTask(task, f"no result in {PATIENCE:g} s") for task in late]
