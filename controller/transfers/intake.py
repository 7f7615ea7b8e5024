"""The intake of updates: offered, checked frame by frame, made durable, committed; resumable at any frame."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from hansa.common.models.auxiliary import require_first
from hansa.common.models.conveyor import Conveyor
from hansa.common.models.frames import FrameCheck
from hansa.common.models.model import Manifest, check_manifest, require_fit
from hansa.common.process import faults
from hansa.common.values.errors import Broken, NotFound, PluginFailed, Refused, Rejected, Stale, Unoffered
from hansa.common.values.ids import SiteName, TaskId, job_of, update_key
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Init, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.runner import JobRunner, mark_as_seen
from hansa.controller.plugin.outline import Outline, outline_of
from hansa.controller.storage.stores import Store
from hansa.controller.transfers.descriptions import describe, is_description
from hansa.controller.transfers.gate import Gate
from hansa.controller.transfers.manifests import Manifests
from hansa.controller.transfers.quarantine import Quarantine
from hansa.controller.transfers.uploads import Upload, Uploads
from hansa.controller.transfers.wanted import Encoded, wanted_update
from hansa.controller.work.drafts import Drafts
from hansa.controller.work.workers import Workers

NOT_STORED = "an update could not be stored"


class Intake:
    """Takes updates in."""

    def __init__(
        self,
        jobs: Jobs,
        uploads: Uploads,
        gate: Gate,
        manifests: Manifests,
        store: Store,
        workers: Workers,
    ) -> None:
        self._jobs, self._uploads, self._gate, self._manifests = jobs, uploads, gate, manifests
        self._store, self._workers = store, workers
        self.quarantine = Quarantine()

    async def require_wanted(self, site: SiteName, task_id: TaskId) -> None:
        """Refuse an update that no job waits for, before it is decoded."""
        self._jobs.archive.require_receipt(site, task_id)
        runner = await self._jobs.recall(job_of(task_id))
        self.quarantine.require_none(site, task_id)
        if not self._uploads.get(task_id) and not runner.receipt(task_id, site):
            runner.open_task(task_id, site)

    async def offer(
        self, site: SiteName, task_id: TaskId, manifest: Manifest, facts: UpdateFacts
    ) -> tuple[int, Receipt | None]:
        """Announce an update; return the first frame wanted, or the receipt if it is already committed."""
        runner = await self._jobs.recall(job_of(task_id))
        upload = self._uploads.get(task_id)
        if upload and upload.commit and upload.task.site == site:  # its receipt comes when it is durable
            return 0, await asyncio.shield(upload.commit)
        receipt = runner.receipt(task_id, site)
        if receipt:
            return 0, receipt
        self.quarantine.require_none(site, task_id)
        task = runner.open_task(task_id, site)
        if is_description(runner, task):
            return 0, await describe(runner, task, manifest, facts, self._manifests, self.quarantine)
        if upload is None or upload.manifest != manifest:
            check, encoded = await self._check_offer(runner, task, manifest)
            newest = self._uploads.get(task_id)
            if newest is not upload or (upload and upload.commit):  # another offer or frames came meanwhile
                return await self.offer(site, task_id, manifest, facts)
            runner.open_task(task_id, site)  # it may have ended meanwhile
            self._uploads.discard(task_id)
            place = self._gate.place(site, check.sealer.layout.size)
            upload = Upload(task, manifest, facts, check, place, encoded)
            self._uploads.enter(upload)
        else:
            await upload.settle()  # frames that came over a stuck connection need not be sent again
        await upload.place.enter()
        if not self._uploads.is_current(upload):
            upload.place.leave()
        if upload.commit:  # the rest of it arrived meanwhile
            return 0, await asyncio.shield(upload.commit)
        self._uploads.require_current(upload)
        return upload.check.next, None

    async def receive(
        self, site: SiteName, task_id: TaskId, start: int, frames: AsyncIterator[bytes]
    ) -> Receipt:
        """Take the frames of an offered update and commit it; if the connection breaks, they are kept."""
        runner = self._jobs.runner(job_of(task_id))
        upload = self._uploads.get(task_id)
        if upload is None or upload.task.site != site:
            receipt = runner.receipt(task_id, site)
            if receipt:  # an older connection has brought the last frames since the offer
                return receipt
            runner.open_task(task_id, site)  # if it ended between offer and upload, that is the reason
            # It was never offered, or the controller has been restarted since.
            raise Unoffered(f"task {task_id}: offer the update before uploading it")
        upload.stream += 1
        mine = upload.stream
        async with upload.turn:  # an older connection may still be writing its last frame
            if upload.commit is None:
                self._uploads.require_current(upload, mine)
                await upload.settle()  # an older connection may have ended without waiting for its frames
                if start > upload.check.next:
                    raise Unoffered(f"task {task_id}: frame {upload.check.next} is expected, not {start}")
                try:
                    with self._ending(runner, NOT_STORED):
                        rest = await self._take(upload, mine, start, frames, runner)
                except Rejected as error:
                    await self._reject(runner, upload, error)
                    raise
                upload.commit = asyncio.create_task(self._commit(runner, upload, rest))
                upload.commit.add_done_callback(mark_as_seen)
        return await asyncio.shield(upload.commit)

    async def _take(
        self, upload: Upload, mine: int, start: int, frames: AsyncIterator[bytes], runner: JobRunner
    ) -> deque[bytes]:
        """Check and store frames on a worker thread while others arrive; return the last, unprocessed."""
        conveyor = upload.conveyor = Conveyor[bytes](
            lambda batch: self._workers.io(upload.keep, self._store, batch)
        )
        place, came, wanted = upload.place, upload.check.next, upload.check.sealer.layout.frames
        place.working, place.lost = lambda: upload.working, conveyor.hasten
        known = came - start  # frames that came by an older connection after the site was told where to start
        complete = False
        try:
            await place.enter()
            async for frame in frames:
                runner.traffic.up += len(frame)
                await place.moved()
                self._uploads.require_current(upload, mine)
                if known:
                    known -= 1
                    continue
                await conveyor.put(frame)
                came += 1
                if not place.held:
                    conveyor.hasten()  # without a place, no frames may pile up
            if came < wanted:
                await conveyor.drain()  # if a frame was wrong, the site is told that instead
                raise Refused(f"task {upload.task.id}: the stream ended after {came} frames")
            rest = await conveyor.rest()
            self._uploads.require_current(upload)  # its draft may have been discarded
            complete = True
            return rest
        finally:
            await conveyor.settle()
            if not complete:
                place.leave()

    async def _commit(self, runner: JobRunner, upload: Upload, rest: deque[bytes]) -> Receipt:
        try:
            with self._ending(runner, NOT_STORED):
                return await self._enter(runner, upload, rest)
        except Rejected as error:
            await self._reject(runner, upload, error)
            raise
        finally:
            self._uploads.remove(upload)

    @contextmanager
    def _ending(self, runner: JobRunner, why: str) -> Iterator[None]:
        """End a job whose models the store has lost or cannot keep, or whose encoding fails.

        Its sites would try for ever.
        """
        try:
            yield
        except (NotFound, Broken, PluginFailed) as error:
            reason = str(error) if isinstance(error, PluginFailed) else f"{why}: {error}"
            runner.post(ev.EngineFailed(at=runner.now(), reason=reason))
            raise

    async def _enter(self, runner: JobRunner, upload: Upload, rest: deque[bytes]) -> Receipt:
        """Publish an update and tell the engine."""
        task = upload.task
        try:
            runner.open_task(task.id, task.site)
            faults.reach("update-received")
            await self._workers.io(upload.finish, self._store, rest)
            decoded = await self._decode(runner, upload) if upload.encoded else ""
            faults.reach("update-published")
        except BaseException:
            self._uploads.throw_away(upload)
            raise
        finally:
            upload.place.leave()
        event = ev.UpdateArrived(
            at=runner.now(),
            task=task.id,
            site=task.site,
            facts=_facts(upload),
            digest=upload.manifest.digest.hex(),
            decoded=decoded,
            bytes_up=upload.check.sealer.layout.size,
            tensors=len(upload.manifest.digests),
            outline=_outline(runner, upload),
            averaged=upload.manifest.spec.is_averaged,
        )
        try:
            await runner.post(event)
        except Stale:
            await self._workers.io(self._store.delete, update_key(task.id))
            raise
        receipt = runner.receipt(task.id, task.site)
        assert receipt is not None, "an update that was accepted has a receipt"
        return receipt

    async def _decode(self, runner: JobRunner, upload: Upload) -> str:
        """Store what an encoded update stands for in place of what was sent; return its digest."""
        faults.reach("update-encoded")
        drafts = Drafts(self._store)
        try:
            manifest = await self._workers.compute(upload.decode, self._store, drafts)
        except Exception as error:
            await self._workers.io(drafts.discard)
            await self._workers.io(self._store.delete, upload.key)
            if isinstance(error, NotFound):  # the model that it started from is kept only until its task ends
                runner.open_task(upload.task.id, upload.task.site)
            raise
        await self._workers.io(self._store.delete, upload.key)
        return manifest.digest.hex()

    async def _check_offer(
        self, runner: JobRunner, task: Task, manifest: Manifest
    ) -> tuple[FrameCheck, Encoded | None]:
        """Refuse an update that its task does not ask for; return how frames are checked and decoded."""
        encoded = None
        try:
            check_manifest(manifest)
            if isinstance(task.work, Train):
                with self._ending(runner, "a model was lost"):
                    base = (await self._manifests.read(task.models[0])).spec
                    wanted, encoded = wanted_update(task.work, base)
                require_fit(wanted, manifest.spec)
            elif isinstance(task.work, Init):
                require_first(manifest, [each.name for each in runner.machine.rule.auxiliary])
            else:
                raise Refused(f"task {task.id} does not ask for a model")
            return FrameCheck(manifest), encoded
        except Rejected as error:
            self._uploads.discard(task.id)
            await self.quarantine.put(runner, task, str(error))
            raise

    async def turn_down(self, site: SiteName, task_id: TaskId, reason: str) -> None:
        """Refuse an update with invalid facts; the task is lost unless the update is being committed."""
        upload = self._uploads.get(task_id)
        runner = self._jobs.runner(job_of(task_id))
        task = runner.machine.state.tasks.get(task_id)
        if task is not None and task.site == site and not (upload and upload.commit):
            self._uploads.discard(task_id)
            await self.quarantine.put(runner, task, reason)

    async def _reject(self, runner: JobRunner, upload: Upload, error: Rejected) -> None:
        """Discard an update whose frames are wrong, unless another upload has replaced it."""
        if self._uploads.is_current(upload):
            self._uploads.discard(upload.task.id)
            await self.quarantine.put(runner, upload.task, str(error))


def _facts(upload: Upload) -> UpdateFacts:
    """Return the facts that the job is told about an update; an anatomy comes only with version 0."""
    if isinstance(upload.task.work, Init):
        return upload.facts
    return upload.facts.model_copy(update={"anatomy": None})


def _outline(runner: JobRunner, upload: Upload) -> Outline | None:
    """Return the outline of version 0 for a rule that needs it."""
    wanted = isinstance(upload.task.work, Init) and runner.machine.rule.needs_outline
    return outline_of(upload.manifest.spec, upload.facts.anatomy) if wanted else None
