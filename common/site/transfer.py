"""Models in and out of a site: delta download, resumable upload."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Executor

import numpy as np

from hansa.common import codec, faults
from hansa.common.conveyor import Conveyor
from hansa.common.errors import Unreachable
from hansa.common.frames import FRAME, FrameCheck, Layout, allocate, cut, views
from hansa.common.ids import ModelKey, TaskId
from hansa.common.memory import Buffers
from hansa.common.model import DTYPES, Manifest, ModelSpec, check_manifest
from hansa.common.rpc.errors import translated
from hansa.common.site.attendance import Attendance
from hansa.common.tasks import Receipt, UpdateFacts
from hansa.protos import fleet_pb2 as fleet


class Fetcher:
    """Downloads models and remembers the tensors of the last one, so that what did not change need not travel."""

    def __init__(self, attendance: Attendance, pool: Executor) -> None:
        self._attendance = attendance
        self._pool = pool
        self._held: dict[bytes, np.ndarray] = {}
        self._buffers = Buffers()

    async def fetch(self, key: ModelKey, base: ModelKey | None = None) -> tuple[Manifest, dict[str, np.ndarray]]:
        """Return a model's manifest and its tensors; the arrays are read-only, and stay while somebody holds them.

        A partial model is laid over a `base`, whose other tensors it is returned with.
        """
        if base is None:
            return await self._attendance.insist(lambda: self._fetch(key))
        under, arrays = await self._attendance.insist(lambda: self._fetch(base))
        below = self._held
        over, changed = await self._attendance.insist(lambda: self._fetch(key))
        self._held = below | self._held  # the next partial model is likely to be laid over the same base
        digests = dict(zip(over.spec.names, over.digests, strict=True))
        laid = (digests.get(name, digest) for name, digest in zip(under.spec.names, under.digests, strict=True))
        return Manifest(under.spec, tuple(laid)), arrays | changed

    async def _fetch(self, key: ModelKey) -> tuple[Manifest, dict[str, np.ndarray]]:
        request = fleet.FetchRequest(site=self._attendance.identity.site, model=key, held=list(self._held))
        likely = sum(array.nbytes for array in self._held.values())  # the next model is about as large as the last
        async with self._attendance.apart(likely) as stub:
            with translated():
                stream = aiter(stub.Fetch(request))
                header = fleet.FetchHeader.FromString(await anext(stream))
                manifest = codec.manifest_from_wire(header.manifest)
                check_manifest(manifest)
                arrived = await self._receive(_part(manifest, list(header.sent)), stream)
        arrays = {}
        for info, digest in zip(manifest.spec.tensors, manifest.digests, strict=True):
            array = arrived.get(info.name)
            if array is None:  # a digest stands for bytes: the tensor that had them may have had another type
                array = self._held[digest].view(DTYPES[info.dtype]).reshape(info.shape)
            array.flags.writeable = False
            arrays[info.name] = array
        held = zip(manifest.spec.names, manifest.digests, strict=True)
        self._held = {digest: arrays[name].reshape(-1).view(np.uint8) for name, digest in held}
        return manifest, arrays

    async def _receive(self, part: Manifest, frames: AsyncIterator[bytes]) -> dict[str, np.ndarray]:
        """Put frames together and check them on a worker thread, while the next ones arrive."""
        layout = Layout(part.spec)
        payload = allocate(layout, self._buffers.take(layout.size))
        check = FrameCheck(part, finite=False)
        loop = asyncio.get_running_loop()

        def keep(batch: deque[bytes]) -> None:
            while batch:
                frame = batch.popleft()
                at = check.next * FRAME
                check.feed(frame)
                payload[at : at + len(frame)] = np.frombuffer(frame, np.uint8)

        conveyor = Conveyor[bytes](lambda batch: loop.run_in_executor(self._pool, keep, batch))
        try:
            async for frame in frames:
                await conveyor.put(frame)
            await conveyor.drain()
        finally:
            await conveyor.settle()
        if not check.complete:
            raise Unreachable("the download ended early")
        return views(layout, payload)


def _part(manifest: Manifest, sent: list[int]) -> Manifest:
    spec = ModelSpec(tuple(manifest.spec.tensors[i] for i in sent), manifest.spec.layers)
    return Manifest(spec, tuple(manifest.digests[i] for i in sent))


async def hand_in(
    attendance: Attendance, task: TaskId, manifest: Manifest, payload: np.ndarray, facts: UpdateFacts
) -> Receipt:
    """Offer and upload an update until the controller has given its receipt; resume where a connection broke."""
    site = attendance.identity.site
    offer = fleet.OfferRequest(
        site=site, task=task, manifest=codec.manifest_to_wire(manifest), facts=codec.facts_to_wire(facts)
    )

    async def once() -> Receipt:
        reply = await attendance.stub.Offer(offer)
        if reply.HasField("receipt"):
            return codec.receipt_from_wire(reply.receipt)
        header = fleet.UploadHeader(site=site, task=task, start=reply.start)
        faults.reach("task-offered")

        async def messages() -> AsyncIterator[bytes]:
            yield header.SerializeToString()
            for frame in cut(payload, reply.start):
                yield frame.tobytes()
                faults.reach("task-uploading")

        async with attendance.apart(payload.nbytes - reply.start * FRAME) as stub:
            return codec.receipt_from_wire(await stub.Upload(messages()))

    return await attendance.insist(once)
