"""Examinations: a part of the rule reads stored models, and the arrays it keeps are stored as models."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hansa.common.models.frames import FRAME, Sealer, cut, pack
from hansa.common.models.model import DTYPES, ModelSpec, Role, TensorInfo
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import StoreFailed
from hansa.common.values.ids import JobId, ModelKey, kept_key
from hansa.controller.community.excerpts import own_part
from hansa.controller.community.reading import Cache, Library, read_numbers
from hansa.controller.engine.orders import Examine, Examined
from hansa.controller.plugin.evidence import Evidence
from hansa.controller.plugin.parts import Part
from hansa.controller.plugin.view import Contribution
from hansa.controller.storage.stores import Store
from hansa.controller.work.drafts import Drafts

LEAST = 1024  # columns that are read at once, however little memory there is
NUMBERS = "numbers"  # the only tensor of a kept array's model


def warm_up(part: Part[Any]) -> None:
    """Let a part load what its examinations need."""
    with calling(part):
        part.warm_up()


def examine(
    job: JobId, number: int, order: Examine, part: Part[Any], store: Store, drafts: Drafts, memory: int
) -> tuple[Examined, tuple[ModelKey, ...]]:
    """Let a part examine models, and store the arrays it keeps; return the result and the arrays' keys."""
    with Library(lambda key: own_part(store.open(key))) as library:
        evidence = StoredEvidence(order, library, memory // 4)
        with calling(part, StoreFailed):  # the order is carried out again when the store is back
            findings = part.examine(order.question, order.contributions, evidence)
            # The engine must get the same facts now as in a replay: lists for tuples, and no NaN.
            facts = json.loads(json.dumps(findings.facts, allow_nan=False))
            keep = sorted(findings.keep.items())
    digests: dict[str, str] = {}
    keys: list[ModelKey] = []
    for place, (name, array) in enumerate(keep):
        digests[name] = ""
        if array is not None:
            keys.append(kept_key(job, number, place))
            digests[name] = _keep(drafts, keys[-1], np.asarray(array))
    drafts.published()
    return Examined(facts=facts, kept=digests), tuple(keys)


def _keep(drafts: Drafts, key: ModelKey, array: np.ndarray) -> str:
    """Store an array as a model with one tensor and return the model's digest."""
    role = Role.PARAM if array.dtype.kind == "f" else Role.COUNT
    spec = ModelSpec((TensorInfo(NUMBERS, array.dtype.name, array.shape, role),))
    draft, sealer = drafts.open(key, spec), Sealer(spec)
    for index, frame in enumerate(cut(pack(spec, {NUMBERS: array}))):
        sealer.feed(frame)
        draft.write(index, frame)
    draft.publish(sealer.manifest(), sealer.peaks)
    return sealer.manifest().digest.hex()


class StoredEvidence(Evidence):
    """The models of an examination, read from the store; frames are cached as long as there is memory."""

    def __init__(self, order: Examine, library: Library, memory: int) -> None:
        self._order, self._library, self._memory = order, library, memory
        self._caches: dict[ModelKey, Cache] = {}
        self.spec = library.get(order.current).manifest.spec

    def carried(self, contribution: Contribution) -> Sequence[str]:
        """Return the tensors that an update carries."""
        return self._library.get(contribution.model).manifest.spec.names

    def numbers(self, contribution: Contribution, tensor: str) -> np.ndarray:
        """Return a tensor of the model behind a contribution."""
        return self._read(self._source(contribution, tensor), tensor)

    def community(self, tensor: str) -> np.ndarray:
        """Return a tensor of the newest community model."""
        return self._read(self._order.current, tensor)

    def rows(self, contributions: Sequence[Contribution], tensor: str) -> Iterator[np.ndarray]:
        """Yield a tensor of many models, a row for each, piece by piece."""
        count = self.spec.tensors[self.spec.index[tensor]].elements
        columns = max(LEAST, self._memory // (8 * max(1, len(contributions))))
        for start in range(0, count, columns):
            stop = min(start + columns, count)
            rows = np.empty((len(contributions), stop - start))
            for row, contribution in zip(rows, contributions, strict=True):
                row[...] = self._part(self._source(contribution, tensor), tensor, start, stop)
            yield rows

    def kept(self, name: str) -> np.ndarray | None:
        """Return the array that was kept under a name, if there is one."""
        return self._read(self._order.kept[name], NUMBERS) if name in self._order.kept else None

    def _source(self, contribution: Contribution, tensor: str) -> ModelKey:
        carries = tensor in self._library.get(contribution.model).manifest.spec.index
        return contribution.model if carries or contribution.base is None else contribution.base

    def _read(self, key: ModelKey, tensor: str) -> np.ndarray:
        spec = self._library.get(key).manifest.spec
        info = spec.tensors[spec.index[tensor]]
        return self._part(key, tensor, 0, info.elements).reshape(info.shape)

    def _part(self, key: ModelKey, tensor: str, start: int, stop: int) -> np.ndarray:
        if start == stop:
            spec = self._library.get(key).manifest.spec
            return np.empty(0, dtype=DTYPES[spec.tensors[spec.index[tensor]].dtype])
        while self._caches and sum(map(len, self._caches.values())) * FRAME > self._memory:
            self._caches.pop(next(iter(self._caches)))  # of the model that was read first
        return read_numbers(self._library.get(key), tensor, start, stop, self._caches.setdefault(key, {}))
