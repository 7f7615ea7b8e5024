"""Federations from a script: `hansa run` as a separate process, and a summary of its report.

The comparisons in examples/ and sweeps with `--processes` use it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hansa.common.values.errors import HansaError
from hansa.common.values.results import OWN
from hansa.common.values.wording.words import in_order

Report = dict[str, Any]  # the contents of report.json


def run_trial(
    job: Path, out: Path, changes: Mapping[str, object] | None = None, slow: Mapping[str, float] | None = None
) -> Report:
    """Run a job to its end, with changes by dotted path; its report, model and logs stay in `out`."""
    ended = run_process(job, out, changes, slow)
    if ended["status"] != "completed":
        raise HansaError(f"{job}: the federation did not complete: {ended['reason']}")
    report: Report = json.loads((out / "report.json").read_text())
    return report


def run_process(
    job: Path,
    out: Path,
    changes: Mapping[str, object] | None = None,
    slow: Mapping[str, float] | None = None,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """Run `hansa run`, and return what it says of the job, which may have failed."""
    words = [sys.executable, "-m", "hansa", "run", str(job), "--out", str(out), "--json", *more]
    for key, value in (changes or {}).items():
        words += ["--set", f"{key}={json.dumps(value)}"]  # JSON is YAML
    for site, factor in (slow or {}).items():
        words += ["--slow", f"{site}={factor:g}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate()
    except BaseException:
        process.terminate()  # politely: it ends every process of the federation
        process.wait()
        raise
    if output.startswith("{"):  # it ran; there may be warnings among the errors
        ended: dict[str, Any] = json.loads(output)
        return ended
    raise HansaError(
        errors.strip().removeprefix("hansa: ") or f"{job}: `hansa run` ended with code {process.returncode}"
    )


@dataclass(frozen=True)
class Outcome:
    """How good a federation's model became, and what that cost."""

    accuracy: float | None  # of the last version that was evaluated on enough examples
    best: float | None  # the best of all such versions
    loss: float | None
    rounds: int  # merges
    updates: int  # that were merged; if models travelled, those of every hop
    updates_by_site: Mapping[str, int]
    steps: int  # optimizer steps in the merged updates, likewise
    # The time if only optimizer steps took time: 1 for a step at a site that is not slowed down.
    virtual: float
    bytes_up: int
    bytes_down: int
    seconds: float  # from the first model to the last, without the start of the processes
    curve: tuple[tuple[int, float, float], ...]  # version, seconds, accuracy


def outcome(
    report: Report,
    slow: Mapping[str, float] | None = None,
    within: float | None = None,
    personal: bool = False,
) -> Outcome:
    """Summarise a report, or only the part of it `within` some virtual time.

    Accuracy and loss are those of the versions or, if they are to be `personal`, of the sites' own models.
    """
    start = report["history"][0]["seconds"] if report["history"] else 0.0
    times = virtual_times(report, slow or {})
    history = [e for e, at in zip(report["history"], times, strict=True) if within is None or at <= within]
    accuracy, loss = (name + OWN * personal for name in ("accuracy", "loss"))
    measured = [entry for entry in history if entry["covered"] and entry["metrics"].get(accuracy) is not None]
    curve = tuple((e["version"], round(e["seconds"] - start, 1), e["metrics"][accuracy]) for e in measured)
    trainings = [training for entry in history for hop in _trainings(entry) for training in hop]
    merged = [training.site for training in trainings]
    return Outcome(
        accuracy=curve[-1][-1] if curve else None,
        best=max((share for *_, share in curve), default=None),
        loss=measured[-1]["metrics"][loss] if measured else None,
        rounds=max(len(history) - 1, 0),
        updates=len(merged),
        updates_by_site={site: merged.count(site) for site in sorted(set(merged), key=in_order)},
        steps=sum(training.steps for training in trainings),
        virtual=times[len(history) - 1] if history else 0.0,
        bytes_up=sum(entry["bytes_up"] for entry in history),
        bytes_down=sum(entry["bytes_down"] for entry in history),
        seconds=round(history[-1]["seconds"] - start, 1) if history else 0.0,
        curve=curve,
    )


def virtual_times(report: Report, slow: Mapping[str, float]) -> list[float]:
    """Return when each version would appear if only optimizer steps took time, longer at `slow` sites.

    Sites on one machine compete for it, and other work slows all of them down, so seconds say little. The
    versions that updates started from, and those that they were merged into, show what had to wait for what.
    """
    free: dict[str, float] = {}  # when each site finished its last task
    times: list[float] = []
    for entry in report["history"]:
        at = times[-1] if times else 0.0
        *hops, last = _trainings(entry)
        for hop in hops:  # each hop waits for the previous one
            at += max((steps * slow.get(site, 1) for site, steps, _ in hop), default=0.0)
        begun = at
        for site, steps, stale in last:
            start = begun if hops else times[entry["version"] - 1 - stale]
            free[site] = max(free.get(site, 0.0), start) + steps * slow.get(site, 1)
            at = max(at, free[site])
        times.append(at)
    return times


class _Training(NamedTuple):
    """The training of one update."""

    site: str
    steps: int
    stale: int  # versions


def _trainings(entry: Mapping[str, Any]) -> list[list[_Training]]:
    """Return the trainings that a version is made of; if models travelled, for each hop in turn."""
    hops = [hop["steps"] for hop in entry.get("hops", ()) if hop.get("steps")]
    if hops:
        return [[_Training(site, steps, 0) for site, steps in hop.items()] for hop in hops]
    return [[_Training(u["site"], u["steps"], u["staleness"][0]) for u in entry["updates"]]]
