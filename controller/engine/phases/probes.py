"""Probes: before the first round every site measures the first model on its data, if the sampler wants that."""

from hansa.common.plugins.calling import calling
from hansa.common.values.tasks import Probe
from hansa.common.values.training import LocalPluginSpec
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.job import Job

ALARM = "probes"  # the alarm that ends the wait for them
PATIENCE = 600.0  # seconds: whoever has not measured by then is drawn like one that was never heard


def wanted(job: Job) -> bool:
    """Whether sites are to be asked before the first round."""
    return not job.state.probed and _plugin(job) is not None


def ask(job: Job, now: float) -> list[Effect]:
    """Ask every site that is here; who comes later is drawn without having been asked."""
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


def complete(job: Job) -> bool:
    """Whether nobody is awaited any more; said only once."""
    if job.state.phase != "probing" or job.open_tasks.busy:
        return False
    job.state.alarms.pop(ALARM, None)
    job.state.probed = True
    job.state.phase = "gathering"
    return True


def give_up(job: Job) -> list[Effect]:
    """Wait no longer."""
    late = job.open_tasks.work()
    for task in late:
        job.finish(task.id)
    return [WithdrawTask(task, f"no answer in {PATIENCE:g} s") for task in late]
