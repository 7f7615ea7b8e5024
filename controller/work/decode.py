"""Decodes an update that was sent as differences: the result is stored as if it had been sent as it is."""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from hansa.common.encodings.contract import Encoding
from hansa.common.encodings.model import moved, pieces_of, reader
from hansa.common.models.frames import Layout, Sealer, numbers
from hansa.common.models.model import DTYPES, Manifest, ModelSpec
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import HansaError, Rejected
from hansa.common.values.ids import ModelKey
from hansa.controller.community.reading import Cache, read_numbers
from hansa.controller.storage.stores import Store, StoredModel
from hansa.controller.work.drafts import Drafts

CACHED = 4  # frames of each model that are kept in memory


def decode(
    store: Store,
    encoding: Encoding,
    spec: ModelSpec,
    sent: ModelKey,
    bases: tuple[ModelKey, ...],
    key: ModelKey,
    drafts: Drafts,
) -> Manifest:
    """Publish under `key` what an update stands for, and return its manifest.

    `spec` is that of the update before it was encoded; `bases` are the model that its task started from and,
    if that one is partial, first the model below it. Raises Rejected if the encoding is wrong.
    """
    drafts.discard()  # of an earlier try, while which the store was unavailable
    with ExitStack() as stack:
        encoded = _Numbers(stack.enter_context(store.open(sent)))
        below = [_Numbers(stack.enter_context(store.open(base))) for base in bases]
        draft, sealer = drafts.open(key, spec), Sealer(spec)
        for index, frame in enumerate(_frames(encoding, spec, encoded, below)):
            sealer.feed(frame)
            draft.write(index, frame)
        for info, peak in zip(spec.tensors, sealer.peaks, strict=True):
            if not np.isfinite(peak):
                raise Rejected(f"tensor {info.name} holds NaN or infinite values once it is decoded")
        draft.publish(sealer.manifest(), sealer.peaks)
    drafts.published()
    return sealer.manifest()


def _frames(
    encoding: Encoding, spec: ModelSpec, encoded: "_Numbers", below: "list[_Numbers]"
) -> Iterator[np.ndarray]:
    layout = Layout(spec)
    for index in range(layout.frames):
        frame = layout.blank(index)
        for span in layout.spans(index):
            info = spec.tensors[span.tensor]
            width = DTYPES[info.dtype].itemsize
            start, stop = span.start // width, span.stop // width
            room = numbers(info, span, frame)
            if not pieces_of(encoding, info):
                room[...] = encoded.read(info.name, start, stop)
                continue
            read = reader(encoded.read, info.name)
            try:
                with calling(encoding, HansaError):  # reading may fail, too
                    if not start:
                        encoding.require(info.shape, read)
                    difference = encoding.decode(info.shape, read, start, stop)
            except Rejected as error:
                raise Rejected(f"tensor {info.name}: {error}") from None
            base = next(model for model in reversed(below) if model.has(info.name))
            room[...] = moved(base.read(info.name, start, stop), difference, info.dtype)
        yield frame


class _Numbers:
    """Reads the numbers of a stored model, with its last few frames in memory."""

    def __init__(self, model: StoredModel) -> None:
        self._model = model
        self._cache: Cache = {}

    def has(self, name: str) -> bool:
        """Whether the model has a tensor."""
        return name in self._model.manifest.spec.index

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return the numbers start … stop-1 of a tensor."""
        while len(self._cache) > CACHED:
            self._cache.pop(next(iter(self._cache)))
        return read_numbers(self._model, name, start, stop, self._cache)
