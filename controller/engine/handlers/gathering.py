"""Gathering: waiting until enough sites are connected, at the beginning and whenever too few are left."""

from collections.abc import Iterator, Set

from hansa.common.values.errors import InvalidData
from hansa.common.values.ids import SiteName
from hansa.common.values.wording.words import in_order, listed
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.handlers import endings, first_model, survey
from hansa.controller.engine.handlers.rounds import GATHER, next_round, wait_for_sites
from hansa.controller.engine.job import Job


def proceed(job: Job, now: float) -> list[Effect]:
    """Proceed from gathering to the next phase, if enough sites are connected."""
    if job.state.phase != "gathering" or len(job.eligible) < job.spec.sites.min:
        return []
    job.state.status = "running"
    job.state.reason = ""
    job.state.alarms.pop(GATHER, None)
    if survey.is_wanted(job):
        return survey.ask(job)
    if job.state.version < 0 or first_model.is_undescribed(job):
        job.state.phase = "initialising"
        return first_model.ask(job, now)
    return next_round(job, now)


def proceed_from_first_model(job: Job, now: float) -> list[Effect]:
    """Proceed from the first model to the first round, unless the job has ended."""
    if job.ended:
        return []
    job.state.phase = "gathering"
    return proceed(job, now) or next_round(job, now)


def proceed_from_survey(job: Job, now: float) -> list[Effect]:
    """Proceed once all sites have answered; gather more sites if too few could."""
    if job.state.untold and len(survey.able(job)) < job.spec.sites.min:
        site, reason = next(iter(job.state.untold.items()))
        return endings.end(job, "failed", f"site {site} could not describe its data: {reason}", now, site)
    if job.open_tasks.busy:
        return []
    try:
        survey.conclude(job)
    except InvalidData as error:
        return endings.end(job, "failed", str(error), now)
    job.state.phase = "gathering"
    return proceed(job, now) or next_round(job, now)


def skip_in_survey(job: Job, site: SiteName, reason: str, now: float) -> list[Effect]:
    """Proceed without a site that could not describe its data, unless too few others can."""
    job.state.untold[site] = reason
    return proceed_from_survey(job, now)


def watch_for_absence(job: Job, now: float) -> list[Effect]:
    """Run an alarm while all sites that the job waits for are away; stop it when one is back."""
    if job.state.phase not in ("initialising", "training"):
        return []
    if job.state.merging or job.state.preparing or job.open_tasks.anyone_works:
        job.state.alarms.pop(GATHER, None)
    elif GATHER not in job.state.alarms:
        return [wait_for_sites(job, now)]
    return []


def too_few_sites(job: Job) -> str:
    """Say which sites the job waited for in vain."""
    wait = f"{job.spec.sites.wait:g} s"
    if job.state.phase != "gathering":
        awaited = listed(sorted(job.open_tasks.busy, key=in_order))
        names = f": {awaited}" if awaited else ""
        return f"the sites that round {job.state.round} waits for did not come back in {wait}{names}"
    connected, needed = job.eligible, job.spec.sites.min
    names = f" ({listed(sorted(connected, key=in_order))})" if connected else ""
    count = f"only {len(connected)} of the {needed} sites needed were" if needed > 1 else "no site was"
    return f"{count} connected after {wait}{names}{''.join(_hindrances(job))}"


def _hindrances(job: Job) -> Iterator[str]:
    """Yield what keeps sites from training that are connected or named in the job."""
    learners, evaluators = job.state.learners, job.state.evaluators
    hindered: dict[str, Set[str]] = {
        "without examples": {site for site, examples in learners.items() if not examples},
        "with an evaluator but no learner": {s for s in evaluators if job.spec.sites.trains(s)}
        - set(learners),
        "named in sites.names but not connected": set(job.spec.sites.names or ())
        - set(learners)
        - evaluators,
    }
    for hindrance, sites in hindered.items():
        if sites:
            yield f"; {hindrance}: {listed(sorted(sites, key=in_order))}"
