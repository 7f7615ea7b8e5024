"""Probes: if the sampler wants it, every site reports its gradients on the first model before round 1."""

from hansa.common.plugins.calling import calling
from hansa.common.values.tasks import Probe
from hansa.common.values.training import LocalPluginSpec
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.job import Job

ALARM = "probes"  # the alarm that ends the wait for them
PATIENCE = 600.0  # seconds; a site that has not reported by then is drawn as if it had never been asked


def are_wanted(job: Job) -> bool:
    """Whether sites must be asked before the first round."""
    return not job.state.probed and _plugin(job) is not None


def ask(job: Job, now: float) -> list[Effect]:
    """Ask all sites that are connected; a site that joins later is drawn without a probe."""
    plugin = _plugin(job)
    assert plugin is not None
    assert job.state.current is not None
    job.state.phase = "probing"
    work = Probe(model=job.state.current, batch_size=job.spec.train.batch_size, plugin=plugin)
    asked = [job.issue(site, 0, work) for site in list(job.eligible)]
    return [*asked, job.set_alarm(ALARM, now + PATIENCE)]


def _plugin(job: Job) -> LocalPluginSpec | None:
    with calling(job.rule.sample) as sampler:
        return sampler.probe


def conclude(job: Job) -> bool:
    """End the probes if all sites have answered; return whether they end with this call."""
    if job.state.phase != "probing" or job.open_tasks.busy:
        return False
    job.state.alarms.pop(ALARM, None)
    job.state.probed = True
    job.state.phase = "gathering"
    return True


def give_up(job: Job) -> list[Effect]:
    """Withdraw the probes of sites that have not answered in time."""
    late = job.open_tasks.work()
    for task in late:
        job.finish(task.id)
    return [WithdrawTask(task, f"no result in {PATIENCE:g} s") for task in late]
