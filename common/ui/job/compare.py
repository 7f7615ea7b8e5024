"""`hansa job compare`: jobs side by side, and whether they learn what a reference learns."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.checkpoints import load_checkpoint
from hansa.common.report.comparison import comparison_page
from hansa.common.report.layout import write_page
from hansa.common.report.material import REPORT, read_material
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.job.command import ask
from hansa.common.ui.job.concordance import Compared, Concordance, Model, concord
from hansa.common.ui.job.job_documents import SUMMARY, summary
from hansa.common.ui.job.versions import numbers
from hansa.common.ui.options import controller_option, json_option, print_json, print_table
from hansa.common.values.documents import flat_fields
from hansa.common.values.errors import InvalidInput, NotFound
from hansa.common.values.history import VersionView, finite
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import counted

EPSILON = 0.01
SHOWN = 20  # versions in the table; JSON has all
COLUMN = 9  # characters of a version's column, with the space beside it
APART = 3  # settings that tell jobs of one name apart
MODEL = "model.safetensors"  # that `hansa run` writes
COMPARED = {
    *("version", "round", "seconds", "bytes_up", "bytes_down"),
    *("metrics", "examples", "examples_total", "drawn", "covered", "test"),
}


@click.command("compare")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB JOB…")
@controller_option
@click.option(
    "--concordance", is_flag=True, help="Show how far each job is from the first: test losses, last models."
)
@click.option(
    "--epsilon",
    type=click.FloatRange(0, min_open=True),
    default=EPSILON,
    show_default=True,
    help="Jobs are concordant if the mean squared difference of their test losses is below this.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the comparison with its curves to this HTML file.",
)
@json_option
def command(
    jobs: tuple[str, ...],
    controller: Endpoint,
    concordance: bool,
    epsilon: float,
    page: Path | None,
    as_json: bool,
) -> None:
    """Compare jobs version by version: metrics, bytes, seconds.

    JOB is an id, the beginning of one, a name, or the folder of a `hansa run` or `simulate`.
    """
    if len(jobs) < 2:
        raise InvalidInput("name at least two jobs to compare")
    compared = _named_apart([_find(job, controller, concordance) for job in jobs])
    against = [concord(each, compared[0], epsilon) for each in compared[1:]] if concordance else []
    if page:
        write_page(page, comparison_page([(each.label, each.view) for each in compared]))
    if as_json:
        print_json(_document(compared, against, epsilon))
        return
    _print_jobs(compared)
    if against:
        _print_concordance(compared[0], against, epsilon)


def _find(word: str, controller: Endpoint, with_model: bool) -> Compared:
    """Find a job in a folder of `hansa run`, or on the controller."""
    folder = Path(word)
    if folder.is_dir() and (folder / REPORT).exists():
        return _read_run(folder, with_model)
    if folder.is_dir() and os.sep in word:
        raise InvalidInput(
            f"{word}: there is no {REPORT} in it; is it the folder of a `hansa run` that has ended?"
        )

    async def fetch(client: AsyncClient) -> Compared:
        view = await client.show(word, detail=False)
        model: Model | None = None
        if with_model and view.history:
            try:
                model = (await client.model(view.job))[:2]
            except NotFound:
                model = None
        return Compared(view.name, view, model)

    return ask(controller, fetch)


def _named_apart(found: Sequence[Compared]) -> list[Compared]:
    """Label jobs by their names, and those of one name by what differs: settings, otherwise ids."""
    settings = [
        (dict(flat_fields(each.view.resolved.job)) if each.view.resolved else {}) | {"name": each.label}
        for each in found
    ]
    names = list(dict.fromkeys(name for each in settings for name in each))
    labels = []
    for each, own in zip(found, settings, strict=True):
        others = [other for other in settings if other["name"] == each.label]
        apart = [name for name in names if len({str(other.get(name)) for other in others}) > 1]
        words = [f"{name.rpartition('.')[2]}={own.get(name)}" for name in apart[:APART]]
        labels.append(f"{each.label} ({', '.join(words)})" if words else each.label)
    often = Counter(labels)
    return [
        replace(each, label=label if often[label] == 1 else f"{label} ({each.view.job})")
        for each, label in zip(found, labels, strict=True)
    ]


def _read_run(folder: Path, with_model: bool) -> Compared:
    view = read_material(folder, SUMMARY | {"unit", "resolved"}, COMPARED).view
    model = load_checkpoint(folder / MODEL) if with_model and (folder / MODEL).exists() else None
    return Compared(view.name, view, model)


def _document(found: Sequence[Compared], against: Sequence[Concordance], epsilon: float) -> dict[str, Any]:
    jobs = [
        summary(each.view) | {"history": [entry.model_dump(include=COMPARED) for entry in each.view.history]}
        for each in found
    ]
    if not against:
        return {"jobs": jobs}
    results = [dict(vars(each)) | {"distance": finite(each.distance)} for each in against]
    return {
        "jobs": jobs,
        "concordance": {"reference": found[0].label, "epsilon": epsilon, "against": results},
    }


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
    if len(found) > 2:
        _print_transposed(found, versions)
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
    """Yield the table's cells for a version of each job; bytes are those of all versions up to it."""
    for history in found:
        entry = history.get(version)
        moved = sum(e.bytes_up + e.bytes_down for e in history.values() if e.version <= version)
        metrics = numbers(entry.metrics) if entry and entry.covered else "-"
        yield from (metrics, f"{entry.seconds:.1f}", amount(moved)) if entry else ("-", "-", "-")


def _print_transposed(found: Sequence[Compared], versions: list[int]) -> None:
    """Print a row for each job, a column for some versions, and as many of these as fit beside the names.

    The metric is the one that all jobs have in common, the accuracy if they have it.
    """
    metric = _common_metric(found)
    if not metric:
        click.echo("\nthese jobs have no metric in common; --json has all of them")
        return
    width = shutil.get_terminal_size((80, 24)).columns - max(len(each.label) for each in found)
    shown = _some(versions, max(2, min(SHOWN, width // COLUMN)))
    rows = []
    for each in found:
        values = {entry.version: entry.metrics.get(metric) for entry in each.measured}
        cells = (values.get(version) for version in shown)
        rows.append((each.label, *("-" if value is None else f"{value:.4f}" for value in cells)))
    click.echo()
    print_table((f"{metric} of version", *map(str, shown)), rows, "")
    if len(shown) < len(versions):
        click.echo(f"({len(shown)} of {len(versions)} versions; --json has all, with bytes and seconds)")


def _common_metric(found: Sequence[Compared]) -> str:
    """Return the metric to show: the accuracy if all jobs have it, otherwise the first that all have."""
    names = [list(dict.fromkeys(name for entry in each.measured for name in entry.metrics)) for each in found]
    names = [each for each in names if each]  # a job that has measured nothing does not decide
    common = [name for name in names[0] if all(name in others for others in names)] if names else []
    return "accuracy" if "accuracy" in common else next(iter(common), "")


def _some(versions: list[int], most: int = SHOWN) -> list[int]:
    """Return evenly spread versions, as many as a person wants to read, including the last."""
    if len(versions) <= most:
        return versions
    return [versions[round(at * (len(versions) - 1) / (most - 1))] for at in range(most)]


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
