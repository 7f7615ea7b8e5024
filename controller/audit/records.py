"""The records of the audit log, as the journal keeps them."""

from collections.abc import Iterable
from typing import Literal

from blake3 import blake3

from hansa.common.values.ids import JobId
from hansa.common.values.views import AuditView
from hansa.controller.storage.journal import Entry, Journal

LOG = JobId("audit")  # no job can have this id

What = Literal[
    "started",
    "stopped",
    "submitted",
    "accepted",
    "cancelled",
    "ended",
    "deleted",
    "joined",
    "left",
    "refused",
    "silenced",
]


class AuditRecord(AuditView):
    """A record as the journal keeps it."""

    what: What

    def sealed(self) -> "AuditRecord":
        """Return the record with its hash."""
        text = self.model_dump_json(exclude={"hash"} if self.digest else {"hash", "digest"})
        return self.model_copy(update={"hash": blake3(text.encode()).hexdigest()})


def digest_of(spec: str, entries: Iterable[Entry] = ()) -> str:
    """Return the digest of a job as it was submitted and of its journal entries."""
    hasher = blake3()
    fields = (field for entry in entries for field in (str(entry.sequence), entry.event, entry.receipt))
    for text in (spec, *fields):
        hasher.update(b"%d:%s" % (len(text.encode()), text.encode()))
    return hasher.hexdigest()


def read_records(journal: Journal) -> list[AuditRecord]:
    """Return all records that can be read."""
    records = []
    for entry in journal.entries(LOG):
        try:
            records.append(AuditRecord.model_validate_json(entry.event))
        except ValueError:
            continue
    return records
