"""The sites' apps: what they state of them, who does not fit the others, and what people should know of it."""

from collections.abc import Iterable, Mapping

from hansa.common.job.spec import JobSpec
from hansa.common.values.ids import SiteName
from hansa.common.values.stated import Stated, by_shape, by_source, shapes_differ, sources_differ
from hansa.common.values.words import in_order, listed
from hansa.controller.engine.job import Job


def difference(spec: JobSpec, apps: Mapping[str, Stated]) -> str:
    """Say how apps of daemons, by name, differ, if they cannot work for the job together."""
    if shapes_differ(apps):
        return f"the sites do not agree on what {spec.app} is ({by_shape(apps)})"
    if spec.sites.same_app and sources_differ(apps):
        versions = f"the sites have different versions of {spec.app} ({by_source(apps)})"
        return f"{versions}, and the job asks for sites.same_app"
    return ""


def objection(job: Job, role: str, site: SiteName, stated: Stated) -> str:
    """Say why a daemon cannot work with those that are here; empty if it can."""
    mine = daemon(role, site)
    others = ((name, app) for name, app in _here(job) if name != mine)
    first = next(others, None)
    if first is None or _alike(job.spec, first[1], stated):  # those that are here fit one another
        return ""
    return difference(job.spec, dict([first, *others]) | {mine: stated})


def _alike(spec: JobSpec, one: Stated, other: Stated) -> bool:
    same = (one.task, one.classes) == (other.task, other.classes)
    return same and (not spec.sites.same_app or one.source == other.source)


def note(job: Job, role: str, site: SiteName, stated: Stated) -> bool:
    """Remember what a daemon states of the app; return whether that is new."""
    known = job.state.apps.setdefault(role, {})
    if known.get(site) == stated:
        return False
    known[site] = stated
    return True


def daemon(role: str, site: SiteName) -> str:
    """Return how messages call a daemon."""
    return f"{role} {site}"


def warnings(job: Job) -> list[str]:
    """Return what people should know of the sites' apps; those of daemons that have left count, too."""
    apps = {daemon(role, site): app for role, known in job.state.apps.items() for site, app in known.items()}
    told = []
    if sources_differ(apps):
        told.append(f"the sites have different versions of {job.spec.app} ({by_source(apps)})")
    changed = sorted((name for name, app in apps.items() if app.changed), key=in_order)
    if changed:
        told.append(
            f"{job.spec.app} has changed on disk since these daemons loaded it: {listed(changed)}; they go on with what"
            " they have loaded until they are restarted"
        )
    told += [f"{name} was left out: {why}" for name, why in sorted(job.state.left_out.items())]
    return told + [
        f"site {site} could not tell of its data: {why}" for site, why in sorted(job.state.untold.items())
    ]


def _here(job: Job) -> Iterable[tuple[str, Stated]]:
    here: Mapping[str, Iterable[SiteName]] = {
        "learner": job.state.learners,
        "evaluator": job.state.evaluators,
    }
    for role, sites in here.items():
        for site in sites:
            yield daemon(role, site), job.state.apps.get(role, {}).get(site, Stated())
