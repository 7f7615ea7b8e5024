"""Models in Redis: frames as values, so that no value is ever larger than 1 MiB.

A model's record names the id of its frames. Publishing writes the record, which is one value, so a reader
sees the old model or the new. Durability is that of Redis: with `appendfsync always`, an acknowledged update
survives a power failure.
"""

import logging
import secrets
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from hansa.common.models.frames import Buffer, Layout, as_bytes
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.rpc.codec import manifest_from_wire, manifest_to_wire
from hansa.common.values.errors import Broken, NotFound, StoreFailed
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.redis.space import RedisSpace
from hansa.controller.storage.stores.base import Draft, Store, StoredModel
from hansa.protos import model_pb2

log = logging.getLogger(__name__)
HEAD = struct.Struct("<16sI")  # id of the frames, number of peaks; peaks and manifest follow
NAME = 16  # characters of that id


class _Model(StoredModel):
    _closed = True  # until the record has been read: it may be damaged

    def __init__(self, readers: "_Readers", key: ModelKey, record: bytes) -> None:
        name, count = HEAD.unpack_from(record)
        peaks = struct.unpack_from(f"<{count}d", record, HEAD.size)
        wire = model_pb2.Manifest.FromString(record[HEAD.size + 8 * count :])
        super().__init__(key, manifest_from_wire(wire), peaks)
        self._readers, self.space, self.name = readers, readers.space, name.decode()
        self._closed = False

    def read(self, index: int) -> bytes:
        with self.space.answering():
            frame: bytes | None = self.space.client.get(self.space.key("frame", self.name, index))
        if frame is None:
            cause = "Redis evicted it, lost it in a restart, or it was deleted"
            raise Broken(f"frame {index} of model {self.key} is gone: {cause}")
        if len(frame) != self.layout.frame_size(index):
            raise Broken(f"frame {index} of model {self.key} is damaged: {len(frame)} bytes")
        return frame

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._readers.leave(self.name)

    def __del__(self) -> None:
        self.close()


class _Readers:
    """Counts the readers of frames: frames without a record are removed when their last reader is done."""

    def __init__(self, space: RedisSpace) -> None:
        self.space = space
        self._lock = threading.Lock()
        self._count: Counter[str] = Counter()
        self._retired: dict[str, int] = {}
        self._unremoved: dict[str, int] = {}  # frames that could not be removed yet

    def open(self, key: ModelKey, record: Callable[[ModelKey], bytes | None]) -> StoredModel | None:
        """Open a model; from the moment its record is read, its frames are kept."""
        with self._lock:
            text = record(key)
            if text is None:
                return None
            model = _Model(self, key, text)
            self._count[model.name] += 1
            return model

    def leave(self, name: str) -> None:
        with self._lock:
            self._count[name] -= 1
            if self._count[name]:
                return
            del self._count[name]  # models come and go for as long as we run
            frames = self._retired.pop(name, None)
        if frames is not None:
            self._remove(name, frames)

    def condemn(self, key: ModelKey, record: bytes) -> tuple[str, int]:
        """Note that a record's frames are to be removed, before the record is."""
        name, count = HEAD.unpack_from(record)
        wire = model_pb2.Manifest.FromString(record[HEAD.size + 8 * count :])
        frames = Layout(manifest_from_wire(wire).spec).frames
        note_frames(self.space, name.decode(), frames, key)
        return name.decode(), frames

    def retire(self, name: str, frames: int) -> None:
        """Remove the frames of a record that is gone, now or when their last reader is done."""
        with self._lock:
            if self._count[name]:
                self._retired[name] = frames
                return
        self._remove(name, frames)

    def _remove(self, name: str, frames: int) -> None:
        self._unremoved[name] = frames
        self.tidy()

    def tidy(self) -> None:
        """Remove frames that could not be removed yet; if Redis is unavailable, do it later or in a sweep."""
        try:
            for name, frames in list(self._unremoved.items()):
                remove_frames(self.space, name, frames)
                self._unremoved.pop(name, None)
        except Broken as error:  # also if we have lost the lease: the controller that took it sweeps them
            log.info("some frames could not be removed yet: %s", error)


