"""Probes: before the first round every site measures the first model on its data, if the sampler wants that."""

from hansa.common.tasks import Probe
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job


def wanted(job: Job) -> bool:
    """Whether sites are to be asked before the first round."""
    return job.rule.sample.probe is not None and not job.state.probed


def ask(job: Job) -> list[Effect]:
    """Ask every site that is here; who comes later is drawn without having been asked."""
    plugin = job.rule.sample.probe
    assert plugin is not None
    assert job.state.current is not None
    job.state.phase = "probing"
    work = Probe(model=job.state.current, batch_size=job.spec.train.batch_size, plugin=plugin)
    return [job.issue(site, 0, work) for site in list(job.eligible)]


def complete(job: Job) -> bool:
    """Whether nobody is awaited any more; said only once."""
    if job.state.phase != "probing" or job.desk.busy:
        return False
    job.state.probed = True
    job.state.phase = "gathering"
    return True
