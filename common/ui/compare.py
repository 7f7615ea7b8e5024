"""`hansa job compare`: jobs side by side, and whether they learn what a reference learns.

Federated-centralized concordance (Nasirigerdeh et al., 2020): δ is the mean squared difference of the test
losses of two jobs, version by version; below ε they count as concordant. DC is how far the last models are
apart, relative to the reference's: ‖w − w′‖/‖w′‖.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from hansa.common.models.checkpoints import load_checkpoint
from hansa.common.models.distance import distance as relative_distance
from hansa.common.models.frames import Layout, cut, views
from hansa.common.models.model import Manifest
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.client import Client
from hansa.common.ui.jobs import SUMMARY, ask, numbers, summary
from hansa.common.ui.options import amount, controller_option, json_option, print_json, print_table
from hansa.common.values.errors import InvalidInput, NotFound
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.common.values.words import cleaned, counted

EPSILON = 0.01
SHOWN = 20  # versions in the table; JSON has all
REPORT, MODEL = "report.json", "model.safetensors"  # what `hansa run` leaves in its folder
COMPARED = {
    "version",
    "round",
    "seconds",
    "metrics",
    "examples",
    "examples_total",
    "covered",
    "bytes_up",
    "bytes_down",
}
Model = tuple[Manifest, np.ndarray]


@dataclass(frozen=True)
class Compared:
    """A job and, if it is needed, its last model."""

    label: str
    view: JobView
    model: Model | None

    @property
    def measured(self) -> list[VersionView]:
        """The versions that were evaluated on enough examples to count."""
        return [entry for entry in self.view.history if entry.covered]

    @property
    def left_out(self) -> int:
        """How many versions were evaluated on fewer: what some sites found cannot be compared with what all found."""
        return sum(bool(entry.examples) and not entry.covered for entry in self.view.history)


@dataclass(frozen=True)
class Concordance:
    """How far a job is from the reference. No number: it could not be told, and `remarks` say why."""

    job: str
    discordance: float | None  # δ
    concordant: bool
    distance: float | None  # DC
    versions: int  # that δ is over
    remarks: list[str] = field(default_factory=list)


@click.command("compare")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB JOB…")
@controller_option
@click.option(
    "--concordance", is_flag=True, help="Say how far each job is from the first: test losses, last models."
)
@click.option(
    "--epsilon",
    type=click.FloatRange(0, min_open=True),
    default=EPSILON,
    show_default=True,
    help="Jobs are concordant if the mean squared difference of their test losses is below it.",
)
@json_option
def command(
    jobs: tuple[str, ...], controller: Endpoint, concordance: bool, epsilon: float, as_json: bool
) -> None:
    """Compare jobs version by version: metrics, bytes, seconds.

    JOB is an id, the beginning of one, a name, or the folder that `hansa run` left.
    """
    if len(jobs) < 2:
        raise InvalidInput("name at least two jobs to compare")
    found = _named_apart([_find(job, controller, concordance) for job in jobs])
    against = [concord(each, found[0], epsilon) for each in found[1:]] if concordance else []
    if as_json:
        print_json(_document(found, against, epsilon))
        return
    _print_jobs(found)
    if against:
        _print_concordance(found[0], against, epsilon)


def discordance(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return δ, the mean squared difference of two series of test losses."""
    with np.errstate(over="ignore"):
        return float(np.mean(np.square(np.subtract(losses, reference))))


def distance(model: Model, reference: Model) -> float:
    """Return DC, the distance of two models' parameters relative to the length of the reference's."""
    (mine, here), (theirs, there) = model, reference
    shapes = {info.name: info.shape for info in mine.spec.tensors}
    odd = next((info for info in theirs.spec.tensors if shapes.get(info.name) != info.shape), None)
    if odd is not None or len(mine.spec.tensors) != len(theirs.spec.tensors):
        raise InvalidInput(f"the models are not alike{f': {odd.name} differs' if odd else ''}")
    held = views(Layout(theirs.spec), there)
    return relative_distance(Layout(mine.spec), cut(here), lambda name, a, b: held[name].reshape(-1)[a:b])


def concord(job: Compared, reference: Compared, epsilon: float) -> Concordance:
    """Say how far a job is from the reference."""
    remarks: list[str] = []
    delta, versions = _delta(job, reference, remarks)
    apart: float | None = None
    if job.model is None or reference.model is None:
        without = job.label if job.model is None else reference.label
        remarks.append(f"{without} has no model, so there is no distance")
    else:
        try:
            apart = distance(job.model, reference.model)
        except InvalidInput as error:
            remarks.append(f"no distance: {error}")
        if job.view.version != reference.view.version:
            last = f"{job.view.version} and {reference.view.version}"
            remarks.append(f"the last models are of versions {last}, so their distance says little")
    return Concordance(job.label, delta, delta is not None and delta < epsilon, apart, versions, remarks)


def _delta(job: Compared, reference: Compared, remarks: list[str]) -> tuple[float | None, int]:
    """Return δ over the versions at which both were measured, and how many these are."""
    mine, theirs = ({entry.version: entry for entry in each.measured} for each in (job, reference))
    common = sorted(mine.keys() & theirs.keys())
    for each, held in ((job, mine), (reference, theirs)):
        if not held:
            missing = (
                "evaluated on too few test examples" if each.left_out else "no evaluator has measured it"
            )
            remarks.append(f"{each.label} has no test losses: {missing}")
        elif each.left_out:
            few = counted(each.left_out, "version")
            remarks.append(f"{few} of {each.label} left out: evaluated on too few of all test examples")
    if not common:
        if mine and theirs:
            remarks.append("there is no version at which both were measured; use the same evaluate.every")
        return None, 0
    if len(common) < max(len(mine), len(theirs)):
        remarks.append(
            f"of {len(mine)} and {len(theirs)} measured versions, {len(common)} are common to both"
        )
    if any(mine[version].examples != theirs[version].examples for version in common):
        remarks.append(
            "the losses are over different numbers of test examples: the test data are not the same"
        )
    pairs = [(mine[version].metrics.get("loss"), theirs[version].metrics.get("loss")) for version in common]
    finite = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(finite) < len(pairs):
        remarks.append(f"at {len(pairs) - len(finite)} versions a loss is not a finite number")
        return None, len(common)
    return discordance([a for a, _ in finite], [b for _, b in finite]), len(common)


