"""The figures of an accuracy table: what is computed from its runs, and the table as markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from accuracy_table import Row, Table

from hansa.common.methods.starting_loss import STARTING_LOSS
from hansa.common.run.trial import Report
from hansa.common.ui.options import amount

LAST = 5  # evaluations at the end of a run: a single one depends on chance

Run = Mapping[str, Any]


def level(run: Run, last: int = 0) -> float:
    """Return the mean accuracy of all evaluated versions, or of the last ones."""
    return fmean(accuracy for *_, accuracy in run["curve"][-last:])


def site_losses(report: Report) -> dict[str, float] | None:
    """Return the mean and the worst loss of a model among the sites, over the last models.

    Only some rules let sites report the losses of the models that they are given.
    """
    losses = [
        [update["metrics"][STARTING_LOSS] for update in entry["updates"]]
        for entry in report["history"]
        if entry["updates"] and all(STARTING_LOSS in update["metrics"] for update in entry["updates"])
    ][-LAST:]
    if not losses:
        return None
    return {"mean": fmean(map(fmean, losses)), "worst": fmean(map(max, losses))}


def markdown(table: Table, rows: Sequence[Row], runs: Sequence[Sequence[Run]], code: str) -> str:
    """Return a table; `runs` are those of each row, and all are compared with those of the first."""
    cells = [_cells(table, row, own, runs[0]) for row, own in zip(rows, runs, strict=True)]
    titles = max((list(line) for line in cells), key=len)
    lines = [table.title, table.budget, "", _line(["row", *titles]), _line(["---"] * (len(titles) + 1))]
    older = [any(run["code"] != code for run in own) for own in runs]
    for row, line, old in zip(rows, cells, older, strict=True):
        lines.append(_line([row.name + (" †" if old else ""), *(line.get(title, "") for title in titles)]))
    return "\n".join([*lines, *(["", "† measured with other code"] if any(older) else [])])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(table: Table, row: Row, runs: Sequence[Run], first: Sequence[Run]) -> dict[str, str]:
    """Return what a table says about a row, by column."""
    if not runs:
        return {"seeds": "0"}
    cells = {"seeds": str(len(runs))}
    if table.tune:
        cells[table.tune.key] = str(row.changes.get(table.tune.key, ""))
    before = {run["seed"]: level(run) for run in first if run["curve"]}
    evaluated = [run for run in runs if run["curve"]]
    pairs = [level(run) - before[run["seed"]] for run in evaluated if run["seed"] in before]
    cells |= {
        "mean of curve": _spread([level(run) for run in evaluated], _percent),
        "against first row": _spread(pairs, lambda share: f"{share * 100:+.1f}"),
        f"last {LAST}": _spread([level(run, LAST) for run in evaluated], _percent),
        "accuracy": _share(run["accuracy"] for run in runs),
        "best": _share(run["best"] for run in runs),
    }
    losses = [run["site_losses"] for run in runs if run.get("site_losses")]
    for which in ("mean", "worst") if losses else ():
        cells[f"{which} loss of sites"] = _spread([loss[which] for loss in losses], "{:.3f}".format)
    counts = {"merges": "rounds", "updates": "updates", "steps": "steps"}
    counts |= {"virtual": "virtual"} if row.within else {}
    cells |= {title: f"{_mean(runs, field):.0f}" for title, field in counts.items()}
    traffic = {"up": "bytes_up", "down": "bytes_down"}
    cells |= {title: amount(round(_mean(runs, field))) for title, field in traffic.items()}
    return cells | {"seconds": f"{_mean(runs, 'seconds'):.0f}"}


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"


def _spread(values: Sequence[float], write: Callable[[float], str]) -> str:
    """Return mean ± deviation as text."""
    if not values:
        return "–"
    deviation = f" ± {write(stdev(values)).lstrip('+')}" if len(values) > 1 else ""
    return write(fmean(values)) + deviation


def _share(values: Iterable[float | None]) -> str:
    """Return the mean of some shares as text, with the range."""
    shares = [value for value in values if value is not None]
    if not shares:
        return "–"
    spread = f" ({_percent(min(shares))} – {_percent(max(shares))})" if len(shares) > 1 else ""
    return f"{_percent(fmean(shares))} %{spread}"


def _mean(runs: Sequence[Run], field: str) -> float:
    return fmean(run[field] for run in runs)
