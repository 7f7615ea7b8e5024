"""`hansa data list|partition|describe`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hansa.common.ui.options import Measure, json_option, print_json, print_table

root_option = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="HANSA_DATA",
    help="The folder that contains a folder for each data set.",
)


@click.group()
def data() -> None:
    """List data sets, split them across sites, and describe partitions."""


@data.command("list")
@root_option
@json_option
def list_sets(root: Path | None, as_json: bool) -> None:
    """List the data sets, where they are published, and the schemes that split them."""
    from hansa.common.data.partition import KINDS, describe_kind
    from hansa.common.data.sources import SOURCES

    here = {name: name == "digits" or (root is not None and source.find(root) is not None)
             for name, source in SOURCES.items()}  # fmt: skip
    if as_json:
        sets = [
            {
                "name": s.name,
                "summary": s.summary,
                "keys": s.keys,
                "published": s.published,
                "here": here[s.name],
            }
            for s in SOURCES.values()
        ]
        print_json({"sets": sets, "schemes": {kind: describe_kind(kind) for kind in KINDS}})
        return
    rows = [
        (s.name, s.summary, s.keys or "-", "here" if here[s.name] else f"not here: {s.published}")
        for s in SOURCES.values()
    ]
    print_table(("data set", "what it is", "keys", "where"), rows, "no data sets")
    click.echo()
    print_table(("scheme", "how it splits"), [(kind, describe_kind(kind)) for kind in KINDS], "no schemes")
    if root is None:
        click.echo("\nSet HANSA_DATA or --root to the folder that holds the data sets.")


@data.command()
@click.argument("source")
@click.option("--kind", help="The scheme (`hansa data list`); usually implied by the other options.")
@click.option("--sizes", help="uniform, skewed or powerlaw(1.5); with --kind dirichlet a number.")
@click.option("--classes", help="iid, 3, or 8x1,4x1,3x8; with --kind dirichlet a number.")
@click.option("--features", help="Keys whose categories are skewed, such as soil=1.")
@click.option("--labels", type=int, help="Classes at each site, in equal parts (non-iid-l).")
@click.option("--by", help="Split by a key, such as hospital, writer or role.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Any parameter of the scheme.")
@click.option(
    "--sites", type=click.IntRange(1, 100_000), help="How many (default: 5, or all values of the key)."
)
@click.option(
    "--seed", type=click.IntRange(0), default=1990, show_default=True, help="Seed of everything random."
)
@click.option(
    "--test",
    type=Measure(0, 1, max_open=True),
    help="Share held out for testing (default: the set's own part).",
)
@click.option(
    "--examples", type=click.IntRange(1), help="Use only this many examples, of each class in proportion."
)
@click.option("--label", metavar="COLUMN", help="The column of a table that is the label.")
@click.option(
    "--folds", type=click.IntRange(3), help="Record a cross-validation by site with this many folds."
)
@click.option(
    "--nested",
    is_flag=True,
    help="Use every pair of a test and a validation fold (5 folds unless --folds says otherwise).",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="A new or empty folder."
)
@root_option
@json_option
def partition(
    source: str,
    changes: tuple[str, ...],
    sites: int | None,
    seed: int,
    test: float | None,
    examples: int | None,
    label: str | None,
    folds: int | None,
    nested: bool,
    out: Path,
    root: Path | None,
    as_json: bool,
    **words: str | int | None,
) -> None:
    """Split a data set across sites: one file per site, a test file, and partition.json.

    SOURCE is a data set's name, an .npz, .csv or .parquet file, or a folder of images. The data: section of a
    job file takes the same parameters.
    """
    from hansa.common.data.shards import read_shards, write_shards
    from hansa.common.job.file import apply_change
    from hansa.common.job.spec import DataSpec

    chosen: dict[str, Any] = {name: word for name, word in words.items() if word is not None}
    for change in changes:
        apply_change(chosen, change)
    spec = DataSpec(source=source, partition=chosen, examples=examples, test=test, label=label)
    paths = write_shards(spec, sites, seed, out, root, folds or (5 if nested else 0), nested)
    picture = read_shards(out)
    if as_json:
        print_json(
            {"folder": str(out), "files": [path.name for path in paths], "measures": asdict(picture.measures)}
        )
        return
    click.echo(f"{out}: {len(paths)} sites, {picture.measures.examples:,} examples")
    _print_measures(picture.measures)
    click.echo(f"\n`hansa data describe {out} --picture {out.name}.png` shows it")


@data.command()
@click.argument("shards", type=click.Path(path_type=Path))
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it to a .png, .svg or .pdf file."
)
@json_option
def describe(shards: Path, picture: Path | None, as_json: bool) -> None:
    """Measure a partition (a folder of site files) and draw it."""
    from hansa.common.data.shards import read_shards

    content = read_shards(shards)
    if picture is not None:
        from hansa.common.data.pictures import draw

        draw(content, picture)
    if as_json:
        matrix = {"sites": content.sites, "classes": content.classes, "matrix": content.matrix.tolist()}
        print_json({"title": content.title, "measures": asdict(content.measures), **matrix})
        return
    click.echo(content.title)
    _print_measures(content.measures)
    click.echo()
    shown = content.classes[:12]
    more = [f"+{len(content.classes) - 12} more"] if len(content.classes) > 12 else []
    rows = [
        (site, f"{int(row.sum()):,}", *(f"{count:,}" if count else "·" for count in row[:12].tolist()),
         *([f"{int(row[12:].sum()):,}"] if more else []))
        for site, row in zip(content.sites, content.matrix, strict=True)
    ]  # fmt: skip
    print_table(("site", "examples", *map(_shown, shown), *more), rows, "no sites")
    if picture is not None:
        click.echo(f"\ndrawn to {picture}")


def _shown(name: str) -> str:
    return name if name.strip() else repr(name)


def _print_measures(measures: Any) -> None:
    click.echo(
        f"  sizes       {measures.least:,} to {measures.most:,}, mean {measures.mean:,.1f},"
        f" deviation {measures.deviation:,.1f}"
    )
    click.echo(f"  classes     {measures.classes_per_site:.1f} per site on average")
    click.echo(f"  C-score     {measures.c_score:.3f}  (0: all sites alike; 2(1-1/C): one class each)")
    click.echo(
        f"  divergence  {measures.divergence:.3f} bit between two sites on average,"
        f" {measures.divergence_most:.3f} at most"
    )
