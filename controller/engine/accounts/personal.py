"""Whether evaluators have the tensors or models that are their sites' own (personal-models §2)."""

from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.wording.words import in_order, listed
from hansa.controller.engine.job import Job

ENOUGH = 2  # accepted updates: when a site begins with the second one, it has kept what it has of the first


def note(job: Job, site: SiteName, report: Evaluation) -> None:
    """Note whether an evaluator had what its site's learner has kept."""
    if not (job.rule.travel.leaves_own or job.rule.own_models) or not report.n:
        return
    participation = job.state.participation.get(site)
    if report.personal:
        job.state.unshared.discard(site)
    elif participation and participation.answered >= ENOUGH:
        job.state.unshared.add(site)


def warnings(job: Job) -> list[str]:
    """Return which evaluators measure something else than the operator expects."""
    if not job.state.unshared:
        return []
    sites = listed(sorted(job.state.unshared, key=in_order))
    what = "the community model" if job.rule.own_models else "initial values"
    lack = f"evaluators use {what}, because they do not find what their site's learner keeps: {sites}"
    return [f"{lack}; learner and evaluator of a site must have the same folder (--personal)"]
