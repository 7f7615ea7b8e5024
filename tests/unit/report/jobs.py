"""Jobs to report on, as their controllers would show them."""

import random
from collections.abc import Sequence

from hansa.common.values.history import Finding, Hop, Score, Update, VersionView
from hansa.common.values.views import JobView, Shortfall

SITES = ("north", "south", "east")


def version(number: int, sites: Sequence[str] = SITES, **more: object) -> VersionView:
    """Return a version that was merged from an update of each site."""
    chance = random.Random(number)
    updates = [
        {
            "site": site,
            "weight": 10.0,
            "examples": 100,
            "used": 100,
            "steps": 7,
            "seconds": 1.5,
            "bytes_up": 4000,
            "loss": 1 / number + chance.random() / 100,
        }
        for site in sites
    ]
    usual: dict[str, object] = {
        "version": number,
        "round": number,
        "seconds": 2.0 * number,
        "updates": updates,
        "metrics": {"accuracy": 1 - 0.5 / number, "loss": 1 / number},
        "examples": 60,
        "examples_total": 60,
        "covered": True,
        "evaluated": True,
        "bytes_up": 12000,
        "bytes_down": 15000,
        "digest": f"{number:064x}",
        "evaluations": {
            site: {"examples": 20, "metrics": {"accuracy": 0.5, "loss": 1 / number}} for site in sites
        },
        "confusion": [[20, 5], [3, 32]],
    }
    return VersionView.model_validate(usual | more)


def job(history: Sequence[VersionView], **more: object) -> JobView:
    """Return a completed job with a history."""
    last = history[-1] if history else None
    usual: dict[str, object] = {
        "job": "j1234abcd",
        "name": "tumours",
        "rule": "fedavg",
        "app": "app.py:app",
        "status": "completed",
        "reason": "all rounds are done",
        "version": last.version if last else 0,
        "rounds": len(history),
        "rounds_asked": len(history),
        "seconds": last.seconds if last else 0.0,
        "submitted": "2026-11-18T20:15:30+00:00",
        "metrics": last.metrics if last else {},
        "metrics_version": last.version if last else None,
        "examples": 60 if last else 0,
        "examples_total": 60,
        "bytes_up": 12000 * len(history),
        "bytes_down": 15000 * len(history),
        "evaluators": 3,
        "history": tuple(history),
    }
    return JobView.model_validate(usual | more)


def eventful(name: str) -> JobView:
    """Return a job in which everything happens that a report shows, at sites of which one has a name."""
    sites = (name, *SITES)
    updates = [
        Update(site=site, weight=0.5, examples=9, steps=3, staleness=(at, 3)) for at, site in enumerate(sites)
    ]
    score = Score(
        value=0.5, basis="pooled", coverage=1.0, found={site: Finding(score=0.4, n=5) for site in sites}
    )
    fit = {
        "fit": 1,
        "shares": [0.5, 0.5],
        "allocation": {site: [1.0, 0.0] if at % 2 else [0.4, 0.6] for at, site in enumerate(sites)},
        "weights": dict.fromkeys(sites, 0.25),
    }
    passes = {"phase": "prepass", "divergences": {"eq3": [0.1, 0.2]}, "layers": [name, "head"], "split": 1}
    hop = Hop(
        hop=1, seconds=1.0, trained=2, sites=[name, "north"], skipped=1, lost={"south": name}, divergence=0.2
    )
    history = [
        version(1, sites, updates=updates, scores=dict.fromkeys(sites, score), diagnostics={"weigh": fit}),
        version(
            2, sites, lost={name: name}, note=name, diagnostics={"layers": passes, "server": {name: 1.0}}
        ),
        version(3, sites, hops=[hop, hop.model_copy(update={"hop": 2})], unevaluated={name: name}),
        version(4, sites, diagnostics={"server": {"norms": {name: 2.0, "north": 3.0}}}, phase=name),
    ]
    shortfall = Shortfall(site=name, contributed=1, asked=4, failures=3, reason=name)
    return job(
        history, name=name, rule=name, app=name, reason=name, warnings=(name,), shortfalls=(shortfall,)
    )
