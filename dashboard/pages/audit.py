"""The audit log: who did what."""

from urllib.parse import urlencode
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import tag
from hansa.common.process.clock import iso
from hansa.dashboard.overview import Overview
from hansa.dashboard.pages.layout import moment, table

SHOWN = 100  # on a page
COLUMNS = ("record", "time", "who", "what", "about", "why")


def records(overview: Overview, words: str = "", before: int = 0) -> Element:
    """Return the newest records, or those before one."""
    if overview.refusal:
        return tag("p", f"The controller does not show its audit log: {overview.refusal}", class_="empty")
    wanted = words.lower().split()
    matching = [
        record
        for record in reversed(overview.records)
        if (not before or record.sequence < before)
        and all(word in f"{record.who} {record.what} {record.about} {record.why}".lower() for word in wanted)
    ]
    shown = matching[:SHOWN]
    rows = [
        (
            str(record.sequence),
            moment(iso(record.at)),
            record.who,
            tag("span", record.what, class_="refused" if record.what in ("refused", "silenced") else None),
            record.about,
            record.why,
        )
        for record in shown
    ]
    empty = f"No record matches {words!r}." if words else "Nothing has been recorded yet."
    more = {"q": words, "before": shown[-1].sequence} if len(matching) > SHOWN else None
    return tag(
        "div",
        table(COLUMNS, rows, "Records, newest first", empty, long=("about", "why")),
        tag("p", tag("a", "older records", href=f"/audit?{urlencode(more)}")) if more else None,
    )
