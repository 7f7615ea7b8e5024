"""Receipts: proofs of commits, chained by their hashes."""

from collections.abc import Mapping

from blake3 import blake3
from pydantic import Field

from hansa.common.values.bounds import Value
from hansa.common.values.ids import JobId, SiteName, TaskId


class Receipt(Value):
    """Proof of a commit: that an update is durable, or which updates made up a community model.

    A job's receipts form a chain: each holds the hash of the previous one, and its own hash covers all its
    other fields.
    """

    job: JobId
    sequence: int  # of the event in the job's journal
    task: TaskId = TaskId("")  # of the update; empty for a community model
    site: SiteName = SiteName("")
    version: int = 0  # of the community model; 0 for an update
    # Weights of the updates that this version adds
    contributions: Mapping[TaskId, float] = Field(default_factory=dict)
    digest: str  # of the update as it was sent, or of the community model
    decoded: str = ""  # of what the update was decoded to, if it was sent in an encoding
    # Digests of the state that the server update carries on, if any
    moments: Mapping[str, str] = Field(default_factory=dict)
    previous: str  # hash of the previous receipt
    hash: str = ""

    def sealed(self) -> "Receipt":
        """Return the receipt with its hash."""
        unused = {name for name in ("decoded", "moments") if not getattr(self, name)}
        text = self.model_dump_json(exclude={"hash", *unused})
        return self.model_copy(update={"hash": blake3(text.encode()).hexdigest()})
