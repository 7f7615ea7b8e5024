"""Differences added to the current model: the formula, over stored models frame by frame (fedbuff §2)."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from hansa.common.models.frames import views
from hansa.common.models.model import ModelSpec
from hansa.common.plugins.registry import register
from hansa.common.values.errors import PluginFailed
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.merge import NOBODY, Made, make
from hansa.controller.community.reading import Means
from hansa.controller.plugin.arithmetic import Additive, Aggregator, MergeInfo
from hansa.controller.rules.baselines.fedavg import Mean, Plain
from hansa.controller.rules.baselines.fedbuff import Delta
from hansa.controller.storage.stores import Draft
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.values.members import Change, Member
from tests.unit.samples import MIXED, keep, payload_of, spec_of, values

Arrays = Mapping[str, np.ndarray]
SPEC = MIXED
TRAINED = ("small", "empty", "long", "half", "double")
X, OLDER, OLDEST = values(SPEC, 90), values(SPEC, 91), values(SPEC, 92)


@dataclass(frozen=True)
class Sent:
    """An update: its numbers, its weight and the model that it started from."""

    arrays: Arrays
    weight: float
    base: Arrays
    site: str = "s"
    tensors: frozenset[str] | None = None


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as made:
        yield made


def merge(
    pool: Executor,
    aggregator: Aggregator,
    sent: Sequence[Sent],
    current: Arrays = X,
    spec: ModelSpec = SPEC,
    memory: int = 1 << 28,
) -> tuple[dict[str, np.ndarray], Made]:
    """Merge updates into a model."""
    store, members = MemoryStore(), []
    stored = keep(store, "j/v9", spec, current)
    for number, each in enumerate(sent):
        model, base = ModelKey(f"j/u{number}"), ModelKey(f"j/b{number}")
        keep(store, model, spec.subset(each.tensors) if each.tensors else spec, each.arrays)
        keep(store, base, spec, each.base)
        member = Member(SiteName(each.site), TaskId(f"j-{number}"), model, each.weight, each.tensors)
        members.append(Member(**vars(member) | {"base": base}))
    change = Change(tuple(members), (), members, tuple(members))
    means = Means(store.open, pool, memory)

    def draft(name: str, spec: ModelSpec) -> Draft:
        return store.draft(ModelKey("j/v10"), spec)

    made = make(
        aggregator,
        Plain(),
        Accumulator(spec, kept=False),
        change,
        stored,
        {},
        MergeInfo(10, 0, len(sent)),
        means,
        draft,
    )
    made.publish()
    merged = store.open(ModelKey("j/v10"))
    return views(merged.layout, payload_of(merged)), made


def by_the_book(sent: Sequence[Sent], name: str, divisor: float) -> np.ndarray:
    wide = np.float64
    total = sum(
        each.weight * (each.arrays[name].astype(wide) - each.base[name].astype(wide)) for each in sent
    )
    return np.asarray(X[name].astype(wide) + total / divisor)


SENT = [
    Sent(values(SPEC, 1), 1.0, X, "a"),
    Sent(values(SPEC, 2), 0.5, OLDER, "b"),
    Sent(values(SPEC, 3), 0.25, OLDEST, "a"),
    Sent(values(SPEC, 4), 1.0, OLDER, "c"),
]


@pytest.mark.parametrize(
    ("aggregator", "divisor"), [(Delta(), 4.0), (Delta(normalise="weights"), 2.75)], ids=["count", "weights"]
)
@pytest.mark.parametrize("memory", [1 << 28, 1 << 14])
def test_what_sites_changed_is_added_to_the_current_model(
    pool: Executor, aggregator: Delta, divisor: float, memory: int
) -> None:
    merged, _ = merge(pool, aggregator, SENT, memory=memory)
    for name in TRAINED:
        expected = by_the_book(SENT, name, divisor)
        assert merged[name].tobytes() == expected.astype(X[name].dtype).tobytes(), name


def test_statistics_are_the_mean_of_the_updates_and_counters_those_of_the_largest_weight(
    pool: Executor,
) -> None:
    """A mean of differences could make a variance negative."""
    merged, _ = merge(pool, Delta(), SENT)
    mean, _ = merge(pool, Mean(), SENT)
    for name in ("var", "count"):
        assert merged[name].tobytes() == mean[name].tobytes()


@pytest.mark.parametrize("normalise", ["count", "weights"])
def test_updates_of_the_current_model_with_equal_weights_give_the_mean_bit_for_bit(
    pool: Executor, normalise: str
) -> None:
    sent = [Sent(values(SPEC, seed), 1.0, X, f"s{seed}") for seed in range(3)]
    added, _ = merge(pool, Delta.model_validate({"normalise": normalise}), sent)
    mean, _ = merge(pool, Mean(), sent)
    assert all(added[name].tobytes() == mean[name].tobytes() for name in mean)


def test_updates_of_the_current_model_weighed_by_weights_give_the_weighted_mean_bit_for_bit(
    pool: Executor,
) -> None:
    sent = [Sent(values(SPEC, seed), 0.1 + seed, X, f"s{seed}") for seed in range(3)]
    added, _ = merge(pool, Delta(normalise="weights"), sent)
    mean, _ = merge(pool, Mean(), sent)
    assert all(added[name].tobytes() == mean[name].tobytes() for name in mean)


def test_one_update_of_the_current_model_is_the_next_model(pool: Executor) -> None:
    merged, _ = merge(pool, Delta(), [Sent(values(SPEC, 1), 1.0, X)])
    assert all(merged[name].tobytes() == array.tobytes() for name, array in values(SPEC, 1).items())


def test_one_update_of_an_older_model_moves_the_current_one_as_far_as_it_moved(pool: Executor) -> None:
    spec = spec_of({"w": ("float32", ())})
    at = {number: {"w": np.array(number, np.float32)} for number in (1, 4, 10)}
    assert merge(pool, Delta(), [Sent(at[4], 1.0, at[1])], at[10], spec)[0]["w"] == 13
    assert merge(pool, Delta(), [Sent(at[4], 0.5, at[1])], at[10], spec)[0]["w"] == 11.5
    weighed = merge(pool, Delta(normalise="weights"), [Sent(at[4], 0.5, at[1])], at[10], spec)
    assert weighed[0]["w"] == 13


def test_an_update_of_weight_0_is_left_out_and_alone_it_changes_nothing(pool: Executor) -> None:
    worthless = Sent(values(SPEC, 7), 0.0, OLDER, "z")
    with_it, without = merge(pool, Delta(), [*SENT, worthless]), merge(pool, Delta(), SENT)
    assert all(with_it[0][name].tobytes() == without[0][name].tobytes() for name in X)
    alone, made = merge(pool, Delta(), [worthless])
    assert made.note == NOBODY
    assert all(alone[name].tobytes() == X[name].tobytes() for name in X)


def test_a_tensor_counts_only_the_updates_that_carry_it(pool: Executor) -> None:
    partial = values(SPEC.subset(frozenset({"small"})), 5)
    sent = [Sent(values(SPEC, 1), 1.0, OLDER, "a"), Sent(partial, 1.0, OLDER, "b", frozenset({"small"}))]
    merged, _ = merge(pool, Delta(), sent)
    both, one = by_the_book(sent, "small", 2.0), by_the_book(sent[:1], "double", 1.0)
    assert merged["small"].tobytes() == both.astype(np.float32).tobytes()
    assert merged["double"].tobytes() == one.tobytes()
    alone, _ = merge(pool, Delta(), sent[1:])
    assert alone["double"].tobytes() == X["double"].tobytes(), "no update carries it"


def test_a_step_out_of_the_numbers_names_the_aggregator_and_the_tensor(pool: Executor) -> None:
    spec = spec_of({"w": ("float32", (2,))})
    far = {"w": np.full(2, 3e38, np.float32)}
    with pytest.raises(PluginFailed, match="merge 'delta': it produced NaN or infinite numbers in tensor w"):
        merge(pool, Delta(), [Sent(far, 1.0, {"w": -far["w"]})], far, spec)


def test_small_numbers_are_added_in_double_precision(pool: Executor) -> None:
    spec = spec_of({"w": ("bfloat16", ())})
    x, one = ({"w": np.array(number, ml_dtypes.bfloat16)} for number in (256.0, 1.0))
    sent = [Sent(x, 1.0, {"w": x["w"] - one["w"]}, f"s{n}") for n in range(4)]
    assert merge(pool, Delta(), [*sent, Sent(x, 1.0, one, "t")], x, spec)[0]["w"] == 308


@register("merge", "dividing-by")
class DividingBy(Additive):
    """Divides by whatever it is told."""

    what: float | str = 1.0

    def divisor(self, weights: np.ndarray) -> float:
        """Return it."""
        return self.what  # type: ignore[return-value]


@pytest.mark.parametrize("what", [0.0, -1.0, float("inf"), float("nan"), "much"])
def test_a_divisor_that_is_not_a_positive_number_names_the_aggregator(
    pool: Executor, what: float | str
) -> None:
    with pytest.raises(PluginFailed, match=r"merge 'dividing-by': its divisor is .* a finite number above 0"):
        merge(pool, DividingBy.model_construct(what=what), SENT)
