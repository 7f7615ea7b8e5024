"""The intake of updates: offered, checked frame by frame, made durable, committed; resumable at any frame."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hansa.common.models.conveyor import Conveyor
from hansa.common.models.distance import misfit
from hansa.common.models.frames import FrameCheck
from hansa.common.models.model import Manifest, ModelSpec, check_manifest, require_fit
from hansa.common.process import faults
from hansa.common.values.errors import Broken, NotFound, Refused, Rejected, Stale, Unoffered
from hansa.common.values.ids import SiteName, TaskId, job_of, update_key
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Init, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.plugin.outline import Outline, outline_of
from hansa.controller.storage.stores import Draft
from hansa.controller.transfers.gate import Place

if TYPE_CHECKING:
    from hansa.controller.jobs.federation import Federation
    from hansa.controller.jobs.runner import JobRunner

log = logging.getLogger(__name__)
NOT_STORED = "an update could not be stored"
REMEMBERED = 256  # reasons of rejected updates


@dataclass
class _Upload:
    """An update under way. It outlives the connection that brings it."""

    task: Task
    manifest: Manifest
    facts: UpdateFacts
    check: FrameCheck
    place: Place  # at the gate, entered with the offer: the site sends nothing before it may
    draft: Draft | None = None  # made with the first frames
    conveyor: Conveyor[bytes] | None = None  # of the newest connection
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    commit: "asyncio.Task[Receipt] | None" = None  # goes on when the connection breaks
    stream: int = 0  # which connection may write: the newest

    @property
    def working(self) -> bool:
        """Whether its frames are being worked on."""
        return bool(self.conveyor and self.conveyor.busy) or bool(self.commit and not self.commit.done())


class Intake:
    """All uploads under way."""

    def __init__(self, federation: "Federation") -> None:
        self._federation = federation
        self._uploads: dict[TaskId, _Upload] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._rejected: dict[
            tuple[SiteName, TaskId], str
        ] = {}  # why; the newest few, for sites that ask again

    async def require_wanted(self, site: SiteName, task_id: TaskId) -> None:
        """Refuse what nobody waits for, before anybody takes the trouble to decode it."""
        self._federation.archive.require_receipt(site, task_id)
        runner = await self._federation.recall(job_of(task_id))
        if (site, task_id) in self._rejected:
            raise Rejected(self._rejected[site, task_id])
        if task_id not in self._uploads and not runner.receipt(task_id, site):
            runner.open_task(task_id, site)

    async def offer(
        self, site: SiteName, task_id: TaskId, manifest: Manifest, facts: UpdateFacts
    ) -> tuple[int, Receipt | None]:
        """Take note of an update to come; return the first frame wanted, or the receipt if it is here already."""
        runner = await self._federation.recall(job_of(task_id))
        upload = self._uploads.get(task_id)
        if upload and upload.commit and upload.task.site == site:  # a receipt is given once it is durable
            return 0, await asyncio.shield(upload.commit)
        receipt = runner.receipt(task_id, site)
        if receipt:
            return 0, receipt
        if (site, task_id) in self._rejected:
            raise Rejected(self._rejected[site, task_id])
        task = runner.open_task(task_id, site)
        if _describes(runner, task):
            return 0, await self._described(runner, task, manifest, facts)
        if upload is None or upload.manifest != manifest:
            check = await self._check_offer(runner, task, manifest)
            if self._uploads.get(task_id) is not upload or (
                upload and upload.commit
            ):  # something came meanwhile
                return await self.offer(site, task_id, manifest, facts)
            runner.open_task(task_id, site)  # it may have ended meanwhile
            self.discard(task_id)
            place = self._federation.uploads.place(site, check.sealer.layout.size)
            upload = self._uploads[task_id] = _Upload(task, manifest, facts, check, place)
        elif upload.conveyor:
            await upload.conveyor.settle()  # what came over a connection that is stuck need not come again
        await upload.place.enter()
        if self._uploads.get(task_id) is not upload:
            upload.place.leave()
        if upload.commit:  # the rest of it came meanwhile
            return 0, await asyncio.shield(upload.commit)
        self._require_current(upload)
        return upload.check.next, None

    async def receive(
        self, site: SiteName, task_id: TaskId, start: int, frames: AsyncIterator[bytes]
    ) -> Receipt:
        """Take the frames of an offered update and commit it; what has come stays if the connection breaks."""
        runner = self._federation.runner(job_of(task_id))
        upload = self._uploads.get(task_id)
        if upload is None or upload.task.site != site:
            runner.open_task(task_id, site)  # if it ended between offer and upload, that is the reason
            raise Unoffered(
                f"task {task_id}: offer the update before uploading it"
            )  # or we were restarted since
        upload.stream += 1
        mine = upload.stream
        async with upload.turn:  # an older connection may still be writing its last frame
            if upload.commit is None:
                self._require_current(upload, mine)
                if upload.conveyor:
                    await upload.conveyor.settle()  # its connection may have been ended before that
                if start > upload.check.next:
                    raise Unoffered(f"task {task_id}: frame {upload.check.next} is expected, not {start}")
                try:
                    with self._ending(runner, NOT_STORED):
                        rest = await self._take(upload, mine, start, frames, runner)
                except Rejected as error:
                    await self._reject(runner, upload, error)
                    raise
                upload.commit = asyncio.create_task(self._commit(runner, upload, rest))
                upload.commit.add_done_callback(_heed)
        return await asyncio.shield(upload.commit)

    async def _take(
        self, upload: _Upload, mine: int, start: int, frames: AsyncIterator[bytes], runner: "JobRunner"
    ) -> deque[bytes]:
        """Check and store frames on a worker thread while the next ones arrive; return the last few, still to do."""
        conveyor = upload.conveyor = Conveyor[bytes](
            lambda batch: self._federation.workers.io(self._keep, upload, batch)
        )
        place, came, wanted = upload.place, upload.check.next, upload.check.sealer.layout.frames
        place.working, place.lost = lambda: upload.working, conveyor.hasten
        known = (
            came - start
        )  # frames that came over an older connection after the site was told where to start
        whole = False
        try:
            await place.enter()
            async for frame in frames:
                runner.traffic.up += len(frame)
                await place.moved()
                self._require_current(upload, mine)
                if known:
                    known -= 1
                    continue
                await conveyor.put(frame)
                came += 1
                if not place.held:
                    conveyor.hasten()  # without a place no frames may gather
            if came < wanted:
                await conveyor.drain()  # if a frame was wrong, that is what the site is told
                raise Refused(f"task {upload.task.id}: the stream ended after {came} frames")
            rest = await conveyor.rest()
            self._require_current(upload)  # its draft may have been thrown away
            whole = True
            return rest
        finally:
            await conveyor.settle()
            if not whole:
                place.leave()

    def _require_current(self, upload: _Upload, mine: int | None = None) -> None:
        if mine not in (None, upload.stream) or self._uploads.get(upload.task.id) is not upload:
            raise Stale(f"task {upload.task.id}: another connection took over, or the task is over")

    def _keep(self, upload: _Upload, batch: deque[bytes]) -> None:
        """Store and check frames, on a worker thread; what is done is taken from the batch."""
        if upload.draft is None:
            upload.draft = self._federation.store.draft(update_key(upload.task.id), upload.manifest.spec)
        while batch:
            if not upload.check.complete:  # else the check will say that there are too many
                upload.draft.write(upload.check.next, batch[0])  # may be repeated if the store was away
            upload.check.feed(batch[0])  # may not
            batch.popleft()

    def _finish(self, upload: _Upload, rest: deque[bytes]) -> None:
        """Keep the last frames and make the update durable, on a worker thread."""
        self._keep(upload, rest)
        upload.check.finish()  # a connection that broke may have hidden what was wrong
        assert upload.draft is not None
        upload.draft.publish(upload.manifest, upload.check.sealer.peaks)

    async def _commit(self, runner: "JobRunner", upload: _Upload, rest: deque[bytes]) -> Receipt:
        try:
            with self._ending(runner, NOT_STORED):
                return await self._enter(runner, upload, rest)
        except Rejected as error:
            await self._reject(runner, upload, error)
            raise
        finally:
            if self._uploads.get(upload.task.id) is upload:
                del self._uploads[upload.task.id]

    @contextmanager
    def _ending(self, runner: "JobRunner", why: str) -> Iterator[None]:
        """End a job with whose models the store can do nothing, now or later: its sites would try for ever."""
        try:
            yield
        except (NotFound, Broken) as error:
            runner.post(ev.EngineFailed(at=self._federation.clock.now(), reason=f"{why}: {error}"))
            raise

    async def _enter(self, runner: "JobRunner", upload: _Upload, rest: deque[bytes]) -> Receipt:
        """Publish an update and tell the engine."""
        task = upload.task
        try:
            runner.open_task(task.id, task.site)
            faults.reach("update-received")
            await self._federation.workers.io(self._finish, upload, rest)
            faults.reach("update-published")
        except BaseException:
            self._throw_away(upload)
            raise
        finally:
            upload.place.leave()
        event = ev.UpdateArrived(
            at=self._federation.clock.now(),
            task=task.id,
            site=task.site,
            facts=upload.facts
            if isinstance(task.work, Init)
            else upload.facts.model_copy(update={"anatomy": None}),
            digest=upload.manifest.digest.hex(),
            tensors=len(upload.manifest.digests),
            outline=_outline(runner, upload),
        )
        try:
            await runner.post(event)
        except Stale:
            await self._federation.workers.io(self._federation.store.delete, update_key(task.id))
            raise
        receipt = runner.receipt(task.id, task.site)
        assert receipt is not None, "an update that was accepted has a receipt"
        return receipt

    async def _described(
        self, runner: "JobRunner", task: Task, manifest: Manifest, facts: UpdateFacts
    ) -> Receipt:
        """Take the outline of a model that version 0 gives the numbers for: nothing need be uploaded."""
        current = runner.machine.state.current
        assert current is not None
        given = (await self._federation.manifest(current)).spec
        try:
            check_manifest(manifest)
            _require_likeness(manifest.spec, given)
        except Rejected as error:
            await self._quarantine(runner, task, str(error))
            raise
        told = ev.ModelDescribed(
            at=self._federation.clock.now(),
            task=task.id,
            site=task.site,
            digest=manifest.digest.hex(),
            outline=outline_of(manifest.spec, facts.anatomy),
        )
        try:
            await runner.post(told)
        except Stale:  # the same offer may have come twice
            if not runner.receipt(task.id, task.site):
                raise
        receipt = runner.receipt(task.id, task.site)
        assert receipt is not None, "a description that was accepted has a receipt"
        return receipt

    async def _check_offer(self, runner: "JobRunner", task: Task, manifest: Manifest) -> FrameCheck:
        try:
            check_manifest(manifest)
            if isinstance(task.work, Train):
                with self._ending(runner, "a model was lost"):
                    wanted = (await self._federation.manifest(task.models[0])).spec
                if task.work.tensors:
                    wanted = wanted.subset(task.work.tensors)
                require_fit(wanted, manifest.spec)
            elif not isinstance(task.work, Init):
                raise Refused(f"task {task.id} asks for no model")
            return FrameCheck(manifest)
        except Rejected as error:
            self.discard(task.id)
            await self._quarantine(runner, task, str(error))
            raise

    async def turn_down(self, site: SiteName, task_id: TaskId, reason: str) -> None:
        """Refuse an update of which the site says nonsense; the task is lost, unless the update is here already."""
        upload = self._uploads.get(task_id)
        runner = self._federation.runner(job_of(task_id))
        task = runner.machine.state.tasks.get(task_id)
        if task is not None and task.site == site and not (upload and upload.commit):
            self.discard(task_id)
            await self._quarantine(runner, task, reason)

    async def _reject(self, runner: "JobRunner", upload: _Upload, error: Rejected) -> None:
        """Throw away an update whose frames are not what they should be, unless another took its place."""
        if self._uploads.get(upload.task.id) is upload:
            self.discard(upload.task.id)
            await self._quarantine(runner, upload.task, str(error))

    async def _quarantine(self, runner: "JobRunner", task: Task, reason: str) -> None:
        while len(self._rejected) >= REMEMBERED:
            self._rejected.pop(next(iter(self._rejected)))
        self._rejected[task.site, task.id] = reason
        log.warning("job %s: the update of %s is quarantined: %s", task.job, task.site, reason)
        event = ev.UpdateQuarantined(
            at=self._federation.clock.now(), task=task.id, site=task.site, reason=reason
        )
        await asyncio.wait([runner.post(event)])

    def discard(self, task: TaskId) -> None:
        """Throw away what has come for a task."""
        upload = self._uploads.pop(task, None)
        if upload and upload.commit is None:
            upload.place.leave()
            self._throw_away(upload)

    def _throw_away(self, upload: _Upload) -> None:
        """Discard a draft on a worker thread: the store may be far away, or away."""
        chore = asyncio.create_task(self._discard(upload))
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _discard(self, upload: _Upload) -> None:
        if upload.conveyor:
            await upload.conveyor.settle()  # no thread may write a draft that is thrown away
        if upload.draft:
            await self._federation.workers.io(upload.draft.discard)


def _describes(runner: "JobRunner", task: Task) -> bool:
    """Whether a site is only to tell what it built: version 0 came from a file."""
    return isinstance(task.work, Init) and runner.machine.state.current is not None


def _require_likeness(built: ModelSpec, given: ModelSpec) -> None:
    """Refuse a description of another model than the file's."""
    wrong = misfit(built, given, types=False)  # learners convert types
    if wrong:
        raise Rejected(f"init: the file does not fit the app's model: {wrong}")


def _outline(runner: "JobRunner", upload: _Upload) -> Outline | None:
    """Describe version 0 to a rule that needs to know it."""
    wanted = isinstance(upload.task.work, Init) and runner.machine.rule.needs_outline
    return outline_of(upload.manifest.spec, upload.facts.anatomy) if wanted else None


def _heed(commit: "asyncio.Task[Receipt]") -> None:
    """Mark an outcome as seen: the connection that wanted it may be gone."""
    if not commit.cancelled():
        commit.exception()
