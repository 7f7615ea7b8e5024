"""Options that several commands have in common, and the printing of results."""

import asyncio
import functools
import math
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hansa.common.process.terminal import screen
from hansa.common.rpc.channel import DEFAULT_CONTROLLER, Endpoint, parse_address
from hansa.common.values.documents import written
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import site_name
from hansa.common.values.wording.sizes import parse_size
from hansa.common.values.wording.words import CONTROL

LONGEST = 1e9  # seconds that a clock can be set to, as in job files
T = TypeVar("T")


class Address(click.ParamType[str]):
    """HOST:PORT."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check an address."""
        return _checked(parse_address, value, self, param, ctx)


class Size(click.ParamType[int]):
    """A number of bytes, such as 512MiB or 2GiB."""

    name = "SIZE"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size."""
        try:
            size = parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < self._least:
            self.fail(
                f"{value!r} is less than {self._least >> 20} MiB; write for example 512MiB or 2GiB",
                param,
                ctx,
            )
        return size


class Measure(click.FloatRange):
    """A finite number within a range; click lets nan pass every range, and inf an open one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse nan and infinity."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Site(click.ParamType[str]):
    """A site's name."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check a name."""
        return _checked(site_name, value, self, param, ctx)


def _checked(
    check: Callable[[str], str], value: Any, kind: click.ParamType[str], param: Any, ctx: Any
) -> str:
    try:
        return check(str(value))
    except HansaError as error:
        kind.fail(str(error), param, ctx)


def controller_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --controller and --tls, for operators and sites; the command gets both as `controller`."""

    @functools.wraps(command)
    def with_endpoint(*args: Any, controller: str, tls: Path | None, **options: Any) -> Any:
        return command(*args, controller=Endpoint(controller, tls), **options)

    return click.option(
        "--controller",
        type=Address(),
        envvar="HANSA_CONTROLLER",
        default=DEFAULT_CONTROLLER,
        show_default=True,
        help="Where the controller listens.",
    )(tls_option(with_endpoint))


def tls_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --tls, for everything that connects."""
    return click.option(
        "--tls",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        envvar="HANSA_TLS",
        help="Folder with ca.pem, cert.pem and key.pem, as `hansa pki issue` makes it.",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def state_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --state, for daemons."""
    return click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="HANSA_STATE",
        help="Directory for journal, lock and logs (default: below ~/.hansa).",
    )(command)


def run_async(work: Coroutine[Any, Any, T], farewell: Callable[[], str] = lambda: "") -> T:
    """Run a command's coroutine; Ctrl-C ends it quietly, or with the message of `farewell`."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        text = farewell()
        if text:
            click.echo(f"hansa: {text}", err=True)
        raise SystemExit(130) from None


def print_json(document: object) -> None:
    """Print one JSON document."""
    click.echo(written(document))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Print a table: with lines on a terminal, elsewhere as aligned columns. Every cell is one line."""
    if not rows:
        click.echo(empty)
        return
    columns, *rows = ([CONTROL.sub(" ", cell) for cell in row] for row in (columns, *rows))
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
        for row in (columns, *rows):
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich import box
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    screen().print(table)
