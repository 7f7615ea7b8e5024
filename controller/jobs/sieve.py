"""Picks some tensors out of a model as its frames arrive: only what travels belongs to a job's models."""

from collections.abc import Iterator

from hansa.common.models.frames import FRAME, Layout, as_bytes
from hansa.common.models.model import ALIGN, ModelSpec


class Sieve:
    """Turns the frames of a model into those of some of its tensors, in the same order."""

    def __init__(self, layout: Layout, picked: ModelSpec) -> None:
        self._layout, self._names = layout, picked.index
        self._room = bytearray()  # what has arrived of the next frame

    def feed(self, index: int, frame: bytes) -> Iterator[bytes]:
        """Take a frame and yield the frames that are complete now."""
        content = as_bytes(frame)
        for span in self._layout.spans(index):
            info = self._layout.spec.tensors[span.tensor]
            if info.name in self._names:
                self._room += content[span.at : span.at + span.size]
                if span.stop == info.nbytes:
                    self._room += bytes(-info.nbytes % ALIGN)
        last = index == self._layout.frames - 1
        while len(self._room) >= FRAME or (last and self._room):
            yield bytes(self._room[:FRAME])
            del self._room[:FRAME]
