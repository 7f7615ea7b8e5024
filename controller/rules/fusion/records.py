"""What FedDAF asks of an examination, what that finds, and what the weigher remembers and reports."""

from collections.abc import Iterable

from pydantic import BaseModel, JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.ids import SiteName
from hansa.controller.plugin.naming import UpdateName

BaseAndSteps = tuple[float, int]  # of an update: its base weight and its optimizer steps


class Question(Value):
    """What an examination has to find out about the contributions of a merge."""

    fit: int | None  # the number of the fit; None: only remember the statistics
    seed: int
    recalled: dict[
        SiteName, BaseAndSteps
    ] = {}  # sites outside the merge whose last updates are fitted as well
    forgotten: tuple[SiteName, ...] = ()  # sites whose statistics are no longer needed


class Groups(Value):
    """What a fit found: which updates form groups, and the weights that follow."""

    fit: int
    kind: str  # of statistics: norm or weights
    numbers: int  # of them that differ between contributions
    rank: int  # directions in which they differ by more than noise (R)
    edge: float  # eigenvalues up to here are noise
    top: float  # the largest eigenvalue
    sites: tuple[UpdateName, ...]
    weights: tuple[float, ...]  # p
    boost: tuple[float, ...]  # p/a
    allocation: tuple[tuple[float, ...], ...]  # r, a row for each site
    shares: tuple[float, ...]  # π
    why: str = ""  # why the weights are the base weights
    warning: str = ""

    def shown(self) -> dict[str, JsonValue]:
        """Return the groups as operators see them."""
        numbers = self.model_dump(mode="json", exclude={"sites", "weights", "boost", "allocation"})
        return {
            **numbers,
            "components": len(self.shares),
            "weights": dict(zip(self.sites, self.weights, strict=True)),
            "allocation": {name: list(row) for name, row in zip(self.sites, self.allocation, strict=True)},
        }


class Result(Value):
    """The result of an examination."""

    remembered: tuple[SiteName, ...] = ()  # sites whose statistics are kept
    grouped: Groups | None = None  # None: no fit was asked for


class Fusing(BaseModel):
    """What the weigher remembers. The fit in use is the newest one whose groups were believed."""

    boost: dict[UpdateName, float] = {}  # by the fit in use
    groups: int = 1  # in the fit in use
    lapses: int = 0  # later fits in a row that found one group and were not believed
    fits: int = 0  # started so far
    failures: int = 0  # of the newest fits, in a row
    since: int = 0  # merges since the newest fit
    tried: tuple[UpdateName, ...] = ()  # updates whose statistics the newest fit was to see
    known: dict[SiteName, BaseAndSteps] = {}  # of the updates whose statistics are kept
    base: dict[UpdateName, float] = {}  # base weight of every site's last update
    version: int = 0  # that the fit in use was made for
    asked: Question | None = None  # for the merge that is being weighed
    report: dict[str, JsonValue] = {}  # what its fit found, for operators

    def forget(self, sites: Iterable[SiteName]) -> None:
        """Drop sites whose statistics are no longer kept."""
        self.known = {site: update for site, update in self.known.items() if site not in set(sites)}

    def note_fit(self, number: int, seen: tuple[UpdateName, ...], failed: bool) -> None:
        """Count a fit that has ended."""
        self.fits, self.since, self.tried = number, 0, seen
        self.failures = min(self.failures + 1, 30) if failed else 0

    def use(self, groups: Groups, version: int) -> None:
        """Let a fit take the place of the one in use."""
        self.boost = dict(zip(groups.sites, groups.boost, strict=True))
        self.groups, self.lapses, self.version = len(groups.shares), 0, version
        self.report = groups.shown()

    def keep(self, groups: Groups, patience: int) -> None:
        """Stay with the fit in use though a newer one found one group, and say so."""
        self.lapses += 1
        numbers = groups.model_dump(
            mode="json", include={"fit", "kind", "numbers", "rank", "edge", "top", "why"}
        )
        stays = f"the fit of version {self.version}, with {self.groups} groups, stays in use"
        warning = f"{stays} ({self.lapses} of {patience} times): {groups.why}"
        self.report = {
            **numbers,
            "of": self.version,
            "components": 1,
            "kept": self.lapses,
            "warning": "; ".join(filter(None, (warning, groups.warning))),
        }

    def report_trouble(self, trouble: str) -> None:
        """Say which weights are used instead of those of a fit that failed."""
        if self.asked is None or self.asked.fit is None:
            warning = f"statistics of updates could not be remembered: {trouble}"
        else:
            instead = (
                f"the fit of version {self.version} stays in use" if self.version else "base weights are used"
            )
            warning = f"no fit was made, {instead}: {trouble}"
        self.report = {"fit": self.fits, "of": self.version, "warning": warning}


def fitted_names(present: Iterable[UpdateName], recalled: Iterable[SiteName]) -> tuple[UpdateName, ...]:
    """Return the names of all updates that a fit sees, in order."""
    return tuple(sorted({*present, *recalled}))
