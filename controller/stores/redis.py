"""Models in Redis: frames as values, so that no value is ever larger than 1 MiB.

A model's record names the id of its frames. Publishing writes the record, one value, so a reader sees the old model or
the new. Durability is that of the Redis: with `appendfsync always` an acknowledged update survives a power failure.
"""

import secrets
import struct
from collections.abc import Sequence

from hansa.common.codec import manifest_from_wire, manifest_to_wire
from hansa.common.errors import Broken, NotFound
from hansa.common.frames import Buffer, Layout, as_bytes
from hansa.common.ids import ModelKey
from hansa.common.model import Manifest, ModelSpec
from hansa.controller.redis_space import RedisSpace
from hansa.controller.stores.base import Draft, Store, StoredModel
from hansa.protos import model_pb2

HEAD = struct.Struct("<16sI")  # id of the frames, number of peaks; peaks and manifest follow


class _Model(StoredModel):
    def __init__(self, space: RedisSpace, key: ModelKey, record: bytes) -> None:
        name, count = HEAD.unpack_from(record)
        peaks = struct.unpack_from(f"<{count}d", record, HEAD.size)
        wire = model_pb2.Manifest.FromString(record[HEAD.size + 8 * count :])
        super().__init__(key, manifest_from_wire(wire), peaks)
        self._space, self._id = space, name.decode()

    def read(self, index: int) -> bytes:
        with self._space.answering():
            frame: bytes | None = self._space.client.get(self._space.key("frame", self._id, index))
        if frame is None:
            lost = "Redis evicted it, lost it in a restart, or it was deleted"
            raise Broken(f"frame {index} of model {self.key} is gone: {lost}")
        return frame

    def close(self) -> None:
        pass


class _Draft(Draft):
    def __init__(self, space: RedisSpace, key: ModelKey, spec: ModelSpec) -> None:
        self._space, self._key = space, key
        self._id = secrets.token_hex(8)
        self._frames = Layout(spec).frames
        self._open = True
        with space.answering():
            space.client.hset(space.key("drafts"), self._id, self._frames)

    def write(self, index: int, frame: Buffer) -> None:
        with self._space.answering():
            self._space.client.set(self._space.key("frame", self._id, index), bytes(as_bytes(frame)))

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        record = HEAD.pack(self._id.encode(), len(peaks)) + struct.pack(f"<{len(peaks)}d", *peaks)
        record += manifest_to_wire(manifest).SerializeToString()
        space = self._space
        with space.answering():
            old = space.client.get(space.key("model", self._key))
            space.client.sadd(space.key("models"), self._key)  # a key without a record is no model
            space.client.set(space.key("model", self._key), record)
            space.client.hdel(space.key("drafts"), self._id)
            self._open = False
            if old and not old.startswith(self._id.encode()):
                _unlink(space, old)

    def discard(self) -> None:
        if self._open:
            self._open = False
            with self._space.answering():
                _unlink_frames(self._space, self._id, self._frames)
                self._space.client.hdel(self._space.key("drafts"), self._id)


class RedisStore(Store):
    """Models below a controller's prefix. The space's lease keeps other controllers away."""

    def __init__(self, space: RedisSpace) -> None:
        self.url = space.name
        self._space = space

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        return _Draft(self._space, key, spec)

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        record = self._record(key)
        if record is None:
            raise NotFound(f"the store holds no model {key}")
        try:
            return _Model(self._space, key, record)
        except Exception as error:
            raise Broken(f"model {key}: its record in Redis is damaged") from error

    def has(self, key: ModelKey) -> bool:
        """Whether a model is there."""
        return self._record(key) is not None

    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none."""
        record = self._record(key)
        with self._space.answering():
            self._space.client.delete(self._space.key("model", key))
            self._space.client.srem(self._space.key("models"), key)
            if record:
                _unlink(self._space, record)

    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""
        with self._space.answering():
            held = [key.decode() for key in self._space.client.smembers(self._space.key("models"))]
        return sorted(ModelKey(key) for key in held if key.startswith(prefix) and self.has(ModelKey(key)))

    def sweep(self) -> None:
        """Remove drafts that nobody will publish."""
        space = self._space
        with space.answering():
            for left, frames in space.client.hgetall(space.key("drafts")).items():
                _unlink_frames(space, left.decode(), int(frames))
                space.client.hdel(space.key("drafts"), left)

    def close(self) -> None:
        """Nothing to do: the space is closed by whoever opened it."""

    def _record(self, key: ModelKey) -> bytes | None:
        with self._space.answering():
            found: bytes | None = self._space.client.get(self._space.key("model", key))
            return found


def _unlink(space: RedisSpace, record: bytes) -> None:
    name, count = HEAD.unpack_from(record)
    wire = model_pb2.Manifest.FromString(record[HEAD.size + 8 * count :])
    _unlink_frames(space, name.decode(), Layout(manifest_from_wire(wire).spec).frames)


def _unlink_frames(space: RedisSpace, name: str, frames: int) -> None:
    for index in range(frames):
        space.client.unlink(space.key("frame", name, index))
