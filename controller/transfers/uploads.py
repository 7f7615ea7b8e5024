"""Updates on their way in, and how far each has come.

An upload belongs to its task, not to a connection: its frames are kept when a connection breaks, and the
newest connection continues it.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hansa.common.models.conveyor import Conveyor
from hansa.common.models.frames import FrameCheck
from hansa.common.models.model import Manifest
from hansa.common.values.errors import Stale
from hansa.common.values.ids import ModelKey, TaskId, sent_key, update_key
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task
from hansa.controller.storage.stores import Draft, Store
from hansa.controller.transfers.gate import Place
from hansa.controller.transfers.wanted import Encoded
from hansa.controller.work.decode import decode
from hansa.controller.work.drafts import Drafts
from hansa.controller.work.workers import Workers


@dataclass
class Upload:
    """An update under way. It outlives the connection that it comes over."""

    task: Task
    manifest: Manifest
    facts: UpdateFacts
    check: FrameCheck
    place: Place  # at the gate, entered with the offer: until then the site sends nothing
    encoded: Encoded | None = None  # None: what is sent is what is stored
    draft: Draft | None = None  # begun with the first frames
    conveyor: Conveyor[bytes] | None = None  # of the newest connection
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    commit: "asyncio.Task[Receipt] | None" = None  # goes on when the connection breaks
    stream: int = 0  # which connection may write: the newest

    @property
    def working(self) -> bool:
        """Whether its frames are being processed."""
        return bool(self.conveyor and self.conveyor.busy) or bool(self.commit and not self.commit.done())

    @property
    def key(self) -> ModelKey:
        """The key of what is sent."""
        return sent_key(self.task.id) if self.encoded else update_key(self.task.id)

    async def settle(self) -> None:
        """Wait until no worker thread handles frames of an earlier connection."""
        if self.conveyor:
            await self.conveyor.settle()

    def keep(self, store: Store, batch: deque[bytes]) -> None:
        """Store and check frames, on a worker thread; processed frames are removed from the batch."""
        if self.draft is None:
            self.draft = store.draft(self.key, self.manifest.spec)
        while batch:
            if not self.check.complete:  # else the check will say that there are too many
                self.draft.write(self.check.next, batch[0])  # may be repeated if the store was unavailable
            self.check.feed(batch[0])  # must not be repeated
            batch.popleft()

    def finish(self, store: Store, rest: deque[bytes]) -> None:
        """Keep the last frames and make the update durable, on a worker thread."""
        self.keep(store, rest)
        self.check.finish()  # a broken connection may have hidden an error
        assert self.draft is not None
        self.draft.publish(self.manifest, self.check.sealer.peaks)

    def decode(self, store: Store, drafts: Drafts) -> Manifest:
        """Publish what an encoded update stands for, on a worker thread."""
        assert self.encoded is not None
        models, key = self.task.models, update_key(self.task.id)
        return decode(store, self.encoded.encoding, self.encoded.spec, self.key, models, key, drafts)


class Uploads:
    """All uploads under way, by task."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._uploads: dict[TaskId, Upload] = {}
        self._discards: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> Mapping[TaskId, Upload]:
        """The uploads, by task."""
        return self._uploads

    def get(self, task: TaskId) -> Upload | None:
        """Return a task's upload, if there is one."""
        return self._uploads.get(task)

    def enter(self, upload: Upload) -> None:
        """Enter an upload."""
        self._uploads[upload.task.id] = upload

    def remove(self, upload: Upload) -> None:
        """Forget an upload that is over, unless another has replaced it."""
        if self.is_current(upload):
            del self._uploads[upload.task.id]

    def is_current(self, upload: Upload) -> bool:
        """Whether an upload has neither been discarded nor replaced."""
        return self._uploads.get(upload.task.id) is upload

    def require_current(self, upload: Upload, stream: int | None = None) -> None:
        """Raise Stale if an upload is over, or if `stream` is not its newest connection."""
        if stream not in (None, upload.stream) or not self.is_current(upload):
            raise Stale(f"task {upload.task.id}: another connection took over, or the task is over")

    def discard(self, task: TaskId) -> None:
        """Throw away the upload of a task, unless it is being committed."""
        upload = self._uploads.pop(task, None)
        if upload and upload.commit is None:
            upload.place.leave()
            self.throw_away(upload)

    def throw_away(self, upload: Upload) -> None:
        """Discard an upload's draft on a worker thread: the store may be slow or unavailable."""
        discard = asyncio.create_task(self._discard(upload))
        self._discards.add(discard)
        discard.add_done_callback(self._discards.discard)

    async def _discard(self, upload: Upload) -> None:
        await upload.settle()  # no thread may write to a discarded draft
        if upload.draft:
            await self._workers.io(upload.draft.discard)
