"""What was run, and how to run it again."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from hansa.common.drawing.markup import Child, tag
from hansa.common.report.layout import Section, facts, more, worded
from hansa.common.report.material import RESOLVED, Material


def reproduction(material: Material) -> Section:
    """Return what was run and how to run it again, with the whole job."""
    view = material.view
    parts = [facts(_about(material))]
    if view.resolved is not None:
        job = dict(view.resolved.job) | ({"data": material.data} if material.data else {})
        text = yaml.safe_dump(job, sort_keys=False, allow_unicode=True, width=100)
        parts.append(more("The job with every default filled in", tag("pre", text)))
    return Section("again", "How to run it again", _lead(material), parts)


def _lead(material: Material) -> str:
    """Say what leads to the same result, and what does not."""
    simulated = bool(material.simulation)
    if not material.view.resolved:
        return ""
    rounds = "The same job with the same data, seed and software gives the same models, bit for bit"
    asynchronous = "Without rounds, the result depends on the order in which updates arrive"
    if material.view.unit == "round":
        return f"{rounds}, as long as all sites take part in the same rounds."
    return f"{asynchronous}, which a simulation repeats exactly." if simulated else f"{asynchronous}."


def _about(material: Material) -> Iterator[tuple[str, Child]]:
    view = material.view
    if material.folder:
        words = ["hansa", "simulate" if material.simulation else "run", RESOLVED]
        yield "Command", (tag("code", shlex.join(words)), " in the folder of this report")
    else:
        yield "Job", tag("code", f"hansa job show {view.job} --json")
    resolved = view.resolved
    job: Mapping[str, Any] = resolved.job if resolved else {}
    yield "Rule", f"{view.rule or job.get('rule', '–')}"
    yield "App", tag("code", f"{view.app or job.get('app', '–')}")
    if "seed" in job:
        yield "Seed", f"{job['seed']}"
    if material.data:
        yield "Data", _data(material.data)
    if resolved:
        yield "Software", f"Hansa {resolved.made_with.hansa}{_packages(resolved.made_with.packages)}"
    if material.threads is not None:
        yield "Threads", f"{material.threads} of PyTorch at each site"
    if material.simulation:
        settings = material.simulation.get("settings", {})
        workers = material.simulation.get("workers")
        yield (
            "Simulation",
            f"{material.simulation.get('sites')} sites, workers: {workers}, {_short(settings)}",
        )
    last = view.history[-1] if view.history else None
    if last:
        yield "Last model", tag("code", f"version {last.version}, digest {last.digest[:32]}…")
        if view.kept:
            best = (f"{number} (the best)" if number == view.best else f"{number}" for number in view.kept)
            yield "Kept models", f"{'version' if len(view.kept) == 1 else 'versions'} {', '.join(best)}"
        if last.receipt:
            yield (
                "Receipt",
                (
                    tag("code", f"{last.receipt[:32]}…"),
                    worded(f" (`hansa job verify {view.job}` follows the chain)"),
                ),
            )


def _packages(packages: Mapping[str, str]) -> str:
    others = [f"{name} {version}" for name, version in packages.items() if name != "hansa"]
    return f", with {', '.join(others)}" if others else ""


def _data(data: object) -> str:
    """Describe where the data came from in one line."""
    if not isinstance(data, dict):
        return f"{data}"
    if "files" in data:
        return f"files of {len(data['files'])} sites"
    return f"{data.get('source')}, {data.get('sites')} sites, partition {_short(data.get('partition'))}"


def _short(document: object) -> str:
    """Write a small document in one line; what says nothing is left out."""
    if isinstance(document, dict):
        return ", ".join(
            f"{name} {_short(value)}" for name, value in document.items() if value not in (None, {}, False)
        )
    if isinstance(document, list):
        return " ".join(map(_short, document))
    return f"{document:g}" if isinstance(document, float) else f"{document}"
