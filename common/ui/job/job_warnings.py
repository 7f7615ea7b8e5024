"""Prints warnings about a job: doubtful settings, and sites that contributed little."""

from collections.abc import Sequence

import click

from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import shortfall_lines


def warn(view: JobView, known: Sequence[str] = ()) -> None:
    """Print the warnings about a job's settings, except those `known`, to standard error."""
    for warning in view.warnings:
        if warning not in known:
            click.echo(f"hansa: warning: {warning}", err=True)


def warn_of_shortfalls(view: JobView) -> None:
    """Print which sites contributed little to a job, to standard error."""
    for line in shortfall_lines(view):
        click.echo(f"hansa: warning: {line}", err=True)