class _Draft(Draft):
    def __init__(self, readers: _Readers, key: ModelKey, spec: ModelSpec) -> None:
        self._readers, self.space, self._key = readers, readers.space, key
        self._id = secrets.token_hex(8)
        self._frames = Layout(spec).frames
        self._open = True
        self._lock = threading.Lock()  # it may be discarded while a thread is still writing
        self._replaced: tuple[str, int] | None = None
        self._noted = False  # for a sweep: before the first frame, under the same id in every try

    def write(self, index: int, frame: Buffer) -> None:
        with self._lock:
            self._note()
            self.space.write("SET", self.space.key("frame", self._id, index), as_bytes(frame))

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        record = HEAD.pack(self._id.encode(), len(peaks)) + struct.pack(f"<{len(peaks)}d", *peaks)
        record += manifest_to_wire(manifest).SerializeToString()
        space = self.space
        with self._lock, space.answering():
            self._note()
            old = space.client.get(space.key("model", self._key))
            if old and not old.startswith(self._id.encode()):  # else the first try came this far
                self._replaced = self._readers.condemn(self._key, old)
            space.write("SADD", space.key("models"), self._key)  # a key without a record is not a model
            space.write("SET", space.key("model", self._key), record)
            space.write("HDEL", space.key("drafts"), self._id)
            self._open = False
            if self._replaced:
                self._readers.retire(*self._replaced)

    def _note(self) -> None:
        if not self._open:
            raise Broken(f"the draft of {self._key} was discarded: frames would be left behind, or missing")
        if not self._noted:
            note_frames(self.space, self._id, self._frames, self._key)
            self._noted = True

    def discard(self) -> None:
        with self._lock:
            if self._open:
                try:
                    remove_frames(self.space, self._id, self._frames)
                except StoreFailed:
                    raise  # it may pass
                except Broken as error:  # Redis has lost them, or a sweep will remove them
                    log.info("frames of %s could not be removed: %s", self._key, error)
                self._open = False


class RedisStore(Store):
    """Models below a controller's prefix. The space's lease keeps out other controllers."""

    def __init__(self, space: RedisSpace) -> None:
        self.url = space.name
        self.space = space
        self._readers = _Readers(space)
        self._doomed: dict[ModelKey, tuple[str, int]] = {}  # frames of deletions that have not succeeded yet

    def acquire(self) -> None:
        """Claim the keyspace, or renew the claim."""
        self.space.acquire()

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        return _Draft(self._readers, key, spec)

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        try:
            model = self._readers.open(key, self._record)
        except (struct.error, DecodeError, ValueError) as error:
            raise Broken(f"model {key}: its record in Redis is damaged") from error
        if model is None:
            raise NotFound(f"the store has no model {key}")
        return model

    def has(self, key: ModelKey) -> bool:
        """Whether the store has a model."""
        with self.space.answering():
            return bool(self.space.client.exists(self.space.key("model", key)))

    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none."""
        record = self._record(key)
        if record:
            self._doomed[key] = self._readers.condemn(key, record)
        self.space.write("DEL", self.space.key("model", key))
        self.space.write("SREM", self.space.key("models"), key)
        condemned = self._doomed.pop(key, None)
        if condemned:
            self._readers.retire(*condemned)

    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""
        with self.space.answering():
            members = [key.decode() for key in self.space.client.smembers(self.space.key("models"))]
            keys = sorted(ModelKey(key) for key in members if key.startswith(prefix))
            with self.space.client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.exists(self.space.key("model", key))
                return [key for key, exists in zip(keys, pipeline.execute(), strict=True) if exists]

    def sweep(self) -> None:
        """Remove unpublished drafts, frames without a record, and keys without one.

        A controller makes a note before it writes or removes frames, so complete models are not examined.
        """
        space = self.space
        with space.answering():
            for name, note in space.client.hgetall(space.key("drafts")).items():
                frames, _, key = note.decode().partition(" ")
                record = space.key("model", key)
                kind = space.client.type(record)
                if kind == b"string" and space.client.getrange(record, 0, NAME - 1) == name:
                    # The model was to be removed, and was not: it is complete.
                    space.write("HDEL", space.key("drafts"), name)
                    continue
                if kind == b"none":
                    space.write("SREM", space.key("models"), key)
                remove_frames(space, name.decode(), int(frames))

    def close(self) -> None:
        """Remove frames that could not be removed yet; the caller that opened the space closes it."""
        self._readers.tidy()

    def _record(self, key: ModelKey) -> bytes | None:
        with self.space.answering():
            record: bytes | None = self.space.client.get(self.space.key("model", key))
            return record


def note_frames(space: RedisSpace, name: str, frames: int, key: ModelKey) -> None:
    """Note that a model's frames are being written or removed: if we die meanwhile, `sweep` finds them."""
    space.write("HSET", space.key("drafts"), name, f"{frames} {key}")


def remove_frames(space: RedisSpace, name: str, frames: int) -> None:
    """Remove frames and the note that they are to be removed."""
    space.remove(space.key("frame", name, index) for index in range(frames))
    space.write("HDEL", space.key("drafts"), name)
