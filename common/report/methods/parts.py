"""The numbers that any part of a rule reports, over time: its own ones, and those by site."""

from collections.abc import Iterator

from pydantic import JsonValue

from hansa.common.drawing.curves import curves
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.thinning import Point, Series
from hansa.common.report.layout import Section, figure, figures
from hansa.common.report.material import sites_of
from hansa.common.report.progress import axis_of
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import in_order

PICTURES = 6
KNOWN = {"fit", "phase"}  # reports of FedDAF and Divide-and-Conquer, which have sections of their own


def parts(view: JobView) -> Section:
    """Return the curves of what parts report; numbers that never change have none."""
    lines: dict[str, dict[str, list[Point]]] = {}
    sites = set(sites_of(view))
    for entry in view.history:
        for point, report in entry.diagnostics.items():
            if KNOWN & report.keys():
                continue
            for name, value in report.items():
                for site, number in _numbers(value, sites):
                    curve = lines.setdefault(f"{point}: {name}", {}).setdefault(site, [])
                    curve.append((entry.version, number))
    changing = {
        name: by_site
        for name, by_site in lines.items()
        if len({value for points in by_site.values() for _, value in points}) > 1
    }
    drawn = [
        figure(
            name,
            curves(
                name,
                [Series(site, by_site[site]) for site in sorted(by_site, key=in_order)],
                axis_of(view),
                Axis(name.partition(": ")[2]),
            ),
        )
        for name, by_site in list(changing.items())[:PICTURES]
    ]
    return Section("rule", "What the rule reports", "", figures(*drawn))


def _numbers(value: JsonValue, sites: set[str]) -> Iterator[tuple[str, float]]:
    """Yield a number, or those of sites; other values are not for curves."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield "", float(value)
    elif isinstance(value, dict):
        for site, number in value.items():
            if site in sites and isinstance(number, int | float) and not isinstance(number, bool):
                yield site, float(number)
