"""What happened besides: warnings, sites that contributed little, updates that were lost, notes."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from hansa.common.report.layout import Section, notice, table
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import shortfall_line
from hansa.common.values.wording.words import by_reason, counted

NAMED = 12  # sites that contributed little with a line each


def notices(view: JobView) -> list[Element]:
    """Return what nobody should miss: why a job failed, doubtful settings, sites that were missing."""
    drawn = []
    if view.status == "failed":
        drawn.append(notice("bad", "The job failed", view.reason))
    if view.warnings:
        drawn.append(notice("warn", "Settings that are probably not intended", *view.warnings))
    if view.shortfalls:
        lines = [shortfall_line(each) for each in view.shortfalls[:NAMED]]
        rest = len(view.shortfalls) - len(lines)
        lines += [f"and {counted(rest, 'more site')}"] if rest else []
        drawn.append(notice("warn", "Sites that contributed nothing or little", *lines))
    return drawn


def events(view: JobView) -> Section:
    """Return the table of what went wrong or is worth a remark, version by version."""
    rows = [
        (f"{entry.version}", f"{entry.seconds:.1f}", kind, what)
        for entry in view.history
        for kind, what in _remarks(entry)
    ]
    if not rows:
        return Section("events", "What happened besides")
    lost = sum(len(entry.lost) + sum(len(hop.lost) for hop in entry.hops) for entry in view.history)
    lead = f"{counted(lost, 'update')} did not arrive. The job went on without them." if lost else ""
    parts = [table((view.unit, "seconds", "", "what"), rows, words=(2, 3))]
    return Section("events", "What happened besides", lead, parts)


def _remarks(entry: VersionView) -> Iterator[tuple[str, str]]:
    """Yield what is worth knowing about a version."""
    for line in by_reason(entry.lost):
        yield "lost", line
    for hop in entry.hops:
        for line in by_reason(hop.lost):
            yield "lost", f"hop {hop.hop}: {line}"
        if hop.trouble:
            yield "hop", f"hop {hop.hop}: {hop.trouble}"
    for line in by_reason(entry.unevaluated | (entry.test.unevaluated if entry.test else {})):
        yield "not evaluated", line
    if entry.still:
        yield "kept", "the model was kept as it was: the weights of the updates were not finite"
    if entry.note:
        yield "note", entry.note
    for warning in entry.warnings:
        yield "warning", warning
