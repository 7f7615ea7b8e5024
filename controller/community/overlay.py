"""Models that are kept as two: a whole one, and a partial update whose tensors take the place of its own.

Whoever trains on from a partial update needs a whole model. It is put together frame by frame as it is read, so that
nothing has to be stored twice.
"""

from collections.abc import Callable

import numpy as np

from hansa.common.frames import numbers
from hansa.common.ids import ModelKey, stored_keys
from hansa.common.model import DTYPES, Manifest
from hansa.controller.community.reading import Cache, read_numbers
from hansa.controller.stores import StoredModel


class Overlaid(StoredModel):
    """A model with the tensors of a partial update in place."""

    def __init__(self, key: ModelKey, base: StoredModel, update: StoredModel) -> None:
        given = dict(zip(update.manifest.spec.names, update.manifest.digests, strict=True))
        peaks = dict(zip(update.manifest.spec.names, update.peaks, strict=True))
        spec = base.manifest.spec
        held = zip(spec.names, base.manifest.digests, strict=True)
        manifest = Manifest(spec, tuple(given.get(name, digest) for name, digest in held))
        super().__init__(key, manifest, [peaks.get(n, p) for n, p in zip(spec.names, base.peaks, strict=True)])
        self._base, self._update = base, update

    def read(self, index: int) -> bytes:
        """Return frame `index`."""
        made = bytearray(self._base.read(index))
        cache: Cache = {}
        for span in self.layout.spans(index):
            info = self.manifest.spec.tensors[span.tensor]
            if info.name in self._update.manifest.spec.index:
                width = DTYPES[info.dtype].itemsize
                place: np.ndarray = numbers(info, span, made)
                place[...] = read_numbers(self._update, info.name, span.start // width, span.stop // width, cache)
        return bytes(made)

    def close(self) -> None:
        """Close both."""
        self._base.close()
        self._update.close()


def open_whole(open_model: Callable[[ModelKey], StoredModel], key: ModelKey) -> StoredModel:
    """Open a model, put together if it is kept as two."""
    first, *updates = stored_keys(key)
    found = open_model(first)
    for update in updates:
        try:
            found = Overlaid(key, found, open_model(update))
        except BaseException:
            found.close()
            raise
    return found
