"""A site's transfers: delta downloads of models and uploads of updates, resumed after a broken connection."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor

import numpy as np

from hansa.common.models.conveyor import Conveyor
from hansa.common.models.frames import FRAME, Layout, cut, views
from hansa.common.models.model import DTYPES, Manifest, TensorInfo
from hansa.common.process import faults
from hansa.common.process.memory import Buffers
from hansa.common.rpc import codec
from hansa.common.rpc.errors import translated
from hansa.common.rpc.incoming import Incoming
from hansa.common.site.attendance import Attendance
from hansa.common.values.errors import Rejected
from hansa.common.values.ids import ModelKey, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.protos import fleet_pb2 as fleet


class Fetcher:
    """Downloads models and keeps the tensors of the last one, so that unchanged tensors need not travel."""

    def __init__(self, attendance: Attendance, pool: Executor) -> None:
        self._attendance = attendance
        self._pool = pool
        self._held: dict[bytes, np.ndarray] = {}
        self._buffers = Buffers()

    async def fetch(
        self, key: ModelKey, base: ModelKey | None = None, auxiliary: Sequence[str] = ()
    ) -> tuple[Manifest, dict[str, np.ndarray]]:
        """Return a model's manifest and its tensors, as read-only arrays.

        A partial model is returned with the other tensors of its `base`. `auxiliary` names tensors beside the
        model that are fetched as well, if it has them.
        """
        if base is None:
            return await self._fetch(key, auxiliary)
        under, arrays = await self._fetch(base)
        below = self._held
        over, changed = await self._fetch(key)
        self._held = below | self._held  # the next partial model is likely to have the same base
        digests = dict(zip(over.spec.names, over.digests, strict=True))
        laid = (
            digests.get(name, digest) for name, digest in zip(under.spec.names, under.digests, strict=True)
        )
        return Manifest(under.spec, tuple(laid)), arrays | changed

    async def _fetch(
        self, key: ModelKey, auxiliary: Sequence[str] = ()
    ) -> tuple[Manifest, dict[str, np.ndarray]]:
        incoming = Incoming(finite=False, room=self._buffers.take)
        await self._attendance.insist(lambda: self.receive(key, incoming, auxiliary), lambda: incoming.start)
        manifest, arrived = incoming.manifest, views(Layout(incoming.part), incoming.payload)
        arrays = {}
        for info, digest in zip(manifest.spec.tensors, manifest.digests, strict=True):
            array = arrived.get(info.name)
            if (
                array is None
            ):  # the digest identifies bytes: the tensor that had them may have had another type
                array = self._recall(info, digest)
            array.flags.writeable = False
            arrays[info.name] = array
        held = zip(manifest.spec.names, manifest.digests, strict=True)
        self._held = {digest: arrays[name].reshape(-1).view(np.uint8) for name, digest in held}
        return manifest, arrays

    def _recall(self, info: TensorInfo, digest: bytes) -> np.ndarray:
        tensor = self._held.get(digest)
        if tensor is None or tensor.nbytes != info.nbytes:
            raise Rejected(f"the controller did not send tensor {info}, which this site does not have")
        return tensor.view(DTYPES[info.dtype]).reshape(info.shape)

    async def receive(self, key: ModelKey, incoming: Incoming, auxiliary: Sequence[str]) -> None:
        """Receive frames over one connection; a worker thread checks them while the next ones arrive."""
        site, held = self._attendance.identity.site, list(self._held)
        start, header = incoming.start, incoming.header
        request = fleet.FetchRequest(
            site=site, model=key, held=held, start=start, continued=header, auxiliary=auxiliary
        )
        # The next model is about as large as the last.
        likely = sum(array.nbytes for array in self._held.values())
        size = likely if incoming.missing is None else incoming.missing
        loop = asyncio.get_running_loop()

        def keep(batch: deque[bytes]) -> None:
            while batch:
                incoming.feed(batch.popleft())

        async with self._attendance.apart(size) as stub:
            with translated():
                stream = aiter(stub.Fetch(request))
                incoming.begin(await anext(stream, b""))
                conveyor = Conveyor[bytes](lambda batch: loop.run_in_executor(self._pool, keep, batch))
                try:
                    async for frame in stream:
                        await conveyor.put(frame)
                    await conveyor.drain()
                finally:
                    await conveyor.settle()  # keep what has arrived, even if the connection was cut
        incoming.finish()


async def hand_in(
    attendance: Attendance, task: TaskId, manifest: Manifest, payload: np.ndarray, facts: UpdateFacts
) -> Receipt:
    """Offer and upload an update until the controller returns a receipt; resume after a broken connection."""
    site = attendance.identity.site
    offer = fleet.OfferRequest(
        site=site, task=task, manifest=codec.manifest_to_wire(manifest), facts=codec.facts_to_wire(facts)
    )

    received = 0  # frames that the controller has

    async def once() -> Receipt:
        nonlocal received
        reply = await attendance.stub.Offer(offer)
        received = reply.start
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

    return await attendance.insist(once, lambda: received)
