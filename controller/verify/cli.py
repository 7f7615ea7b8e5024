"""`hansa job verify`."""

from pathlib import Path

import click

from hansa.common.models.checkpoints import read_origin
from hansa.common.ui.options import json_option, print_json, state_option
from hansa.common.values.errors import HansaError, InvalidInput
from hansa.common.values.ids import JobId
from hansa.common.values.wording.words import plain
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.records import find_record
from hansa.controller.storage.backends import recorded
from hansa.controller.storage.defaults import places
from hansa.controller.verify.check import Finding, verify
from hansa.controller.verify.export import check_export


@click.command("verify")
@click.argument("job_id", metavar="JOB")
@state_option
@click.option("--store", envvar="HANSA_STORE", help="The controller's store (default: disk below --state).")
@click.option(
    "--model",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also check that a file of `hansa job model` or `hansa run` is a model that a receipt names.",
)
@json_option
def command(job_id: str, state: Path | None, store: str | None, file: Path | None, as_json: bool) -> None:
    """Check a job's journal, receipts and models in place, without a controller; exit 1 on any fault."""
    folder, url = places(state, store)
    if url == "memory:":
        raise InvalidInput("models in memory cannot be verified offline")
    with recorded(url, folder) as backends:
        record = find_record(backends.journal.jobs(), job_id)
        machine, receipts, findings = verify(backends, record)
    of_export = [Finding(str(file), what) for what in check_export(file, machine)] if file else []
    _report(JobId(record.id), machine, receipts, findings + of_export, file, as_json)
    if findings:
        raise HansaError(f"job {record.id} does not agree with its receipts: {len(findings)} faults")
    if of_export:
        raise HansaError(f"{file} is not the model that the receipts of job {record.id} name")


def _report(
    job: JobId, machine: Machine, receipts: int, findings: list[Finding], file: Path | None, as_json: bool
) -> None:
    version = max(machine.state.version, 0)
    if as_json:
        faults = [{"where": finding.where, "what": finding.what} for finding in findings]
        print_json(
            {"job": job, "sound": not findings, "version": version, "receipts": receipts, "faults": faults}
        )
        return
    for finding in findings:
        click.echo(plain(f"{finding.where}: {finding.what}"))  # a file may contain anything
    if not findings:
        members = sum(len(updates) for updates in machine.state.members.values())
        click.echo(f"job {job}: {receipts} receipts agree with the journal;")
        click.echo(f"version {version} is sound and was recomputed from its {members} updates, bit for bit")
        origin = read_origin(file) if file else None
        if origin:
            named = f"receipt {origin.receipt}" if origin.receipt else "the submission"
            click.echo(f"{file}: version {origin.version} of the job, as {named} names it")