def _find(word: str, controller: Endpoint, with_model: bool) -> Compared:
    """Find a job in a folder of `hansa run`, or at the controller."""
    folder = Path(word)
    if folder.is_dir() and (folder / REPORT).exists():
        return _left_by_run(folder, with_model)
    if folder.is_dir() and len(folder.parts) > 1:
        raise InvalidInput(
            f"{word}: there is no {REPORT} in it; is it the folder of a `hansa run` that has ended?"
        )

    async def fetch(client: Client) -> Compared:
        view = await client.show(word)
        model: Model | None = None
        if with_model and view.history:
            try:
                model = await client.model(view.job)
            except NotFound:
                model = None
        return Compared(view.name, view, model)

    return ask(controller, fetch)


def _named_apart(found: Sequence[Compared]) -> list[Compared]:
    """Call jobs by their names, and those of the same name by their ids, too."""
    often = Counter(each.label for each in found)
    return [
        replace(each, label=f"{each.label} ({each.view.job})") if often[each.label] > 1 else each
        for each in found
    ]


def _left_by_run(folder: Path, with_model: bool) -> Compared:
    try:
        held: Any = cleaned(json.loads((folder / REPORT).read_bytes()))  # anybody may have written it
        history = [{name: entry[name] for name in COMPARED & entry.keys()} for entry in held["history"]]
        view = JobView.model_validate(
            {name: held[name] for name in SUMMARY & held.keys()} | {"history": history}
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidInput(f"{folder / REPORT}: not the report of a job") from None
    model = load_checkpoint(folder / MODEL) if with_model and (folder / MODEL).exists() else None
    return Compared(view.name, view, model)


def _document(found: Sequence[Compared], against: Sequence[Concordance], epsilon: float) -> dict[str, Any]:
    jobs = [
        summary(each.view) | {"history": [entry.model_dump(include=COMPARED) for entry in each.view.history]}
        for each in found
    ]
    if not against:
        return {"jobs": jobs}
    judged = [dict(vars(each)) | {"distance": _finite(each.distance)} for each in against]
    return {"jobs": jobs, "concordance": {"reference": found[0].label, "epsilon": epsilon, "against": judged}}


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None  # JSON knows no infinity


def _print_jobs(found: Sequence[Compared]) -> None:
    rows = [
        (
            each.view.job,
            each.label,
            each.view.status,
            str(each.view.version),
            numbers(each.view.metrics),
            f"{each.view.seconds:.1f} s",
            amount(each.view.bytes_up),
            amount(each.view.bytes_down),
        )
        for each in found
    ]
    print_table(("job", "name", "status", "versions", "metrics", "time", "up", "down"), rows, "")
    versions = sorted({entry.version for each in found for entry in each.measured})
    for each in found:
        if each.left_out:
            few = counted(each.left_out, "version")
            click.echo(
                f"\n{each.label}: {few} left out, evaluated on too few of all test examples (--json has all)"
            )
    if not versions:
        click.echo("\nno version of these jobs was evaluated on enough examples")
        return
    shown = _some(versions)
    by_version: list[Mapping[int, VersionView]] = [
        {e.version: e for e in each.view.history} for each in found
    ]
    click.echo()
    print_table(
        ("version", *(f"{each.label} {what}" for each in found for what in ("metrics", "seconds", "bytes"))),
        [(str(version), *_cells(version, by_version)) for version in shown],
        "",
    )
    if len(shown) < len(versions):
        click.echo(f"({len(shown)} of {len(versions)} versions; --json has all)")


def _cells(version: int, found: Sequence[Mapping[int, VersionView]]) -> Iterator[str]:
    """Yield what the table says of a version of each job; bytes are of all versions up to it."""
    for history in found:
        entry = history.get(version)
        moved = sum(e.bytes_up + e.bytes_down for e in history.values() if e.version <= version)
        metrics = numbers(entry.metrics) if entry and entry.covered else "-"
        yield from (metrics, f"{entry.seconds:.1f}", amount(moved)) if entry else ("-", "-", "-")


def _some(versions: list[int]) -> list[int]:
    """Return at most so many versions as a person wants to read, evenly spread, the last among them."""
    if len(versions) <= SHOWN:
        return versions
    return [versions[round(at * (len(versions) - 1) / (SHOWN - 1))] for at in range(SHOWN)]


def _print_concordance(reference: Compared, against: Sequence[Concordance], epsilon: float) -> None:
    click.echo(
        f"\nagainst {reference.label}: δ, the mean squared difference of test losses, and DC = ‖w − w′‖/‖w′‖"
    )
    rows = [
        (
            each.job,
            "-" if each.discordance is None else f"{each.discordance:.3g}",
            "yes" if each.concordant else "no",
            "-" if each.distance is None else f"{each.distance:.3g}",
            str(each.versions),
            "; ".join(each.remarks),
        )
        for each in against
    ]
    print_table(("name", "δ", f"concordant (δ < {epsilon:g})", "DC", "over versions", "remarks"), rows, "")
