"""Models as files: one file per model, the frames first, then manifest and peaks, then a short footer.

A file under `models/` is always complete: it is written under `drafts/`, synced, and renamed. Files of
deleted models are kept as spares, which new drafts overwrite.
"""

import errno
import fcntl
import os
import secrets
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hansa.common.models.frames import FRAME, Buffer, Layout, as_bytes
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.process.files import sync_folder
from hansa.common.rpc.codec import manifest_from_wire, manifest_to_wire
from hansa.common.values.errors import Broken, NotFound, StoreFailed, Taken
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.storage.stores.base import Draft, Store, StoredModel
from hansa.controller.storage.stores.spares import Spares
from hansa.protos import model_pb2

FULL = {errno.ENOSPC, errno.EDQUOT}
PASSING = FULL | {errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.EACCES, errno.ESTALE}
FOOTER = struct.Struct("<QQ8s")  # bytes of the manifest, bytes of the peaks, magic
MAGIC = b"hansa.m1"


class _Model(StoredModel):
    def __init__(
        self, spares: Spares, key: ModelKey, manifest: Manifest, peaks: Sequence[float], handle: int
    ) -> None:
        super().__init__(key, manifest, peaks)
        self._spares, self._handle = spares, handle

    def read(self, index: int) -> bytes:
        try:
            frame = os.pread(self._handle, self.layout.frame_size(index), index * FRAME)
        except OSError as error:
            raise _trouble(f"reading frame {index} of model {self.key}", error) from error
        if len(frame) != self.layout.frame_size(index):
            raise Broken(f"model {self.key}: its file is cut off in frame {index}")
        return frame

    def close(self) -> None:
        if self._handle >= 0:
            self._spares.leave(self._handle)
            self._handle = -1

    def __del__(self) -> None:
        self.close()


