"""How sites found one another's updates (DVW): a matrix of the newest ones, and the scores over time."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import curves
from hansa.common.drawing.matrix import heat_map
from hansa.common.drawing.scale import Axis, brief
from hansa.common.drawing.thinning import Point, Series
from hansa.common.report.layout import Section, figure, figures
from hansa.common.report.progress import axis_of
from hansa.common.values.history import Score
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import in_order

MOST = 60  # sites of a matrix whose names can be read
PALEST = 0.08  # the shade of the lowest score


def scores(view: JobView) -> Section:
    """Return the scores of updates, if the rule has them evaluated."""
    title = "Scores of the updates"
    newest: dict[str, Score] = {}
    points: dict[str, list[Point]] = {}
    for entry in view.history:
        for update in entry.updates:
            score = entry.scores.get(update.site)
            if score is not None:
                newest[update.site] = score
                points.setdefault(update.site, []).append((entry.version, score.value))
    if not newest:
        return Section("scores", title)
    lead = (
        "Before an update is merged, all sites evaluate it on data that nobody trains on."
        " The score over all their examples becomes its weight."
    )
    series = [Series(site, points[site]) for site in sorted(points, key=in_order)]
    over_time = curves("Score of each site's updates", series, axis_of(view), Axis("score"))
    return Section(
        "scores",
        title,
        lead,
        figures(figure("Score of each site's updates", over_time), _matrix(newest)),
    )


def _matrix(newest: Mapping[str, Score]) -> Element | None:
    """Draw what each site found in the newest update of each other."""
    rows = sorted(newest, key=in_order)[:MOST]
    columns = sorted({site for score in newest.values() for site in score.found}, key=in_order)[:MOST]
    values = [[_found(newest[row], column) for column in columns] for row in rows]
    known = [value for row in values for value in row if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    picture = heat_map(
        "Scores by site",
        values,
        rows,
        columns,
        lambda value: f"{value:.2f}",
        down="update of",
        across="evaluated by",
        shades=[[_shade(value, low, high) for value in row] for row in values],
    )
    caption = f"The newest update of each site. Shades go from {brief(low)} (pale) to {brief(high)} (dark)."
    return figure("What each site finds in the others' updates", picture, caption + _cut(newest))


def _found(score: Score, site: str) -> float | None:
    finding = score.found.get(site)
    return finding.score if finding else None


def _shade(value: float | None, low: float, high: float) -> float | None:
    if value is None:
        return None
    return PALEST + (1 - PALEST) * ((value - low) / (high - low) if high > low else 1.0)


def _cut(sites: Sequence[str] | Mapping[str, Score]) -> str:
    return f" The first {MOST} of {len(sites)} sites." if len(sites) > MOST else ""
