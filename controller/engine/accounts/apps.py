"""The apps that sites have loaded: whether they fit together, and what operators should know about them."""

from collections.abc import Iterable, Mapping

from hansa.common.job.spec import JobSpec
from hansa.common.values.ids import SiteName
from hansa.common.values.stated import Stated, by_shape, by_source, shapes_differ, sources_differ
from hansa.common.values.wording.words import in_order, listed
from hansa.controller.engine.job import Job


def difference(spec: JobSpec, apps: Mapping[str, Stated]) -> str:
    """Say how the apps of daemons, by name, differ if they cannot work on the job together; else nothing."""
    if shapes_differ(apps):
        return f"the sites do not agree on what {spec.app} is ({by_shape(apps)})"
    if spec.sites.same_app and sources_differ(apps):
        versions = f"the sites have different versions of {spec.app} ({by_source(apps)})"
        return f"{versions}, and the job asks for sites.same_app"
    return ""


def objection(job: Job, role: str, site: SiteName, app: Stated) -> str:
    """Say why a daemon cannot work with those that are connected; empty if it can."""
    newcomer = daemon_name(role, site)
    others = ((name, other) for name, other in _connected(job) if name != newcomer)
    first = next(others, None)
    # The others fit one another, so it is enough to look at one of them.
    if first is None or _fit(job.spec, first[1], app):
        return ""
    return difference(job.spec, dict([first, *others]) | {newcomer: app})


def _fit(spec: JobSpec, one: Stated, other: Stated) -> bool:
    same_shape = (one.task, one.classes) == (other.task, other.classes)
    return same_shape and (not spec.sites.same_app or one.source == other.source)


def note(job: Job, role: str, site: SiteName, app: Stated) -> bool:
    """Remember which app a daemon has loaded; return whether that is new."""
    known = job.state.apps.setdefault(role, {})
    if known.get(site) == app:
        return False
    known[site] = app
    return True


def daemon_name(role: str, site: SiteName) -> str:
    """Return a daemon's name in messages."""
    return f"{role} {site}"


def warnings(job: Job) -> list[str]:
    """Return what operators should know about the sites' apps, including those of daemons that have left."""
    apps = {
        daemon_name(role, site): app for role, known in job.state.apps.items() for site, app in known.items()
    }
    lines = []
    if sources_differ(apps):
        lines.append(f"the sites have different versions of {job.spec.app} ({by_source(apps)})")
    changed = sorted((name for name, app in apps.items() if app.changed), key=in_order)
    if changed:
        lines.append(
            f"{job.spec.app} has changed on disk since these daemons loaded it: {listed(changed)}; they keep"
            " using what they have loaded until they are restarted"
        )
    lines += [f"{name} was left out: {why}" for name, why in sorted(job.state.left_out.items())]
    undescribed = sorted(job.state.untold.items())
    return lines + [f"site {site} could not describe its data: {why}" for site, why in undescribed]


def _connected(job: Job) -> Iterable[tuple[str, Stated]]:
    connected: Mapping[str, Iterable[SiteName]] = {
        "learner": job.state.learners,
        "evaluator": job.state.evaluators,
    }
    for role, sites in connected.items():
        for site in sites:
            yield daemon_name(role, site), job.state.apps.get(role, {}).get(site, Stated())