class _Draft(Draft):
    def __init__(self, spares: Spares, durable: set[Path], draft: Path, final: Path, spec: ModelSpec) -> None:
        self._draft, self._final, self._spares, self._durable = draft, final, spares, durable
        self._lock = threading.Lock()  # it may be discarded while a thread is still writing
        self._size = Layout(spec).size
        spare, self._handle = spares.take(self._size), -1
        try:
            self._handle = os.open(spare or draft, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if spare:
                spare.replace(draft)
        except OSError:  # the caller cannot discard this draft: another try makes another one
            for path in (spare, draft):
                if path:
                    path.unlink(missing_ok=True)
            if self._handle >= 0:
                os.close(self._handle)
            raise

    def write(self, index: int, frame: Buffer) -> None:
        try:
            with self._lock:  # a handle that is closed meanwhile may already belong to another file
                _write(self._handle, as_bytes(frame), index * FRAME)
        except OSError as error:
            if error.errno in FULL:
                self._spares.clear()  # they only save time, and may take the space that is missing
            raise _trouble(f"writing {self._draft}", error) from error

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        head = manifest_to_wire(manifest).SerializeToString()
        tail = struct.pack(f"<{len(peaks)}d", *peaks)
        try:
            with self._lock:
                self._publish(head + tail + FOOTER.pack(len(head), len(tail), MAGIC))
        except OSError as error:
            raise _trouble(f"writing {self._final}", error) from error

    def _publish(self, end: bytes) -> None:
        _write(self._handle, memoryview(end), self._size)
        os.ftruncate(self._handle, self._size + len(end))
        os.fdatasync(self._handle)
        self._make_folder(self._final.parent)
        placed = self._final.is_file() and os.path.samestat(self._final.stat(), os.fstat(self._handle))
        if not placed:  # else this is a second try, and the first one came this far
            self._draft.replace(self._final)  # a reader sees the old model or the new, never a part of one
        sync_folder(self._final.parent)
        os.close(self._handle)
        self._handle = -1

    def _make_folder(self, folder: Path) -> None:
        """Make a job's folder durable. An existing folder may not be: its creator may have been killed."""
        if folder not in self._durable or not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
            self._durable.add(folder)

    def discard(self) -> None:
        with self._lock:
            if self._handle >= 0:
                try:
                    self._draft.unlink(missing_ok=True)  # first: if it fails, this can be tried again
                except OSError as error:
                    raise _trouble(f"removing {self._draft}", error) from error
                os.close(self._handle)
                self._handle = -1


class DiskStore(Store):
    """A folder of models. Only the controller that has acquired it may write; others may read."""

    def __init__(self, root: Path) -> None:
        self.url = f"disk:{root}"
        self._lock: int | None = None
        self._root = root
        self._models, self.drafts = root / "models", root / "drafts"
        self._spares = Spares(root / "spares")
        self._durable: set[Path] = set()  # folders of jobs whose names have been synced
        try:
            self._models.mkdir(parents=True, exist_ok=True)
            self.drafts.mkdir(exist_ok=True)
            (root / "spares").mkdir(exist_ok=True)
        except OSError as error:
            raise _trouble(f"store {root}", error) from error

    def acquire(self) -> None:
        """Take the store for this process or raise Taken: two state directories may name the same store."""
        try:
            handle = os.open(self._root / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _trouble(f"store {self._root}", error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 20, 0).decode(errors="replace") or "unknown"
            os.close(handle)
            raise Taken(f"store {self._root} is in use by the controller with pid {holder}") from None
        self._lock = handle
        with suppress(OSError):  # the disk may be full; we have the lock nevertheless
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)

    @property
    def readers(self) -> int:
        """How many models are open."""
        return self._spares.readers

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        try:
            return _Draft(
                self._spares, self._durable, self.drafts / secrets.token_hex(8), self._path(key), spec
            )
        except OSError as error:
            raise _trouble(f"writing below {self.drafts}", error) from error

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        path = self._path(key)
        if path.is_dir():
            raise NotFound(f"the store has no model {key}")
        try:
            handle = self._spares.open(path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"the store has no model {key}") from None
        except OSError as error:
            raise _trouble(f"reading {path}", error) from error
        try:
            manifest, peaks = _read_tail(handle)
            return _Model(self._spares, key, manifest, peaks, handle)
        except Exception as error:
            self._spares.leave(handle)
            if isinstance(error, OSError) and error.errno in PASSING:
                raise _trouble(f"reading {path}", error) from error  # the file may be intact
            raise Broken(f"model {key}: {path} is damaged") from error

    def has(self, key: ModelKey) -> bool:
        """Whether the store has a model."""
        return self._path(key).is_file()

    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none."""
        try:
            if self._path(key).is_file():
                self._spares.retire(self._path(key))
        except OSError as error:
            raise _trouble(f"removing {self._path(key)}", error) from error

    def forget(self, job: JobId) -> None:
        """Remove all models of a job, its folder, and the spare files that might be its models."""
        folder = self._models / job
        try:
            if folder.is_dir():
                for path in folder.iterdir():
                    path.unlink(missing_ok=True)
                folder.rmdir()
                sync_folder(self._models)
            self._durable.discard(folder)
            self._spares.clear()
        except OSError as error:
            raise _trouble(f"removing {folder}", error) from error

    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""
        keys = (str(path.relative_to(self._models)) for path in self._models.glob("*/*"))
        return sorted(ModelKey(key) for key in keys if key.startswith(prefix))

    def sweep(self) -> None:
        """Remove the drafts and spares of a controller that was killed."""
        try:
            for path in (*self.drafts.iterdir(), *(self.drafts.parent / "spares").iterdir()):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _trouble(f"sweeping {self._root}", error) from error

    def close(self) -> None:
        """Remove the spares and release the lock."""
        self._spares.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _path(self, key: ModelKey) -> Path:
        return self._models / key


def _read_tail(handle: int) -> tuple[Manifest, list[float]]:
    size = os.fstat(handle).st_size
    heads, tails, magic = FOOTER.unpack(os.pread(handle, FOOTER.size, size - FOOTER.size))
    if magic != MAGIC:
        raise ValueError("no footer")
    start = size - FOOTER.size - heads - tails
    both = os.pread(handle, heads + tails, start)
    manifest = manifest_from_wire(model_pb2.Manifest.FromString(both[:heads]))
    if Layout(manifest.spec).size != start:
        raise ValueError("wrong size")
    return manifest, [value for (value,) in struct.iter_unpack("<d", both[heads:])]


def _write(handle: int, data: memoryview, at: int) -> None:
    """Write all of the data: a disk that is nearly full may take only a part at first."""
    while data:
        written = os.pwrite(handle, data, at)
        data, at = data[written:], at + written


def _trouble(what: str, error: OSError) -> Broken:
    """Return StoreFailed for an error that may pass (full, out of handles), else Broken."""
    kind = StoreFailed if error.errno in PASSING else Broken
    return kind(f"{what}: {error.strerror}")
