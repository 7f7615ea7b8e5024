"""A job: how far it is, what its sites do, what happened, and its versions."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import Child, tag
from hansa.common.ui.job.versions import numbers, shares
from hansa.common.values.history import VersionView
from hansa.common.values.views import EventView, JobView, SiteProgress
from hansa.common.values.wording.remarks import metrics_missing, remarks, warning_lines
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import share_of
from hansa.dashboard.followed import FollowedJob
from hansa.dashboard.pages.layout import badge, bar, moment, settings, span_of, table, tiles

VERSIONS = 30  # in the table
SITES = 200  # in the table
METRICS = 4  # with a tile


def head(followed: FollowedJob) -> Element:
    """Return how far a job is."""
    view = followed.view
    of = f" of {view.rounds_asked}" if view.rounds_asked else ""
    done = f"{view.unit} {view.rounds}{of}" + (f" ({view.phase})" if view.phase else "")
    return tag(
        "div",
        tag("p", badge(view.status), f" {view.reason}" if view.reason else "", class_="state"),
        bar(view.rounds, view.rounds_asked, done) if view.rounds_asked else None,
        tiles(_numbers(view)),
        tag("p", metrics_missing(view), class_="soft") if metrics_missing(view) else None,
        tag("ul", (tag("li", line) for line in warning_lines(view)), class_="warnings"),
    )


def _numbers(view: JobView) -> Iterator[tuple[str, Child, str]]:
    yield view.unit, f"{view.rounds}", f"of {view.rounds_asked}" if view.rounds_asked else view.phase
    covered = share_of(view.examples, view.examples_total, view.drawn) + " examples" if view.examples else ""
    for name, value in list(view.metrics.items())[:METRICS]:
        if value is not None:
            remark = f"version {view.metrics_version}, on {covered}"
            yield (
                name.replace("_", " "),
                tag("data", f"{value:.4f}", value=repr(value), data_metric=name),
                remark,
            )
    yield "time", span_of(view.seconds), ""
    yield "traffic", amount(view.bytes_up + view.bytes_down), f"{amount(view.bytes_up)} up"


def facts(view: JobView) -> Element:
    """Return what was submitted."""
    return settings(
        {
            "job": tag("code", view.job),
            "rule": view.rule,
            "app": tag("code", view.app),
            "submitted": moment(view.submitted),
            "evaluators": str(view.evaluators),
        }
    )


def sites(followed: FollowedJob) -> Element:
    """Return what the sites are doing."""
    newest = followed.versions.get(followed.view.version)
    weights = newest.contributions if newest else {}
    everybody = followed.view.sites
    rows = [
        (
            site.site,
            badge(site.state),
            _training(site),
            f"{site.loss:.4f}" if site.loss is not None else "–",
            f"{site.examples:,}",
            f"{weights[site.site]:.4g}" if site.site in weights else "–",
        )
        for site in everybody[:SITES]
    ]
    rest = len(everybody) - SITES
    columns = ("site", "state", "epochs", "loss", "examples", "weight")
    return tag(
        "div",
        table(columns, rows, "Sites of the job", "No site takes part yet.", columns[3:]),
        tag("p", f"… and {rest} more sites.", class_="soft") if rest > 0 else None,
    )


def _training(site: SiteProgress) -> Child:
    if site.state != "training" or not site.epochs:
        return ""
    return tag("span", bar(site.epoch, site.epochs, f"epoch {site.epoch} of {site.epochs}"), class_="epochs")


def feed(followed: FollowedJob) -> Element:
    """Return what happened, newest first."""
    events = [_event(event) for event in reversed(followed.events)]
    if not events:
        return tag("p", "Nothing has happened yet.", class_="empty")
    return tag("ol", events, class_="feed", tabindex=0, aria_label="What happened, newest first")


def _event(event: EventView) -> Element:
    return tag(
        "li",
        moment(event.time),
        tag("span", event.text),
        id=f"event-{event.sequence}",
        data_kind=event.kind,
    )


def versions(followed: FollowedJob) -> Element:
    """Return the newest versions as a table."""
    newest = sorted(followed.versions, reverse=True)[:VERSIONS]
    rows = [tuple(_version(followed.versions[number])) for number in newest]
    columns = ("version", "time", "metrics", "updates", "contributions", "remarks")
    about = "Newest versions"
    return table(columns, rows, about, "There is no model yet.", ("time", "updates"), columns[4:])


def _version(version: VersionView) -> Iterator[Child]:
    yield tag("span", str(version.version), tag("small", f" {version.phase}") if version.phase else None)
    yield span_of(version.seconds)
    yield numbers(version.metrics)
    yield str(version.update_count)
    yield shares(version) or "–"
    yield "; ".join(remarks(version))


def cancelling(view: JobView, token: str) -> Element | None:
    """Return the form that cancels a job; it takes two steps."""
    if view.ended:
        return None
    return tag(
        "details",
        tag("summary", "Cancel this job …"),
        tag(
            "form",
            tag("p", "Training stops at all sites. The last community model is kept."),
            tag("input", type="hidden", name="token", value=token),
            tag("button", f"Cancel {view.name} now", class_="danger"),
            method="post",
            action=f"/jobs/{view.job}/cancel",
        ),
        class_="cancel",
    )
