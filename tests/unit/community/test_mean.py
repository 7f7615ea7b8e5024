"""The weighted mean of stored models: exact, independent of order and threads, and a copy where all agree."""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from fractions import Fraction
from itertools import count
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.common.models.frames import FRAME, FrameCheck, Layout, cut, views
from hansa.common.models.model import DTYPES, Manifest, ModelSpec, Role
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.storage.stores import StoredModel
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.values.members import Change, Member
from tests.unit.samples import grid_of, keep, payload_of, spec_of, specs, values

Arrays = Mapping[str, np.ndarray]
FLOATS = ("bfloat16", "float16", "float32", "float64")
DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
LOWEST = {"bfloat16": -133, "float16": -24, "float32": -149, "float64": -1074}
WEIGHTS = st.floats(1e-3, 1e6)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made


class Weighted(NamedTuple):
    """A model and its weight."""

    model: StoredModel
    weight: float


class Bench:
    """A store, a current model, and the mean of others."""

    def __init__(self, spec: ModelSpec, pool: Executor, current: Arrays | None = None) -> None:
        self.store = MemoryStore()
        self.spec = spec
        self.pool = pool
        self.current = keep(self.store, "j/v0", spec, values(spec, 99) if current is None else current)
        self._numbers = count(1)

    def keep(self, arrays: Arrays, spec: ModelSpec | None = None) -> StoredModel:
        return keep(self.store, f"j/u{next(self._numbers)}", spec or self.spec, arrays)

    def merge(self, parts: Sequence[Weighted]) -> StoredModel:
        key = ModelKey(f"j/v{next(self._numbers)}")
        draft = self.store.draft(key, self.spec)
        added = tuple(
            Member(SiteName(f"s{i}"), TaskId(f"j-{i}"), part.model.key, part.weight)
            for i, part in enumerate(parts)
        )
        sums = Accumulator(self.spec, kept=False)
        manifest, peaks = sums.commit(
            Change(added, (), added, added), self.store.open, self.current, draft, self.pool
        )
        draft.publish(manifest, peaks)
        return self.store.open(key)

    def mean(self, models: Sequence[tuple[Arrays, float]]) -> dict[str, np.ndarray]:
        return tensors(self.merge([Weighted(self.keep(arrays), weight) for arrays, weight in models]))


def tensors(model: StoredModel) -> dict[str, np.ndarray]:
    return views(model.layout, payload_of(model))


