"""Models on their way to sites and operators: only missing tensors are sent, read once for all receivers."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from blake3 import blake3

from hansa.common.models.auxiliary import accompanied
from hansa.common.models.frames import FRAME, Layout, select
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.rpc import codec
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import Store, StoredModel
from hansa.controller.transfers.gate import Gate
from hansa.controller.work.workers import Workers
from hansa.protos import fleet_pb2 as fleet

AHEAD = 2  # frames that are read while as many are being sent: a download has at most twice this in memory
HOT = 64 << 20  # bytes of recent frames that are kept, at most
Reading = asyncio.Future[list[bytes]]


@dataclass
class _Shared:
    """An open model and the number of its readers."""

    opening: asyncio.Future[StoredModel]
    readers: int = 0


def header_of(manifest: Manifest, sent: Sequence[int], origin: str = "") -> bytes:
    """Return the first message of a download: the manifest, and which of its tensors follow."""
    wire = codec.manifest_to_wire(manifest)
    return fleet.FetchHeader(manifest=wire, sent=sent, origin_json=origin).SerializeToString()


class Downloads:
    """Sends models. Recent frames are kept: the sites of a round fetch the same model at the same time."""

    def __init__(self, store: Store, workers: Workers, memory: int) -> None:
        self._store, self._workers = store, workers
        self._gate = Gate(memory)
        self._room = min(HOT, memory // 8)
        self._hot: OrderedDict[tuple[ModelKey, int], list[bytes]] = OrderedDict()  # models never change
        self._open: dict[ModelKey, _Shared] = {}

    @property
    def open_models(self) -> set[ModelKey]:
        """The models that are being read."""
        return set(self._open)

    async def send(
        self,
        key: ModelKey,
        present: set[bytes],
        who: str,
        start: int = 0,
        continued: bytes = b"",
        origin: str = "",
        auxiliary: Collection[str] = (),
    ) -> AsyncGenerator[bytes, None]:
        """Yield a model's header and the frames of those tensors whose digests are not `present`.

        A receiver that was interrupted names the digest of the header that it has (`continued`) and the first
        frame that it lacks (`start`); it gets an empty message in place of the header, and the frames from
        there on. `origin` goes into the header of a community model, next to its manifest. Of the tensors
        beside the model only those named in `auxiliary` are sent.
        """
        async with self._opened(key) as model:
            manifest = accompanied(model.manifest, auxiliary)
            sent = [i for i, digest in enumerate(manifest.digests) if digest not in present]
            header = header_of(manifest, sent, origin)
            layout = Layout(ModelSpec(tuple(manifest.spec.tensors[i] for i in sent)))
            goes_on = continued == blake3(header).digest() and start <= layout.frames
            start = start if goes_on else 0
            size = layout.size - start * FRAME
            places = [model.manifest.spec.index[info.name] for info in layout.spec.tensors]
            # The first tensors, such as the model without what is beside it, lie in the first frames.
            first = places == list(range(len(places)))
            reading = self._first(model, layout, start) if first else self._part(model, places, start)
            # A receiver that hangs up frees its place at once; the model stays open until reads are done.
            async with aclosing(reading) as batches, self._gate.passing(who, size) as place:
                batch = await anext(batches, None)
                # Not before there are frames: sites count the attempts that brought no frame.
                yield b"" if goes_on else header
                while batch is not None:
                    for frame in batch:
                        await place.moved()
                        yield frame
                    batch = await anext(batches, None)

    @asynccontextmanager
    async def _opened(self, key: ModelKey) -> AsyncIterator[StoredModel]:
        """Lend a model that stays open as long as anybody reads it."""
        shared = self._open.get(key)
        if shared is None:
            opening = asyncio.ensure_future(self._workers.io(self._store.open, key))
            shared = self._open[key] = _Shared(opening)
        shared.readers += 1
        try:
            yield await asyncio.shield(shared.opening)  # others may be waiting for it, too
        finally:
            shared.readers -= 1
            if not shared.readers:
                del self._open[key]
                if not shared.opening.done():
                    shared.opening.cancel()  # a model that the store opens later closes itself
                elif not shared.opening.cancelled() and shared.opening.exception() is None:
                    await self._workers.io(shared.opening.result().close)

    async def _first(
        self, model: StoredModel, layout: Layout, start: int
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the frames of a model's first tensors, or of all, from `start` on.

        Frames that were sent recently come from memory.
        """
        ahead: Reading | None = None
        try:
            for at in range(start - start % AHEAD, layout.frames, AHEAD):
                frames = self._recall(model, at)
                if frames is None:
                    frames = await (ahead or self._read(model, at))
                    self._keep(model, at, frames)
                missing = at + AHEAD < layout.frames and self._recall(model, at + AHEAD) is None
                ahead = self._read(model, at + AHEAD) if missing else None
                numbered = enumerate(frames[: layout.frames - at], at)
                yield [frame[: layout.frame_size(index)] for index, frame in numbered if index >= start]
        finally:
            if ahead:
                await asyncio.wait([ahead])  # it needs the model to be open

    async def _part(
        self, model: StoredModel, sent: Sequence[int], start: int
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the frames of some of a model's tensors, from frame `start` on."""
        frames = select(model.layout, model.read, sent, start)
        ahead = self._workers.begin(lambda: list(islice(frames, AHEAD)))
        try:
            while batch := await ahead:
                ahead = self._workers.begin(lambda: list(islice(frames, AHEAD)))
                yield batch
        finally:
            await asyncio.wait([ahead])

    def _read(self, model: StoredModel, at: int) -> Reading:
        return self._workers.begin(
            lambda: [model.read(i) for i in range(at, min(at + AHEAD, model.layout.frames))]
        )

    def _recall(self, model: StoredModel, at: int) -> list[bytes] | None:
        frames = self._hot.get((model.key, at))
        if frames:
            self._hot.move_to_end((model.key, at))
        return frames

    def _keep(self, model: StoredModel, at: int, frames: list[bytes]) -> None:
        self._hot[model.key, at] = frames
        while len(self._hot) * AHEAD * FRAME > self._room:
            self._hot.popitem(last=False)
