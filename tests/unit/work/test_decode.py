"""The controller decodes an update: bit for bit what its learner says, whatever it was laid over."""

import numpy as np
import pytest

from hansa.common.encodings.contract import Encoding
from hansa.common.encodings.float16 import Float16
from hansa.common.encodings.int8 import Int8
from hansa.common.encodings.model import encoded_spec
from hansa.common.encodings.topk import TopK
from hansa.common.models.frames import FRAME, FrameCheck, Layout, cut, pack, seal, views
from hansa.common.models.model import DTYPES, Manifest, ModelSpec, Role, TensorInfo
from hansa.common.values.errors import NotFound, PluginFailed, Rejected, StoreFailed
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import Store, StoredModel
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.work.decode import decode
from hansa.controller.work.drafts import Drafts
from hansa.learner.training.encoding import encode

SPEC = ModelSpec(
    (
        TensorInfo("first", "float32", (700, 500), Role.PARAM),  # over more than one frame
        TensorInfo("b", "float32", (3,), Role.PARAM),
        TensorInfo("wide", "float64", (20, 10), Role.PARAM),
        TensorInfo("second", "float32", (FRAME // 2,), Role.PARAM),
        TensorInfo("norm.mean", "float32", (50,), Role.STAT),
        TensorInfo("norm.count", "int64", (), Role.COUNT),
    ),
    ("layer",),
)
ENCODINGS = [Float16(), Int8(), TopK(share=0.01), TopK(share=0.4)]
BASE, OVER, SENT, UPDATE = (ModelKey(f"j/{name}") for name in ("v0", "u1", "u2.sent", "u2"))
Arrays = dict[str, np.ndarray]


def drawn(seed: int, spec: ModelSpec = SPEC) -> Arrays:
    chance = np.random.default_rng(seed)
    return {i.name: chance.standard_normal(i.shape).astype(DTYPES[i.dtype]) for i in spec.tensors}


def put(store: Store, key: ModelKey, manifest: Manifest, payload: np.ndarray) -> None:
    draft, check = store.draft(key, manifest.spec), FrameCheck(manifest)
    for index, frame in enumerate(cut(payload)):
        draft.write(index, frame)
        check.feed(frame)
    draft.publish(manifest, check.sealer.peaks)


def put_arrays(store: Store, key: ModelKey, spec: ModelSpec, arrays: Arrays) -> None:
    payload = pack(spec, arrays)
    put(store, key, seal(spec, payload), payload)


def read(store: Store, key: ModelKey) -> Arrays:
    with store.open(key) as model:
        payload = np.frombuffer(b"".join(model.read(i) for i in range(model.layout.frames)), np.uint8)
        return views(model.layout, payload)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=repr)
@pytest.mark.parametrize("partial", [(), ("first", "norm.mean")], ids=["whole", "partial"])
@pytest.mark.parametrize("laid", [False, True], ids=["on a whole model", "on a partial one"])
def test_the_controller_stores_what_the_learner_says(
    encoding: Encoding, partial: tuple[str, ...], laid: bool
) -> None:
    store, start = MemoryStore(), drawn(1)
    put_arrays(store, BASE, SPEC, start)
    bases: tuple[ModelKey, ...] = (BASE,)
    if laid:
        over = SPEC.subset(["first", "wide"])
        start |= drawn(3, over)
        put_arrays(store, OVER, over, {name: start[name] for name in over.names})
        bases = (BASE, OVER)
    spec = SPEC.subset(partial) if partial else SPEC
    update = drawn(2, spec)
    put(store, SENT, *encode(encoding, spec, start, update, {}))
    manifest = decode(store, encoding, spec, SENT, bases, UPDATE, Drafts(store))
    stored = read(store, UPDATE)
    assert list(stored) == list(spec.names)
    for name, array in update.items():
        assert stored[name].tobytes() == array.tobytes(), name
    payload = pack(spec, update)
    assert manifest == seal(spec, payload)
    with store.open(UPDATE) as model:
        check = FrameCheck(manifest)
        for index in range(model.layout.frames):
            check.feed(model.read(index))
        assert list(model.peaks) == check.sealer.peaks


def hostile(encoding: Encoding, **changes: np.ndarray) -> tuple[Store, ModelSpec]:
    """Return a store with an encoded update of a small model, in which arrays are changed."""
    store, spec = MemoryStore(), SPEC.subset(["wide", "norm.count"])
    start = drawn(1, spec)
    put_arrays(store, BASE, spec, start)
    manifest, payload = encode(encoding, spec, start, drawn(2, spec), {})
    arrays = views(Layout(manifest.spec), payload) | {
        f"wide@{name}": array for name, array in changes.items()
    }
    put_arrays(store, SENT, manifest.spec, arrays)
    return store, spec


@pytest.mark.parametrize(
    ("encoding", "changes", "why"),
    [
        (TopK(share=0.01), {"indices": np.array([3, 3], np.uint32)}, "wide: indices are repeated or"),
        (TopK(share=0.01), {"indices": np.array([3, 200], np.uint32)}, "wide: index 200 is out of range"),
        (Int8(), {"scale": np.full(20, -1, np.float32)}, "wide: a scale is negative or not finite"),
    ],
)
def test_an_encoding_that_nobody_writes_is_rejected_and_nothing_is_stored(
    encoding: Encoding, changes: Arrays, why: str
) -> None:
    store, spec = hostile(encoding, **changes)
    drafts = Drafts(store)
    with pytest.raises(Rejected, match=why):
        decode(store, encoding, spec, SENT, (BASE,), UPDATE, drafts)
    drafts.discard()
    assert not store.has(UPDATE)


def test_a_model_that_overflows_once_it_is_decoded_is_rejected() -> None:
    store, spec = MemoryStore(), ModelSpec((TensorInfo("w", "float32", (4, 100), Role.PARAM),))
    put_arrays(store, BASE, spec, {"w": np.full((4, 100), 3e38, np.float32)})
    sent = encoded_spec(Int8(), spec)
    scales, multiples = np.full(4, 2e36, np.float32), np.full((4, 100), 127, np.int8)
    put_arrays(store, SENT, sent, {"w@scale": scales, "w@int8": multiples})
    with pytest.raises(Rejected, match="tensor w holds NaN or infinite values once it is decoded"):
        decode(store, Int8(), spec, SENT, (BASE,), UPDATE, Drafts(store))


def test_an_encoding_that_fails_is_named_but_a_lost_model_is_not_its_fault() -> None:
    class Odd(Float16):
        def decode(self, shape: tuple[int, ...], read: object, start: int, stop: int) -> np.ndarray:
            raise ZeroDivisionError

    store, spec = hostile(Float16())
    with pytest.raises(PluginFailed, match="encoding 'float16': ZeroDivisionError"):
        decode(store, Odd(), spec, SENT, (BASE,), UPDATE, Drafts(store))
    store.delete(BASE)
    with pytest.raises(NotFound):
        decode(store, Float16(), spec, SENT, (BASE,), UPDATE, Drafts(store))


def test_decoding_starts_again_when_the_store_was_unavailable() -> None:
    class Flaky(MemoryStore):
        failures = 1

        def open(self, key: ModelKey) -> StoredModel:
            if key == BASE and self.failures:
                self.failures -= 1
                raise StoreFailed("out of reach")
            return super().open(key)

    store, spec = Flaky(), SPEC.subset(["wide", "norm.count"])
    put_arrays(store, BASE, spec, drawn(1, spec))
    update = drawn(2, spec)
    put(store, SENT, *encode(Int8(), spec, drawn(1, spec), update, {}))
    drafts = Drafts(store)
    with pytest.raises(StoreFailed):
        decode(store, Int8(), spec, SENT, (BASE,), UPDATE, drafts)
    decode(store, Int8(), spec, SENT, (BASE,), UPDATE, drafts)
    assert read(store, UPDATE)["wide"].tobytes() == update["wide"].tobytes()