def exactly(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def ulp(dtype: str, value: float) -> float:
    return math.ldexp(1.0, max(math.frexp(value)[1] - DIGITS[dtype], LOWEST[dtype]))


def exact_mean(models: Sequence[tuple[Arrays, float]], name: str) -> list[Fraction]:
    total = sum((Fraction(weight) for _, weight in models), Fraction(0))
    rows = [arrays[name].astype(np.float64).reshape(-1).tolist() for arrays, _ in models]
    return [
        sum((Fraction(w) * Fraction(x) for (_, w), x in zip(models, column, strict=True)), Fraction(0))
        / total
        for column in zip(*rows, strict=True)
    ]


def grid_cost(models: Sequence[tuple[Arrays, float]], name: str) -> Fraction:
    """Return how far the grid may move a mean: half a step for each term, divided by the sum of the weights.

    The weights are those that are summed: without the odd factor that all of them have in common.
    """
    odds = [top // (top & -top) for top, _ in (weight.as_integer_ratio() for _, weight in models)]
    weights = [weight / math.gcd(*odds) for _, weight in models]
    grid = grid_of(weights, [float(np.abs(arrays[name].astype(np.float64)).max()) for arrays, _ in models])
    return (
        Fraction(len(models)) * Fraction(2) ** -grid.bits / 2 / sum(map(Fraction, map(grid.scaled, weights)))
    )


# Exactness.


@settings(max_examples=30, deadline=None)
@given(specs(most=4), st.data())
def test_the_mean_does_not_depend_on_the_order_of_contributions(
    pool: Executor, spec: ModelSpec, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(WEIGHTS, min_size=2, max_size=5, unique=True))
    order = data.draw(st.permutations(range(len(weights))))
    bench = Bench(spec, pool)
    parts = [Weighted(bench.keep(values(spec, i)), weight) for i, weight in enumerate(weights)]
    once, again = bench.merge(parts), bench.merge([parts[i] for i in order])
    assert once.manifest.digest == again.manifest.digest
    assert once.peaks == again.peaks


@settings(max_examples=60, deadline=None)
@given(
    st.lists(WEIGHTS, min_size=2, max_size=6),
    st.integers(-30, 30) | st.sampled_from([-1000, -900, 900, 1000]),
    st.sampled_from(FLOATS),
    st.sampled_from([1.0, 1e-30]),
)
def test_scaling_all_weights_by_a_power_of_two_leaves_the_mean_bit_equal(
    pool: Executor, weights: list[float], j: int, dtype: str, scale: float
) -> None:
    spec = spec_of({"t": (dtype, (17,)), "n": ("int64", ())})
    bench = Bench(spec, pool)
    models = [values(spec, i) for i in range(len(weights))]
    kept = [bench.keep(model | {"t": (model["t"] * scale).astype(model["t"].dtype)}) for model in models]
    plain = bench.merge([Weighted(m, w) for m, w in zip(kept, weights, strict=True)])
    scaled = bench.merge([Weighted(m, math.ldexp(w, j)) for m, w in zip(kept, weights, strict=True)])
    assert plain.manifest.digest == scaled.manifest.digest


@settings(max_examples=30, deadline=None)
@given(specs(most=4), st.floats(1e-300, 1e300))
def test_a_single_contribution_is_copied_bit_for_bit(pool: Executor, spec: ModelSpec, weight: float) -> None:
    bench = Bench(spec, pool)
    only = bench.keep(values(spec, 5))
    assert bench.merge([Weighted(only, weight)]).manifest == only.manifest


@settings(max_examples=60, deadline=None)
@given(
    st.lists(WEIGHTS, min_size=1, max_size=9),
    st.sampled_from(("bfloat16", "float16", "float32")),
    st.integers(0, 99),
)
def test_the_mean_of_identical_models_is_that_model_within_one_ulp(
    pool: Executor, weights: list[float], dtype: str, seed: int
) -> None:
    spec = spec_of({"t": (dtype, (33,))})
    model = {"t": np.random.default_rng(seed).uniform(0.01, 1.0, 33).astype(DTYPES[dtype])}
    got = Bench(spec, pool).mean([(model, weight) for weight in weights])["t"]
    for found, wanted in zip(got.tolist(), model["t"].tolist(), strict=True):
        assert abs(found - wanted) <= ulp(dtype, wanted)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=9), st.integers(0, 99), st.sampled_from(FLOATS)
)
def test_the_mean_of_identical_models_is_that_model_bit_for_bit(
    pool: Executor, weights: list[float], seed: int, dtype: str
) -> None:
    spec = spec_of({"t": (dtype, (33,))})
    models = [(values(spec, seed), weight) for weight in weights]
    assert Bench(spec, pool).mean(models)["t"].tobytes() == models[0][0]["t"].tobytes()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(WEIGHTS, st.integers(0, 99), st.integers(-1074, 1023)), min_size=1, max_size=6),
    st.sampled_from(FLOATS),
)
def test_the_mean_is_within_the_grids_step_of_the_exact_one_at_any_magnitude(
    pool: Executor, drawn: list[tuple[float, int, int]], dtype: str
) -> None:
    spec = spec_of({"t": (dtype, (9,))})
    low, high = LOWEST[dtype], {"float16": 15, "float64": 1023}.get(dtype, 127)
    models: list[tuple[Arrays, float]] = []
    for weight, seed, scale in drawn:
        raw = np.random.default_rng(seed).uniform(-1, 1, 9)
        models.append(({"t": np.ldexp(raw, min(max(scale, low), high)).astype(DTYPES[dtype])}, weight))
    got = Bench(spec, pool).mean(models)["t"].astype(np.float64).tolist()
    cost = grid_cost(models, "t") if len(models) > 1 else Fraction(0)
    for found, wanted in zip(got, exact_mean(models, "t"), strict=True):
        rounding = Fraction(ulp(dtype, float(wanted))) + abs(wanted) / 2**50
        assert abs(Fraction(found) - wanted) <= cost * Fraction(101, 100) + rounding


