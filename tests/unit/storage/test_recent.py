"""A store with recent models in memory: what it keeps and drops. The contract test covers the rest."""

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hansa.common.models.frames import Layout, pack, seal
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.errors import NotFound
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores.base import Draft
from hansa.controller.storage.stores.disk import DiskStore
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.storage.stores.recent import SMALL, RecentStore, with_recent
from tests.unit.samples import keep, payload_of, spec_of, values

SPEC = spec_of({"w": ("float32", (1024,))})
SIZE = Layout(SPEC).size
MANIFEST = seal(SPEC, pack(SPEC, {"w": np.zeros(1024, np.float32)}))
OTHER = seal(SPEC, pack(SPEC, {"w": np.ones(1024, np.float32)}))


@pytest.fixture
def below(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "store")


def at_hand(store: RecentStore, below: DiskStore, key: str) -> bool:
    """Whether a model can be read without the store below."""
    below.delete(ModelKey(key))
    try:
        with store.open(ModelKey(key)) as model:
            return len(payload_of(model)) == SIZE
    except NotFound:
        return False


def test_the_newest_models_are_at_hand_and_the_oldest_make_room(below: DiskStore) -> None:
    store = RecentStore(below, SMALL * SIZE)
    for number in range(SMALL + 2):
        keep(store, f"j/u{number}", SPEC, values(SPEC, number))
    held = [at_hand(store, below, f"j/u{number}") for number in range(SMALL + 2)]
    assert held == [False, False, *[True] * SMALL]


def test_a_model_that_would_drive_the_others_out_is_left_to_the_store_below(below: DiskStore) -> None:
    store = RecentStore(below, SMALL * SIZE - 1)
    keep(store, "j/u1", SPEC, values(SPEC, 1))
    with store.open(ModelKey("j/u1")) as model:
        assert len(payload_of(model)) == SIZE
    assert not at_hand(store, below, "j/u1")


def test_a_deleted_model_is_gone_from_memory_too(below: DiskStore) -> None:
    store = RecentStore(below, SMALL * SIZE)
    keep(store, "j/u1", SPEC, values(SPEC, 1))
    store.delete(ModelKey("j/u1"))
    with pytest.raises(NotFound):
        store.open(ModelKey("j/u1"))


def test_a_replaced_model_is_the_new_one(below: DiskStore) -> None:
    store = RecentStore(below, SMALL * SIZE)
    keep(store, "j/u1", SPEC, values(SPEC, 1))
    keep(store, "j/u1", SPEC, values(SPEC, 2))
    with store.open(ModelKey("j/u1")) as above, below.open(ModelKey("j/u1")) as under:
        assert payload_of(above).tobytes() == payload_of(under).tobytes()


def test_a_store_in_memory_needs_no_memory_before_it(below: DiskStore) -> None:
    memory = MemoryStore()
    assert with_recent(memory, 1 << 30) is memory
    assert isinstance(with_recent(below, 1 << 30), RecentStore)


def frozen() -> np.ndarray:
    frame = np.zeros(SIZE, dtype=np.uint8)
    frame.flags.writeable = False
    return frame


def test_drafts_that_are_never_finished_take_no_more_memory_than_there_is(below: DiskStore) -> None:
    """Slow or disconnected sites have parts of updates here until their tasks are over."""
    store = RecentStore(below, SMALL * SIZE)
    drafts, frames = [], []
    for number in range(5 * SMALL):
        drafts.append(store.draft(ModelKey(f"j/u{number}"), SPEC))
        frame = frozen()
        frames.append(weakref.ref(frame))
        drafts[-1].write(0, frame)
        del frame
    assert sum(frame() is not None for frame in frames) <= SMALL
    for number, draft in enumerate(drafts):
        draft.publish(MANIFEST, [0.0])
        with store.open(ModelKey(f"j/u{number}")) as model:
            assert payload_of(model).tobytes() == bytes(SIZE)


def test_a_draft_that_is_written_is_kept_rather_than_one_that_is_not(below: DiskStore) -> None:
    store = RecentStore(below, SMALL * SIZE)
    stuck = store.draft(ModelKey("j/stuck"), SPEC)
    stuck.write(0, frozen())
    for number in range(SMALL):
        keep(store, f"j/u{number}", SPEC, values(SPEC, number))
    assert all(at_hand(store, below, f"j/u{number}") for number in range(SMALL))
    stuck.publish(MANIFEST, [0.0])
    assert not at_hand(store, below, "j/stuck")


def test_discarded_drafts_make_room(below: DiskStore) -> None:
    store = RecentStore(below, SMALL * SIZE)
    keep(store, "j/u1", SPEC, values(SPEC, 1))
    for number in range(3 * SMALL):
        draft = store.draft(ModelKey(f"j/x{number}"), SPEC)
        draft.write(0, frozen())
        draft.discard()
    assert at_hand(store, below, "j/u1")
    store.delete(ModelKey("j/u1"))
    assert store.free == SMALL * SIZE


def test_a_model_that_is_replaced_by_a_large_one_is_the_new_one(below: DiskStore) -> None:
    store = RecentStore(below, SMALL * SIZE)
    large = spec_of({"w": ("float32", (2000,))})
    keep(store, "j/u1", SPEC, values(SPEC, 1))
    keep(store, "j/u1", large, values(large, 2))
    with store.open(ModelKey("j/u1")) as model:
        assert model.manifest.spec == large


class Slow(DiskStore):
    """A disk on which something else happens right after a model was published."""

    def __init__(self, root: Path, then: Callable[[], None]) -> None:
        super().__init__(root)
        self._then = then

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        draft, then = super().draft(key, spec), self._then
        published = draft.publish

        def publish(manifest: Manifest, peaks: Sequence[float]) -> None:
            published(manifest, peaks)
            then()

        draft.publish = publish  # type: ignore[method-assign]
        return draft


def test_a_model_that_is_deleted_while_it_is_published_is_gone(tmp_path: Path) -> None:
    store: RecentStore = RecentStore(
        Slow(tmp_path / "store", lambda: store.delete(ModelKey("j/u1"))), SMALL * SIZE
    )
    draft = store.draft(ModelKey("j/u1"), SPEC)
    draft.write(0, frozen())
    draft.publish(MANIFEST, [0.0])
    assert not store.has(ModelKey("j/u1"))
    with pytest.raises(NotFound):
        store.open(ModelKey("j/u1"))


def test_of_two_drafts_that_are_published_at_once_the_store_below_says_which_it_is(tmp_path: Path) -> None:
    others: list[Draft] = []
    disk = Slow(tmp_path / "store", lambda: others.pop().publish(OTHER, [1.0]) if others else None)
    store = RecentStore(disk, SMALL * SIZE)
    first, second = (store.draft(ModelKey("j/u1"), SPEC) for _ in range(2))
    first.write(0, frozen())
    second.write(0, np.full(SIZE // 4, 1, np.float32).tobytes())
    others.append(second)
    first.publish(MANIFEST, [0.0])
    with store.open(ModelKey("j/u1")) as above, disk.open(ModelKey("j/u1")) as under:
        assert above.manifest == under.manifest == OTHER
        assert payload_of(above).tobytes() == payload_of(under).tobytes()
