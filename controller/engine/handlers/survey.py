"""The survey: sites describe their data before the first round, and all sites use what follows from it."""

from hansa.common.data.standard import pooled
from hansa.common.values.errors import InvalidData
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Profile
from hansa.common.values.tasks import Survey
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job


def is_wanted(job: Job) -> bool:
    """Whether sites must be asked before training can begin."""
    return job.spec.survey.asks and not job.state.surveyed


def ask(job: Job) -> list[Effect]:
    """Ask all connected sites that have not answered yet."""
    job.state.phase = "surveying"
    spec = job.spec.survey
    work = Survey(moments=spec.standardise == "global", columns=spec.columns, classes=spec.classes)
    done = job.state.profiles.keys() | job.state.untold.keys() | job.open_tasks.busy
    return [job.issue(site, 0, work) for site in job.eligible if site not in done]


def able(job: Job) -> set[SiteName]:
    """Return the sites that have answered or still can."""
    return job.state.profiles.keys() | {site for site in job.eligible if site not in job.state.untold}


def conclude(job: Job) -> None:
    """Pool the profiles if enough sites have answered; raise InvalidData if they do not fit together."""
    # Sorted, so that the order in which sites answered makes no difference.
    profiles = dict(sorted(job.state.profiles.items()))
    if len(profiles) < job.spec.sites.min:
        return
    first = min(profiles)
    for site, profile in profiles.items():
        shape, expected = _shape(profile), _shape(profiles[first])
        if shape != expected:
            raise InvalidData(f"site {site} has {shape}, site {first} has {expected}: they cannot be pooled")
    if job.spec.survey.standardise == "global":
        job.state.standard = pooled(list(profiles.values()))
    job.state.surveyed = True


def _shape(profile: Profile) -> str:
    return f"{len(profile.mean)} columns and {len(profile.classes)} classes"
