"""A job's versions as text: metrics, contributions and remarks, for tables."""

from collections.abc import Mapping

from hansa.common.ui.options import print_table
from hansa.common.values.history import Findings, VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import metrics_missing, remarks
from hansa.common.values.wording.words import in_order, listed, share_of

SHOWN = 10  # contributions of a version in the table; JSON has all


def print_versions(view: JobView) -> None:
    """Print the table of a job's versions; without metrics if the job has none."""
    unmeasured = metrics_missing(view)
    tested = any(entry.test for entry in view.history)
    compared = any(entry.distance is not None for entry in view.history)
    rows = [
        (
            str(entry.version),
            f"{entry.round} ({entry.phase})" if entry.phase else str(entry.round),
            f"{entry.seconds:.1f}",
            *(() if unmeasured else (numbers(entry.metrics), _coverage(entry))),
            *((_on_test_sites(entry.test),) if tested else ()),
            *(("-" if entry.distance is None else f"{entry.distance:.4f}",) if compared else ()),
            shares(entry),
            "; ".join(remarks(entry)),
        )
        for entry in view.history
    ]
    distance = ("distance",) if compared else ()
    metrics = () if unmeasured else ("metrics", "examples")
    test = ("test sites",) if tested else ()
    titles = ("version", "round", "seconds", *metrics, *test, *distance, "contributions", "remarks")
    print_table(titles, rows, "no model yet")


def shares(entry: VersionView) -> str:
    """Return the weight of each site's update."""
    weights = (f"{site} {entry.contributions[site]:g}" for site in sorted(entry.contributions, key=in_order))
    return listed(weights, SHOWN)


def numbers(metrics: Mapping[str, float | None]) -> str:
    """Return metrics in a few characters."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if value is not None) or "-"


def _coverage(entry: Findings) -> str:
    return share_of(entry.examples, entry.examples_total, entry.drawn) if entry.examples else "-"


def _on_test_sites(findings: Findings | None) -> str:
    """Return what a job's test sites found in a version."""
    if findings is None or not findings.examples:
        return "-"
    return f"{numbers(findings.metrics)} ({_coverage(findings)})"
