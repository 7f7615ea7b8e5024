"""The groups of sites in the newest fit of a rule that groups them (FedDAF)."""

import click

from hansa.common.report.methods.groups import LISTED, fits_of, groups_of
from hansa.common.ui.options import print_table
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import listed


def print_groups(view: JobView) -> None:
    """Print the groups of the newest fit, if the rule makes any."""
    fits = fits_of(view)
    if not fits:
        return
    version, fit = fits[-1]
    click.echo()
    if fit.why:
        click.echo(f"groups, as of version {version}: none, {fit.why}")
        return
    click.echo(f"groups, as of version {version}:")
    rows = [(str(each.number), f"{each.weight:.1%}", listed(each.names, LISTED)) for each in groups_of(fit)]
    print_table(("group", "weight", "sites"), rows, "")
