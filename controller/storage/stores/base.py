"""The contract of a store. Methods block and may be called from any worker thread.

A model is never changed in place: it is written frame by frame into a draft, and appears under its key,
complete, when the draft is published. Publishing returns when the model is durable. Publishing under the same
key again replaces the model as a whole. Readers that opened a model may go on reading after it is replaced or
deleted.

Errors: StoreFailed means that the store is out of reach or full, and that the same call may succeed later;
the controller waits and tries again, so every call must be repeatable after it, `publish` included. Broken
means that something is lost or damaged; nobody tries again.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType

from hansa.common.models.frames import Buffer, Layout
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.ids import JobId, ModelKey


class StoredModel(ABC):
    """A published model, open for reading."""

    def __init__(self, key: ModelKey, manifest: Manifest, peaks: Sequence[float]) -> None:
        self.key = key
        self.manifest = manifest
        self.peaks = tuple(peaks)  # largest magnitude of each tensor, for the grid of the accumulator
        self.layout = Layout(manifest.spec)

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Return frame `index`."""

    @abstractmethod
    def close(self) -> None:
        """Release what reading needed."""

    def __enter__(self) -> "StoredModel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


class Draft(ABC):
    """A model being written; nobody sees it until it is published."""

    @abstractmethod
    def write(self, index: int, frame: Buffer) -> None:
        """Write frame `index`. Frames may come in any order and may be repeated."""

    @abstractmethod
    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        """Make the model appear under its key, durably. An existing model is replaced as a whole."""

    @abstractmethod
    def discard(self) -> None:
        """Discard the draft; harmless after publish. From then on, writing and publishing raise Broken."""


class Store(ABC):
    """Keeps models by key."""

    url: str

    @abstractmethod
    def acquire(self) -> None:
        """Claim the store for this controller, or raise Taken if another controller uses it.

        Two controllers that share a store would sweep each other's drafts. A store that only this process
        can reach has nothing to claim. Readers (`hansa job verify`) never claim a store.
        """

    @abstractmethod
    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""

    @abstractmethod
    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""

    @abstractmethod
    def has(self, key: ModelKey) -> bool:
        """Whether the store has a model."""

    @abstractmethod
    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none."""

    def forget(self, job: JobId) -> None:
        """Remove all models of a job and give their space back at once; harmless if it is repeated."""
        for key in self.keys(f"{job}/"):
            self.delete(key)

    @abstractmethod
    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""

    @abstractmethod
    def sweep(self) -> None:
        """Remove drafts that will never be published: those of a controller that was killed."""

    @abstractmethod
    def close(self) -> None:
        """Close the store."""
