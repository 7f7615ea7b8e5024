"""What FedDAF asks of an examination, what it finds, what the weigher remembers, and what operators are told."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.ids import SiteName
from hansa.controller.plugin.view import Contribution


class Asked(Value):
    """What is to be found out about the contributions of a merge."""

    fit: int | None  # the number of the fit; None: statistics are only to be remembered
    seed: int
    recalled: dict[
        SiteName, tuple[float, int]
    ] = {}  # others who take part in it: base weights and optimizer steps
    forgotten: tuple[SiteName, ...] = ()  # whose statistics are no longer needed


class Grouped(Value):
    """What a fit found: who belongs together, and what that is worth."""

    fit: int
    kind: str  # of statistics: norm or weights
    numbers: int  # of them that differ between contributions
    rank: int  # directions in which they differ by more than noise (R)
    edge: float  # eigenvalues up to here are noise
    top: float  # the largest
    sites: tuple[SiteName, ...]
    weights: tuple[float, ...]  # p
    boost: tuple[float, ...]  # p/a
    allocation: tuple[tuple[float, ...], ...]  # r, a row for each site
    shares: tuple[float, ...]  # π
    why: str = ""  # why the weights are the base weights
    warning: str = ""

    def shown(self) -> dict[str, JsonValue]:
        """Return it as operators see it."""
        numbers = self.model_dump(mode="json", exclude={"sites", "weights", "boost", "allocation"})
        return {
            **numbers,
            "components": len(self.shares),
            "weights": dict(zip(self.sites, self.weights, strict=True)),
            "allocation": {site: list(row) for site, row in zip(self.sites, self.allocation, strict=True)},
        }


class Found(Value):
    """What came of looking at the models of a merge."""

    remembered: tuple[SiteName, ...] = ()  # whose statistics are kept
    grouped: Grouped | None = None


class Fusing(BaseModel):
    """What the weigher remembers."""

    boost: dict[SiteName, float] = {}  # of the fit that counts
    groups: int = 1  # that it found
    lapses: int = 0  # later fits in a row that found one group and did not take its place
    fits: int = 0  # that were begun
    failures: int = 0  # of the last of them in a row
    since: int = 0  # merges since the last of them
    tried: tuple[SiteName, ...] = ()  # whose statistics it was to see
    known: dict[
        SiteName, tuple[float, int]
    ] = {}  # base weight and steps of the updates whose statistics are kept
    base: dict[SiteName, float] = {}  # of every site's last update
    version: int = 0  # that the fit that counts was made for
    asked: Asked | None = None  # of the merge that is being weighed
    told: dict[str, JsonValue] = {}  # what its fit found


def kept_words(state: Fusing, found: Grouped, patience: int) -> dict[str, JsonValue]:
    """Say that an earlier fit counts on, and what the new one found."""
    numbers = found.model_dump(mode="json", include={"fit", "kind", "numbers", "rank", "edge", "top", "why"})
    stays = f"the fit of version {state.version}, with {state.groups} groups, counts on"
    warning = f"{stays} ({state.lapses} of {patience} times): {found.why}"
    told: dict[str, JsonValue] = {**numbers, "of": state.version, "components": 1, "kept": state.lapses}
    return told | {"warning": "; ".join(filter(None, (warning, found.warning)))}


def trouble_words(state: Fusing, trouble: str) -> str:
    """Say what counts in the place of a fit that failed."""
    if state.asked is None or state.asked.fit is None:
        return f"statistics of updates could not be remembered: {trouble}"
    instead = f"the fit of version {state.version} counts on" if state.version else "base weights count"
    return f"no fit was made, {instead}: {trouble}"


def travelled(contributions: Sequence[Contribution]) -> bool:
    """Whether updates are models that have been at several sites (`pace: redistribute`)."""
    return any(c.task.hop > 1 for c in contributions)


def statistics_name(c: Contribution) -> SiteName:
    """Return whose statistics an update has: its site's or, if it has been at several, its slot's for this merge."""
    return SiteName(f"slot {c.task.slot}") if c.task.hop > 1 else c.site  # no site's name has a blank in it


def everybody(present: Iterable[SiteName], recalled: Iterable[SiteName]) -> tuple[SiteName, ...]:
    """Return all whose statistics a fit sees, in order."""
    return tuple(sorted({*present, *recalled}))
