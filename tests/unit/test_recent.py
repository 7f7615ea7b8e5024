"""A store with recent models in memory: what it keeps, and what it lets go. That it is a store, the contract tests."""

from pathlib import Path

import pytest

from hansa.common.errors import NotFound
from hansa.common.frames import Layout
from hansa.common.ids import ModelKey
from hansa.controller.stores.disk import DiskStore
from hansa.controller.stores.memory import MemoryStore
from hansa.controller.stores.recent import SMALL, RecentStore, with_recent
from tests.unit.samples import keep, payload_of, spec_of, values

SPEC = spec_of({"w": ("float32", (1000,))})
SIZE = Layout(SPEC).size


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