@pytest.mark.parametrize("magnitude", [1e308, 1e300, 1e-280, 1e-308, 5e-324])
def test_huge_and_tiny_float64_models_keep_their_magnitude(pool: Executor, magnitude: float) -> None:
    spec = spec_of({"t": ("float64", (4,))})
    models: list[tuple[Arrays, float]] = [
        ({"t": np.array([1.0, -1.0, 0.5, 0.0]) * magnitude}, 1e6),
        ({"t": np.array([0.5, -1.0, 1.0, 0.0]) * magnitude}, 1e-3),
    ]
    got = Bench(spec, pool).mean(models)["t"]
    assert np.isfinite(got).all()
    assert np.abs(got - models[0][0]["t"]).max() <= magnitude * 1e-8 + 2.0**-970


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_mean_of_the_largest_finite_numbers_is_finite(pool: Executor, dtype: str) -> None:
    kind = DTYPES[dtype]
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[kind.itemsize]
    largest = (np.array([np.inf]).astype(kind).view(bits) - bits(1)).view(kind)
    spec = spec_of({"t": (dtype, (2,))})
    model = {"t": np.concatenate([largest, -largest])}
    for weights in ([1.0, 1.0], [3.0, 7.0, 11.0], [1e-3, 1e6]):
        got = Bench(spec, pool).mean([(model, weight) for weight in weights])["t"].astype(np.float64)
        assert np.isfinite(got).all()


def test_two_sites_of_sizes_one_and_three_give_the_paper_s_mean(pool: Executor) -> None:
    spec = spec_of({"t": ("float32", ())})
    zero, four = {"t": np.zeros((), np.float32)}, {"t": np.full((), 4, np.float32)}
    assert Bench(spec, pool).mean([(zero, 1.0), (four, 3.0)])["t"] == 3.0
    assert Bench(spec, pool).mean([(zero, 1.0), (four, 1.0)])["t"] == 2.0


def test_statistics_are_averaged_like_parameters(pool: Executor) -> None:
    spec = spec_of({"var": ("float32", (2,))}, {"var": Role.STAT})
    one, three = {"var": np.array([1, 5], np.float32)}, {"var": np.array([3, 1], np.float32)}
    assert Bench(spec, pool).mean([(one, 1.0), (three, 1.0)])["var"].tolist() == [2.0, 3.0]


# Weights of zero, nothing to merge, counters.


@settings(max_examples=25, deadline=None)
@given(st.lists(WEIGHTS, min_size=1, max_size=4, unique=True), st.integers(1, 3))
def test_contributions_of_weight_zero_change_nothing(
    pool: Executor, weights: list[float], zeros: int
) -> None:
    spec = spec_of({"t": ("float32", (40,)), "n": ("int64", (2,))})
    bench = Bench(spec, pool)
    parts = [Weighted(bench.keep(values(spec, i)), weight) for i, weight in enumerate(weights)]
    idle = [Weighted(bench.keep(values(spec, 50 + i)), 0.0) for i in range(zeros)]
    assert bench.merge([*idle, *parts]).manifest == bench.merge(parts).manifest


