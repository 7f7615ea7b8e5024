"""Checks of the audit log: is its chain complete, and are the jobs what it says they were?"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from hansa.common.values.ids import JobId
from hansa.common.values.receipts import Receipt
from hansa.controller.audit.records import LOG, AuditRecord, digest_of, read_records
from hansa.controller.storage.journal import Entry, JobRecord, Journal


def check_records(journal: Journal) -> Iterator[str]:
    """Yield every fault of the log: gaps, changes, and receipts that are not in their jobs' journals."""
    head, sequence = "", 0
    specs = {job.id: job.spec for job in journal.jobs()}
    records = read_records(journal)
    accepted = {JobId(record.about) for record in records if record.what == "accepted"}
    deleted = {JobId(record.about): record for record in records if record.what == "deleted"}
    for entry in journal.entries(LOG):
        sequence += 1
        try:
            record = AuditRecord.model_validate_json(entry.event)
        except ValueError:
            yield f"record {entry.sequence}: it cannot be read"
            head, sequence = "", entry.sequence
            continue
        if (entry.sequence, record.sequence) != (sequence, sequence):
            yield f"record {entry.sequence}: record {sequence} is missing"
            sequence = entry.sequence
        if entry.receipt:
            yield f"record {sequence}: it has a receipt, which is not part of the log"
        if record.previous != head:
            yield f"record {sequence}: it does not follow the record before it"
        if record.sealed().hash != record.hash:
            yield f"record {sequence}: it was changed"
        if record.about in deleted:
            yield from _check_deleted(record, deleted[JobId(record.about)])
        elif record.receipt or record.digest:
            yield from _check_job(journal, record, specs, accepted)
        head = record.hash


def _check_deleted(record: AuditRecord, deletion: AuditRecord) -> Iterator[str]:
    """Yield a fault if a job was not deleted as it was when it ended; nothing else is left of it."""
    if record.what == "ended" and deletion.digest and record.digest not in ("", deletion.digest):
        job = f"job {record.about}"
        yield f"record {deletion.sequence}: the journal of {job} was changed between its end and its deletion"


def check_job(journal: Journal, job: JobRecord) -> Iterator[str]:
    """Yield every way in which a job differs from what the log says about it."""
    for record in read_records(journal):
        if record.about == job.id and (record.receipt or record.digest):
            yield from _check_job(journal, record, {job.id: job.spec}, {job.id})


def _check_job(
    journal: Journal, record: AuditRecord, specs: Mapping[JobId, str], accepted: Collection[JobId]
) -> Iterator[str]:
    """Yield the faults of the job that a record is about."""
    job = JobId(record.about)
    if record.receipt and record.receipt not in _receipts(journal.entries(job)):
        yield f"record {record.sequence}: job {job} lost the receipt {record.receipt[:16]}…"
    if not record.digest:
        return
    if job not in specs:
        if record.what == "ended" or job in accepted or journal.entries(job):
            yield f"record {record.sequence}: job {job} is missing"
    elif record.what == "submitted" and digest_of(specs[job]) != record.digest:
        yield f"record {record.sequence}: job {job} is not the one that was submitted"
    elif record.what == "ended" and digest_of(specs[job], journal.entries(job)) != record.digest:
        yield f"record {record.sequence}: the journal of job {job} was changed after its end"


def _receipts(entries: Iterable[Entry]) -> set[str]:
    """Return the hashes of all receipts that can be read."""
    hashes = set()
    for entry in entries:
        if entry.receipt:
            try:
                hashes.add(Receipt.model_validate_json(entry.receipt).sealed().hash)
            except ValueError:
                continue
    return hashes
