"""`hansa controller|learner|evaluator logs`: the log of a daemon on this machine."""

from pathlib import Path

import click

from hansa.common.process.log_files import follow, last_lines


def lines_option(command: click.decorators.FC) -> click.decorators.FC:
    """Add --lines."""
    return click.option(
        "-n",
        "--lines",
        type=click.IntRange(0, 1_000_000),
        default=100,
        show_default=True,
        help="How many of the last lines to show.",
    )(command)


def follow_option(command: click.decorators.FC) -> click.decorators.FC:
    """Add --follow."""
    return click.option(
        "-f", "--follow", "following", is_flag=True, help="Go on showing new lines until Ctrl-C."
    )(command)


def show_log(log: Path, lines: int, following: bool) -> None:
    """Print the last lines of a log and, if asked for, what follows."""
    if following:
        for text in follow(log, lines):
            click.echo(text, nl=False)
    else:
        for line in last_lines(log, lines):
            click.echo(line)