@pytest.mark.parametrize("weights", [[], [0.0], [0.0, 0.0, 0.0]])
def test_without_any_weight_the_current_model_is_copied_bit_for_bit(
    pool: Executor, weights: list[float]
) -> None:
    spec = spec_of(
        {"e": ("float32", (0,)), "t": ("float32", (FRAME // 3,)), "n": ("int64", ()), "h": ("bfloat16", (3,))}
    )
    bench = Bench(spec, pool)
    merged = bench.merge([Weighted(bench.keep(values(spec, i)), w) for i, w in enumerate(weights)])
    assert merged.manifest == bench.current.manifest
    assert merged.peaks == bench.current.peaks


def test_counters_come_from_the_largest_weight_and_from_the_first_of_equals(pool: Executor) -> None:
    spec = spec_of({"n": ("int64", ()), "b": ("bool", (2,))})

    def model(n: int) -> dict[str, np.ndarray]:
        return {"n": np.array(n, np.int64), "b": np.array([n % 2 == 0, True])}

    for weights, winner in (
        ([1.0, 3.0, 2.0], 1),
        ([2.0, 2.0, 2.0], 0),
        ([1.0, 2.0, 2.0], 1),
        ([0.0, 0.0, 1e-3], 2),
    ):
        got = Bench(spec, pool).mean([(model(i + 10), weight) for i, weight in enumerate(weights)])
        assert got["n"] == winner + 10
        assert exactly(got["b"], model(winner + 10)["b"])


# Partial updates.


def test_a_tensor_that_no_update_carries_is_copied_from_the_current_model(pool: Executor) -> None:
    spec = spec_of({"kept": ("float32", (7,)), "t": ("float32", (7,)), "count": ("int32", (2,))})
    bench = Bench(spec, pool)
    part = spec.subset(["t"])
    a, b = values(part, 1), values(part, 2)
    merged = tensors(bench.merge([Weighted(bench.keep(a, part), 1.0), Weighted(bench.keep(b, part), 1.0)]))
    current = tensors(bench.current)
    assert exactly(merged["kept"], current["kept"])
    assert exactly(merged["count"], current["count"])
    np.testing.assert_allclose(merged["t"], (a["t"] + b["t"]) / 2, rtol=1e-6)


def test_a_tensor_that_only_weightless_contributions_carry_is_copied_from_the_current_model(
    pool: Executor,
) -> None:
    spec = spec_of({"a": ("float32", (3,)), "b": ("float32", (3,))})
    bench = Bench(spec, pool)
    only_a, only_b = spec.subset(["a"]), spec.subset(["b"])
    idle, live = bench.keep(values(only_a, 1), only_a), bench.keep(values(only_b, 2), only_b)
    merged = tensors(bench.merge([Weighted(idle, 0.0), Weighted(live, 2.0)]))
    assert exactly(merged["a"], tensors(bench.current)["a"])
    assert exactly(merged["b"], tensors(live)["b"])


@settings(max_examples=25, deadline=None)
@given(specs(most=5), st.data())
def test_partial_updates_with_other_layouts_are_averaged_over_those_who_carry_each_tensor(
    pool: Executor, spec: ModelSpec, data: st.DataObject
) -> None:
    bench = Bench(spec, pool)
    parts, carried = [], []
    for i in range(data.draw(st.integers(1, 3))):
        subset = spec.subset(data.draw(st.sets(st.sampled_from(spec.names), min_size=1)))
        parts.append(Weighted(bench.keep(values(spec, i), subset), float(i + 1)))
        carried.append(set(subset.names))
    merged = tensors(bench.merge(parts))
    for info in spec.tensors:
        holders = [
            (values(spec, i)[info.name], i + 1) for i, names in enumerate(carried) if info.name in names
        ]
        if not holders:
            assert exactly(merged[info.name], tensors(bench.current)[info.name])
        elif len(holders) == 1 or info.role is Role.COUNT:
            assert exactly(merged[info.name], holders[-1][0])
        else:
            total = sum(array.astype(np.float64) * weight for array, weight in holders)
            wanted = np.asarray(total / sum(weight for _, weight in holders))
            close = 4 * 2.0 ** -DIGITS[info.dtype] + 1e-10
            np.testing.assert_allclose(merged[info.name].astype(np.float64), wanted, rtol=close, atol=1e-6)


# Frames and threads.


def test_the_result_does_not_depend_on_the_number_of_threads_and_is_right_over_many_frames() -> None:
    spec = spec_of(
        {
            "small": ("float32", (5,)),
            "long": ("float64", (FRAME // 8 * 3 + 1,)),
            "half": ("bfloat16", (FRAME,)),
            "steps": ("int64", ()),
            "wide": ("float32", (3, FRAME // 5)),
        }
    )
    models = [(values(spec, i), weight) for i, weight in enumerate((0.001, 5.0, 1e6))]
    found: list[tuple[Manifest, list[bytes]]] = []
    for threads in (1, 2, 5):
        with ThreadPoolExecutor(threads) as pool:
            bench = Bench(spec, pool)
            merged = bench.merge([Weighted(bench.keep(arrays), weight) for arrays, weight in models])
            frames = [merged.read(i) for i in range(merged.layout.frames)]
            found.append((merged.manifest, frames))
            assert merged.layout.frames > 5
            got = tensors(merged)
    assert found[0] == found[1] == found[2]
    total = sum(weight for _, weight in models)
    for name in ("small", "long", "half", "wide"):
        wanted = sum(arrays[name].astype(np.float64) * weight for arrays, weight in models) / total
        atol = 2.0**-7 * 6 if name == "half" else 1e-6
        np.testing.assert_allclose(got[name].astype(np.float64), wanted, rtol=0, atol=atol)
    assert exactly(got["steps"], models[2][0]["steps"])


@settings(max_examples=15, deadline=None)
@given(specs(most=4))
def test_the_merged_model_passes_its_own_check_and_its_padding_is_zero(
    pool: Executor, spec: ModelSpec
) -> None:
    bench = Bench(spec, pool)
    merged = bench.merge([Weighted(bench.keep(values(spec, i)), 1.0 + i) for i in range(2)])
    payload = payload_of(merged)
    check = FrameCheck(merged.manifest)
    for frame in cut(payload):
        check.feed(frame)
    assert check.complete
    assert tuple(check.sealer.peaks) == merged.peaks
    offsets = Layout(spec).offsets
    for i, info in enumerate(spec.tensors):
        assert not payload[offsets[i] + info.nbytes : offsets[i + 1]].any()
