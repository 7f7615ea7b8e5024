"""`hansa audit show|verify`: reads a controller's state directly, or asks the controller for its records."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from click.core import ParameterSource

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.process.clock import iso
from hansa.common.rpc.channel import DEFAULT_CONTROLLER, Endpoint
from hansa.common.ui.options import (
    Address,
    json_option,
    print_json,
    print_table,
    run_async,
    state_option,
    tls_option,
)
from hansa.common.values.documents import escaped
from hansa.common.values.errors import HansaError, InvalidInput
from hansa.common.values.views import AuditView
from hansa.common.values.wording.words import CONTROL
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
@click.option(
    "--controller",
    type=Address(),
    envvar="HANSA_CONTROLLER",
    help="Ask this controller instead of reading --state.",
)
@tls_option
@click.option("--last", type=click.IntRange(1), help="Show only the newest N records.", metavar="N")
@click.option("-f", "--follow", is_flag=True, help="Go on with each new record; asks the controller.")
@json_option
@click.pass_context
def show(
    context: click.Context,
    state: Path | None,
    store: str | None,
    controller: str | None,
    tls: Path | None,
    last: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """List who submitted, cancelled or deleted jobs, joined, left or was refused, oldest first.

    The records come from the state directory, or from the controller at --controller. If the environment
    names both, the state directory is read, unless --follow is given. With --follow and --json every line is
    a JSON document.
    """
    if _remote(context, follow):
        run_async(_show_remote(Endpoint(controller or DEFAULT_CONTROLLER, tls), last, follow, as_json))
        return
    with _journal(state, store) as journal:
        records = read_records(journal)[-last if last else 0 :]
    _print(records, as_json)


def _remote(context: click.Context, follow: bool) -> bool:
    """Whether to ask the controller: flags say it, or else the environment and settings do."""
    flag = ParameterSource.COMMANDLINE
    given = {name for name in ("state", "store", "controller") if context.params[name] is not None}
    flags = {name for name in given if context.get_parameter_source(name) is flag}
    if "controller" in flags and flags & {"state", "store"}:
        raise InvalidInput("--controller asks a controller, and --state and --store read its files: give one")
    if follow and flags & {"state", "store"}:
        raise InvalidInput("--follow asks a controller: give --controller instead of --state or --store")
    return follow or "controller" in flags or (given == {"controller"} and not flags)


async def _show_remote(controller: Endpoint, last: int | None, follow: bool, as_json: bool) -> None:
    async with AsyncClient(controller) as client:
        if not follow:
            _print([record async for record in client.audit(last=last or 0)], as_json)
            return
        async for record in client.audit(follow=True, last=last or 0):
            _print_line(record, as_json)


def _print_line(record: AuditView, as_json: bool) -> None:
    row = (str(record.sequence), iso(record.at), record.who, record.what, record.about, record.why)
    click.echo(escaped(record.model_dump()) if as_json else CONTROL.sub(" ", "  ".join(row)).rstrip())


def _print(records: Sequence[AuditView], as_json: bool) -> None:
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
