"""The groups of similar sites that FedDAF finds, in its newest fit and over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from pydantic import BaseModel, ValidationError

from hansa.common.drawing.bars import bars
from hansa.common.drawing.curves import curves
from hansa.common.drawing.matrix import heat_map
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.thinning import Series
from hansa.common.report.layout import Section, figure, figures, table
from hansa.common.report.progress import axis_of
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import in_order, listed

MOST = 60  # sites of a picture whose names can be read
LISTED = 20  # sites of a group that are listed
CLEAR = 0.9  # a site that belongs to its group by less than this is shown with its share


class Fit(BaseModel):
    """A fit of the weigher `fusion`, as it reports it; what does not look like this is of another weigher."""

    shares: Sequence[float]  # of the groups
    allocation: Mapping[str, Sequence[float]]  # how much of each site belongs to each group
    weights: Mapping[str, float]  # of the sites
    why: str = ""  # why there are no groups


@dataclass(frozen=True)
class Group:
    """The sites that mostly belong to a group."""

    number: int
    sites: tuple[str, ...]
    names: tuple[str, ...]  # with their shares where they belong to several groups
    weight: float


def fits_of(view: JobView) -> list[tuple[int, Fit]]:
    """Return all fits with the versions that they were made for."""
    fits = []
    for entry in view.history:
        report = entry.diagnostics.get("weigh", {})
        if "allocation" in report:
            try:
                fit = Fit.model_validate(report)
            except ValidationError:
                continue
            if all(len(row) == len(fit.shares) for row in fit.allocation.values()):
                fits.append((entry.version, fit))
    return fits


def groups_of(fit: Fit) -> list[Group]:
    """Return each group with the sites that mostly belong to it."""
    members: list[list[str]] = [[] for _ in fit.shares]
    for site in sorted(fit.allocation, key=in_order):
        row = fit.allocation[site]
        members[max(range(len(row)), key=row.__getitem__)].append(site)
    return [
        Group(
            number,
            tuple(sites),
            tuple(_with_share(site, fit.allocation[site][number - 1]) for site in sites),
            sum(fit.weights.get(site, 0.0) for site in sites),
        )
        for number, sites in enumerate(members, 1)
    ]


def _with_share(site: str, share: float) -> str:
    return site if share >= CLEAR else f"{site} ({share:.0%})"


def groups(view: JobView) -> Section:
    """Return the groups of the newest fit, and how many each fit had."""
    title, fits = "Groups of similar sites", fits_of(view)
    if not fits:
        return Section("groups", title)
    version, fit = fits[-1]
    lead = f"The newest of {len(fits)} fits is that of version {version}."
    if fit.why:
        lead += f" It has no groups: {fit.why}."
    rows = [
        (f"group {each.number}", listed(each.names, LISTED), f"{len(each.sites)}", f"{each.weight:.1%}")
        for each in groups_of(fit)
    ]
    columns = ("", "members", "sites", "weight")
    drawn = figures(_allocation(fit), _weights(fit), _over_time(view, fits))
    return Section("groups", title, lead, [table(columns, rows, words=(0, 1)), *drawn])


def _allocation(fit: Fit) -> Element | None:
    if len(fit.shares) < 2:
        return None
    sites = sorted(fit.allocation, key=in_order)[:MOST]
    names = [f"group {number}" for number in range(1, len(fit.shares) + 1)]
    rows = [fit.allocation[site] for site in sites]
    picture = heat_map("Sites and groups", rows, sites, names, lambda value: f"{value:.2f}")
    return figure("How much of each site belongs to each group", picture)


def _weights(fit: Fit) -> Element | None:
    sites = sorted(fit.weights, key=in_order)[:MOST]
    if not sites:
        return None
    picture = bars(
        "Weights", [(site, [fit.weights[site]]) for site in sites], form=lambda value: f"{value:.1%}"
    )
    caption = "Groups share the model among them, and within a group its sites do." if fit.shares[1:] else ""
    return figure("The weight of each site", picture, caption)


def _over_time(view: JobView, fits: Sequence[tuple[int, Fit]]) -> Element | None:
    if len(fits) < 3:
        return None
    series = [Series("", [(version, len(fit.shares)) for version, fit in fits])]
    picture = curves("Number of groups", series, axis_of(view), Axis("groups", whole=True, zero=True))
    return figure("Groups in every fit", picture)
