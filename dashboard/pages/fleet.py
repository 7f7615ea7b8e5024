"""The fleet: the controller, the sites, and what they are doing."""

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import Child, tag
from hansa.common.ui.job.versions import numbers
from hansa.common.values.views import DaemonView, JobView
from hansa.common.values.wording.words import counted, listed
from hansa.dashboard.overview import Overview
from hansa.dashboard.pages.layout import badge, bar, card, job_link, moment, ordered, span_of, table, tiles

SHOWN = 300  # sites in the table
ROLES = ("learner", "evaluator")


def summary(overview: Overview) -> Element:
    """Return what there is, in numbers."""
    status, daemons = overview.status, overview.daemons
    connected = {daemon.site for daemon in daemons if daemon.state == "attending"}
    sites = {daemon.site for daemon in daemons}
    busy = sum(bool(daemon.doing) for daemon in daemons)
    running = sum(not view.ended for view in overview.jobs)
    away = len(sites - connected)
    return tag(
        "div",
        tiles(
            [
                ("sites connected", str(len(connected)), f"{away} away" if away else "none away"),
                ("daemons at work", str(busy), f"of {counted(len(daemons), 'daemon')}"),
                ("jobs under way", str(running), f"of {counted(len(overview.jobs), 'job')}"),
            ]
        ),
        tag(
            "p",
            f"Hansa {status.version} at {status.address}, up since ",
            moment(status.since),
            f", store {status.store}, peak memory {status.peak_memory_mib:.0f} MiB",
            class_="soft",
        )
        if status
        else None,
    )


def under_way(overview: Overview) -> Element:
    """Return the jobs that have not ended."""
    running = [view for view in overview.jobs if not view.ended]
    if not running:
        newest = next(iter(overview.jobs), None)
        last: Child = (
            ("The newest one is ", job_link(newest.job, newest.name), f": {newest.status}.")
            if newest
            else None
        )
        return card("Jobs under way", tag("p", "No job is under way. ", last, class_="empty"))
    return card("Jobs under way", tag("ul", (tag("li", _job(view)) for view in running), class_="running"))


def _job(view: JobView) -> Element:
    done = f"{view.unit} {view.rounds}" + (f" of {view.rounds_asked}" if view.rounds_asked else "")
    return tag(
        "article",
        tag("h3", job_link(view.job, view.name), " ", badge(view.status)),
        bar(view.rounds, view.rounds_asked, done) if view.rounds_asked else None,
        tag("p", f"{done} · {span_of(view.seconds)} · rule {view.rule}"),
        tag("p", view.reason or numbers(view.metrics), class_="soft"),
    )


def sites(overview: Overview, words: str = "") -> Element:
    """Return the table of sites."""
    by_site: dict[str, dict[str, DaemonView]] = {}
    for daemon in overview.daemons:
        by_site.setdefault(daemon.site, {})[daemon.role] = daemon
    names = [name for name in ordered(by_site) if words.lower() in name.lower()]
    rows = [list(_row(name, by_site[name])) for name in names[:SHOWN]]
    rest = len(names) - SHOWN
    return tag(
        "div",
        table(
            ("site", "learner", "evaluator", "at work on", "apps"),
            rows,
            "Sites and their daemons",
            f"No site's name has {words!r} in it." if words else "No site has connected yet.",
        ),
        tag("p", f"… and {rest} more; search for the others.", class_="soft") if rest > 0 else None,
    )


def _row(name: str, daemons: dict[str, DaemonView]) -> Iterator[Child]:
    yield name
    for role in ROLES:
        yield _daemon(daemons[role]) if role in daemons else tag("span", "–", class_="soft")
    yield listed([task for daemon in daemons.values() for task in daemon.doing], 3) or "–"
    yield _apps(list(daemons.values()))


def _daemon(daemon: DaemonView) -> Element:
    since = "since " if daemon.state == "attending" else "left "
    return tag(
        "div",
        badge(daemon.state),
        tag("small", since, moment(daemon.since), f": {daemon.why}" if daemon.why else ""),
        class_="daemon",
    )


def _apps(daemons: Sequence[DaemonView]) -> Element:
    apps = {ref: state for daemon in reversed(daemons) for ref, state in daemon.apps.items()}
    changed = {ref for daemon in daemons for ref in daemon.changed}
    return tag(
        "ul",
        (
            tag(
                "li",
                tag("code", ref),
                tag("small", f" {state}" + ("; its source has changed on disk" if ref in changed else "")),
            )
            for ref, state in apps.items()
        ),
        class_="plain",
    )
