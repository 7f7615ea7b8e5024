"""Orders on worker threads: which are carried out again, and what they leave in the store."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hansa.common.values.errors import StoreFailed
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.controller.engine.effects import StartOrder
from hansa.controller.engine.orders import Merge, Merged
from hansa.controller.rulebook.compose import compose
from hansa.controller.storage.stores import StoredModel
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.values.members import Member
from hansa.controller.work.bench import Bench
from tests.unit.engine.play import job_spec
from tests.unit.samples import keep, spec_of, values

SPEC = spec_of({"w": ("float32", (3, 4)), "n": ("int64", ())})
FIRST, UPDATE, REFERENCE = ModelKey("j/v0"), ModelKey("j/u1"), ModelKey("j/reference")
MEMBER = Member(SiteName("a"), TaskId("j-1"), UPDATE, 1.0)


class Fragile(MemoryStore):
    """A store that fails a number of times when a model is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[ModelKey, int] = {}

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model, or fail."""
        if self.failures.get(key, 0):
            self.failures[key] -= 1
            raise StoreFailed("the store is away")
        return super().open(key)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as found:
        yield found


@pytest.fixture
def store() -> Fragile:
    found = Fragile()
    for seed, key in enumerate((FIRST, UPDATE, REFERENCE)):
        keep(found, key, SPEC, values(SPEC, seed))
    return found


def merge(**fields: object) -> StartOrder:
    known = {"version": 1, "current": FIRST, "added": (MEMBER,), "removed": (), "kept": True} | fields
    return StartOrder(1, Merge(**known), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("away", [FIRST, UPDATE, REFERENCE])
def test_an_order_is_carried_out_again_if_the_store_was_unavailable_at_any_time(
    store: Fragile, pool: ThreadPoolExecutor, away: ModelKey
) -> None:
    bench = Bench(JobId("j"), compose(job_spec(rule="async-fedavg")), store, pool, 1 << 20)
    calm = bench.carry_out(merge(reference=REFERENCE), bench.drafts())
    assert isinstance(calm.result, Merged)
    assert calm.result.distance is not None
    for key in calm.models:
        store.delete(key)
    drafts, store.failures = bench.drafts(), {away: 1}
    with pytest.raises(StoreFailed):  # which the shell waits for
        bench.carry_out(merge(reference=REFERENCE), drafts)
    assert bench.carry_out(merge(reference=REFERENCE), drafts) == calm
    assert set(store.keys()) == {FIRST, UPDATE, REFERENCE, *calm.models}


def test_a_merge_without_its_reference_is_a_version_without_a_distance(
    store: Fragile, pool: ThreadPoolExecutor
) -> None:
    bench = Bench(JobId("j"), compose(job_spec(rule="async-fedavg")), store, pool, 1 << 20)
    result = bench.carry_out(merge(reference=ModelKey("j/gone")), bench.drafts()).result
    assert isinstance(result, Merged)
    assert result.distance is None
    assert "no distance" in result.note
