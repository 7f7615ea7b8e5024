"""The groups of sites in the newest fit of a rule that groups them (FedDAF)."""

from collections.abc import Mapping
from typing import Any, cast

import click

from hansa.common.ui.options import print_table
from hansa.common.values.views import JobView
from hansa.common.values.words import in_order, listed

SHOWN = 20  # sites of a group that are listed
CLEAR = 0.9  # a site that belongs to its group by less than this is shown with its share


def print_groups(view: JobView) -> None:
    """Print the groups of the newest fit, if the rule makes any."""
    reports = [(entry.version, entry.diagnostics.get("weigh", {})) for entry in view.history]
    fits = [(version, cast(Mapping[str, Any], fit)) for version, fit in reports if "allocation" in fit]
    if not fits:
        return
    version, fit = fits[-1]
    click.echo()
    if fit["why"]:
        click.echo(f"groups, as of version {version}: none, {fit['why']}")
        return
    click.echo(f"groups, as of version {version}:")
    print_table(("group", "weight", "sites"), _rows(fit), "")


def _rows(fit: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return each group with its weight; a site is listed in the group that it mostly belongs to."""
    members: list[list[str]] = [[] for _ in fit["shares"]]
    weights = [0.0 for _ in fit["shares"]]
    for site, row in sorted(fit["allocation"].items(), key=lambda item: in_order(item[0])):
        group = max(range(len(row)), key=row.__getitem__)
        members[group].append(site if row[group] >= CLEAR else f"{site} ({row[group]:.0%})")
        weights[group] += fit["weights"][site]
    return [
        (str(number), f"{weight:.1%}", listed(sites, SHOWN))
        for number, (weight, sites) in enumerate(zip(weights, members, strict=True), 1)
    ]
