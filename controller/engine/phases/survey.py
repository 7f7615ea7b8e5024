"""The survey: what sites tell of their data before the first round, and what follows from it for all of them."""

from hansa.common.data.standard import pooled
from hansa.common.values.errors import InvalidData
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Profile
from hansa.common.values.tasks import Survey
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job


def wanted(job: Job) -> bool:
    """Whether there is something to ask before training can begin."""
    return job.spec.survey.asks and not job.state.surveyed


def ask(job: Job) -> list[Effect]:
    """Ask every site that is here and has not told yet."""
    job.state.phase = "surveying"
    spec = job.spec.survey
    work = Survey(moments=spec.standardise == "global", columns=spec.columns, classes=spec.classes)
    done = job.state.profiles.keys() | job.state.untold.keys() | job.open_tasks.busy
    return [job.issue(site, 0, work) for site in job.eligible if site not in done]


def able(job: Job) -> set[SiteName]:
    """Return the sites that have told, or that are here and may yet tell."""
    return job.state.profiles.keys() | {site for site in job.eligible if site not in job.state.untold}


def settle(job: Job) -> None:
    """Draw the conclusion if enough sites have told; profiles that do not fit each other raise InvalidData."""
    told = job.state.profiles
    if len(told) < job.spec.sites.min:
        return
    first = min(told)
    for site in sorted(told):
        if len(told[site].mean) != len(told[first].mean) or len(told[site].classes) != len(
            told[first].classes
        ):
            raise InvalidData(
                f"site {site} has {_shape(told[site])}, site {first} has {_shape(told[first])}: they cannot be pooled"
            )
    if job.spec.survey.standardise == "global":
        job.state.standard = pooled(
            [told[site] for site in sorted(told)]
        )  # in this order, whoever told first
    job.state.surveyed = True


def _shape(profile: Profile) -> str:
    return f"{len(profile.mean)} columns and {len(profile.classes)} classes"
