"""`hansa audit show|verify`: reads a controller's state directly; the controller need not run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hansa.common.process.clock import iso
from hansa.common.ui.options import json_option, print_json, print_table, state_option
from hansa.common.values.errors import HansaError
from hansa.controller.audit.check import check_records
from hansa.controller.audit.records import read_records
from hansa.controller.storage.backends import recorded
from hansa.controller.storage.defaults import places
from hansa.controller.storage.journal import Journal

store_option = click.option(
    "--store", envvar="HANSA_STORE", help="The controller's store (default: disk below --state)."
)


@click.group()
def audit() -> None:
    """Show and verify the log of who did what on a controller."""


@audit.command()
@state_option
@store_option
@click.option("--last", type=click.IntRange(1), help="Show only the newest N records.", metavar="N")
@json_option
def show(state: Path | None, store: str | None, last: int | None, as_json: bool) -> None:
    """List who submitted or cancelled jobs, joined, left or was refused, oldest first."""
    with _journal(state, store) as journal:
        records = read_records(journal)[-last if last else 0 :]
    if as_json:
        print_json([record.model_dump() for record in records])
        return
    rows = [(str(r.sequence), iso(r.at), r.who, r.what, r.about, r.why) for r in records]
    print_table(("record", "time", "who", "what", "about", "why"), rows, "nothing has been recorded yet")


@audit.command()
@state_option
@store_option
@click.option("--head", help="A hash that `verify` printed earlier: it must still be in the chain.")
@json_option
def verify(state: Path | None, store: str | None, head: str | None, as_json: bool) -> None:
    """Check the chain of records, and that jobs still have the receipts it names; exit 1 on any fault.

    A chain cannot show that its newest records were cut off: write down the hash that this command prints,
    and pass it as --head the next time.
    """
    with _journal(state, store) as journal:
        faults = list(check_records(journal))
        records = read_records(journal)
    if head and head not in {record.hash for record in records}:
        faults.append(f"the record {head[:16]}… is no longer in the chain")
    newest = records[-1].hash if records else ""
    if as_json:
        print_json({"sound": not faults, "records": len(records), "head": newest, "faults": faults})
    else:
        for fault in faults:
            click.echo(fault)
        if not faults:
            click.echo(f"{len(records)} records are sound; head {newest or '-'}")
    if faults:
        raise HansaError(f"the audit log is not sound: {len(faults)} faults")


@contextmanager
def _journal(state: Path | None, store: str | None) -> Iterator[Journal]:
    folder, url = places(state, store)
    with recorded(url, folder) as backends:
        yield backends.journal
