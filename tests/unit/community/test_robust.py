"""Robust aggregation over stored models: medians, trimmed means, Krum; the same bits with little memory."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

from hansa.common.models.model import Role
from hansa.controller.community import robust as frames_of
from hansa.controller.plugin.arithmetic import Aggregator, TooFew
from hansa.controller.rules.baselines.fedavg import Plain
from hansa.controller.rules.baselines.robust import Krum, Median, TrimmedMean
from tests.unit.community.test_server_updates import SPEC, Course, exactly
from tests.unit.samples import spec_of, values

FLOATS = ("small", "var", "long", "half", "double")


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def stacked(seeds: list[int], name: str) -> np.ndarray:
    return np.stack([values(SPEC, seed)[name].astype(np.float64) for seed in seeds])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_the_median_is_numpys_for_every_number_over_many_frames(pool: Executor, count: int) -> None:
    seeds = list(range(count))
    got = Course(pool, Plain()).merge([(values(SPEC, seed), 1.0) for seed in seeds], aggregator=Median())
    for name in FLOATS:
        wanted = np.median(stacked(seeds, name), axis=0).astype(got[name].dtype)
        assert got[name].tobytes() == wanted.tobytes(), name
    assert got["count"] == values(SPEC, 0)["count"]


@pytest.mark.parametrize(
    ("trim", "count", "cut"), [(0.1, 5, 0), (0.2, 5, 1), (0.3, 10, 3), (0.49, 3, 1), (0.0, 4, 0)]
)
def test_the_trimmed_mean_leaves_out_both_ends(pool: Executor, trim: float, count: int, cut: int) -> None:
    seeds = list(range(count))
    got = Course(pool, Plain()).merge(
        [(values(SPEC, seed), 1.0) for seed in seeds], aggregator=TrimmedMean(trim=trim)
    )
    for name in ("small", "var", "long", "double"):
        wanted = np.sort(stacked(seeds, name), axis=0)[cut : count - cut].mean(axis=0)
        np.testing.assert_allclose(got[name], wanted, rtol=1e-6, atol=1e-7)


def test_a_share_that_is_a_whole_number_of_sites_is_that_number() -> None:
    """In floating point 0.29 · 100 is less than 29."""
    rows = np.sort(np.random.default_rng(0).random((100, 3)) ** 9, axis=0)
    assert TrimmedMean(trim=0.29).combine(rows.copy()) == pytest.approx(rows[29:71].mean(axis=0))
    assert TrimmedMean().combine(rows.copy()) == pytest.approx(
        rows[10:90].mean(axis=0)
    )  # a tenth, unless told


@pytest.mark.parametrize(
    ("trim", "note"),
    [(0.1, "trimmed left nothing out: 0.1 of 5 updates is less than one"), (0.2, ""), (0.0, "")],
)
def test_a_trimmed_mean_that_leaves_nothing_out_says_so(pool: Executor, trim: float, note: str) -> None:
    course = Course(pool, Plain())
    course.merge([(values(SPEC, seed), 1.0) for seed in range(5)], aggregator=TrimmedMean(trim=trim))
    assert course.made is not None
    assert course.made.note == note


@pytest.mark.parametrize(
    ("aggregator", "rows", "wanted"),
    [
        (Median(), [1.7e308, 1.5e308], 1.6e308),
        (Median(), [-1.7e308, -1.7e308, -1.7e308, 3.0], -1.7e308),
        (Median(), [1.7e308, 1.0, 1.5e308, 1.6e308], 1.55e308),
        (TrimmedMean(trim=0.0), [1.7e308, -1.7e308], 0.0),
        (TrimmedMean(trim=0.0), [1.7e308, 1.7e308, 1.7e308, -1.7e308], 0.85e308),
        (TrimmedMean(trim=0.0), [0.0, 1e308, 1e308], 1e308 / 3 * 2),
        (TrimmedMean(trim=0.2), [1.7e308, 1.7e308, 1.7e308, 1.7e308, -1.7e308], 1.7e308),
    ],
)
def test_numbers_near_the_largest_have_finite_middles(
    aggregator: Median | TrimmedMean, rows: list[float], wanted: float
) -> None:
    found = aggregator.combine(np.array([[row, 0.25] for row in rows]))
    np.testing.assert_allclose(found, [wanted, 0.25], rtol=1e-12)


@pytest.mark.parametrize("large", [1.7e308, 0.9e154])
def test_distances_that_overflow_do_not_raise_warnings(pool: Executor, large: float) -> None:
    """Neither the differences nor the sums of their squares; warnings are errors here."""
    spec = spec_of({"w": ("float64", (4,))})
    parts = [
        ({"w": np.full(4, value)}, 1.0) for value in (-large, large, -large / 2, large / 2, 1.0, 2.0, 3.0)
    ]
    course = Course(pool, Plain(), {"w": np.zeros(4)}, spec)
    got = course.merge(parts, aggregator=Krum(attackers=2))
    assert np.abs(got["w"]).max() <= large
    assert course.made is not None
    assert course.made.note.endswith("of 7 updates")


def nearest(seeds: list[int], attackers: int) -> list[int]:
    """Order updates by Krum's score."""
    flat = np.stack(
        [np.concatenate([values(SPEC, s)[n].astype(np.float64).ravel() for n in FLOATS]) for s in seeds]
    )
    return by_score(flat, attackers)


def by_score(points: np.ndarray, attackers: int) -> list[int]:
    """Order points by Krum's score, straight from its definition."""
    scores = []
    for i, one in enumerate(points):
        apart = sorted(float(((one - other) ** 2).sum()) for j, other in enumerate(points) if i != j)
        scores.append(sum(apart[: len(points) - attackers - 2]))
    return [int(i) for i in np.argsort(scores, kind="stable")]


@pytest.mark.parametrize(("count", "attackers"), [(3, 0), (5, 1), (7, 2), (8, 1), (9, 3)])
def test_krums_neighbours_are_all_but_the_attackers_itself_and_one_more(count: int, attackers: int) -> None:
    """In the plane, the number of neighbours matters: random models of many numbers are equally far apart."""
    told_apart = 0
    for seed in range(40):
        points = np.random.default_rng(seed).standard_normal((count, 2)) ** 3
        apart = ((points[:, None] - points[None]) ** 2).sum(axis=2)
        order = by_score(points, attackers)
        assert list(Krum(attackers=attackers).select(apart)) == order[:1]
        assert list(Krum(attackers=attackers, chosen=0).select(apart)) == order[: count - attackers]
        told_apart += order != by_score(points, attackers - 1)
    assert told_apart > 5


def test_krum_takes_the_update_nearest_to_its_neighbours_and_says_which(pool: Executor) -> None:
    seeds = list(range(6))
    course = Course(pool, Plain())
    got = course.merge([(values(SPEC, seed), 1.0) for seed in seeds], aggregator=Krum(attackers=1))
    winner = nearest(seeds, 1)[0]
    assert exactly(got, values(SPEC, winner))
    assert course.made is not None
    assert course.made.note == f"krum took s{winner + 1} of 6 updates"


def test_krums_distances_are_squared_and_over_parameters_and_statistics(pool: Executor) -> None:
    spec = spec_of(
        {"w": ("float32", (2,)), "norm.running_var": ("float32", (2,))}, {"norm.running_var": Role.STAT}
    )
    won = set()
    for seed in range(12):
        points = (np.random.default_rng(seed).random((6, 4)) ** 4).astype(np.float32)
        parts = [({"w": point[:2], "norm.running_var": point[2:]}, 1.0) for point in points]
        course = Course(pool, Plain(), values(spec, 9), spec)
        course.merge(parts, aggregator=Krum(attackers=1))
        assert course.made is not None
        won.add((by_score(points.astype(np.float64), 1)[0], course.made.note))
    assert won == {(winner, f"krum took s{winner + 1} of 6 updates") for winner, _ in won}
    assert len(won) > 3


def test_krums_distances_are_not_over_counters(pool: Executor) -> None:
    """The number of batches that a site has seen says nothing about its honesty, and is a large number."""
    spec = spec_of({"w": ("float32", (2,)), "n": ("int64", ())}, {"n": Role.COUNT})
    for seed in range(6):
        rng = np.random.default_rng(seed)
        points = (rng.random((6, 2)) ** 4).astype(np.float32)
        parts = [({"w": point, "n": np.array(rng.integers(1, 10_000))}, 1.0) for point in points]
        course = Course(pool, Plain(), values(spec, 9), spec)
        course.merge(parts, aggregator=Krum(attackers=1))
        assert course.made is not None
        assert course.made.note == f"krum took s{by_score(points.astype(np.float64), 1)[0] + 1} of 6 updates"


def test_krum_of_partial_updates_compares_the_tensors_they_carry(pool: Executor) -> None:
    spec = spec_of({"w": ("float32", (2,)), "frozen": ("float32", (3,))})
    points = (np.random.default_rng(4).random((6, 2)) ** 4).astype(np.float32)
    before = values(spec, 9)
    course = Course(pool, Plain(), before, spec)
    got = course.merge([({"w": point}, 1.0) for point in points], aggregator=Krum(), tensors=frozenset({"w"}))
    assert exactly(got, {"w": points[by_score(points.astype(np.float64), 1)[0]], "frozen": before["frozen"]})


def test_multi_krum_averages_all_but_the_attackers(pool: Executor) -> None:
    seeds = list(range(7))
    got = Course(pool, Plain()).merge(
        [(values(SPEC, seed), 1.0) for seed in seeds], aggregator=Krum(attackers=2, chosen=0)
    )
    chosen = sorted(nearest(seeds, 2)[:5])
    wanted = Course(pool, Plain()).merge([(values(SPEC, seed), 1.0) for seed in chosen])
    assert exactly(got, wanted)


@pytest.mark.parametrize(("chosen", "took"), [(1, 1), (4, 4), (5, 5), (6, 5), (7, 5), (100, 5), (0, 5)])
def test_krum_never_takes_so_many_updates_that_an_attacker_must_be_among_them(chosen: int, took: int) -> None:
    points = np.array([0.0, 1.0, 2.5, 100.0, 4.0, -100.0, 5.0])
    apart = (points[:, None] - points[None]) ** 2
    krum = Krum(attackers=2, chosen=chosen)
    assert krum.taken(7) == len(krum.select(apart)) == took
    assert not {3, 5} & set(krum.select(apart))


def test_krum_with_too_few_updates_keeps_the_model_and_says_why(pool: Executor) -> None:
    course = Course(pool, Plain(), values(SPEC, 50))
    got = course.merge([(values(SPEC, seed), 1.0) for seed in range(4)], aggregator=Krum(attackers=1))
    assert exactly(got, values(SPEC, 50))
    assert course.made is not None
    assert course.made.note == (
        "krum: 4 updates came, and 5 are needed to outvote 1; the previous model is kept"
    )


def test_equal_scores_are_settled_by_the_order_of_the_sites() -> None:
    same = np.zeros((5, 5))
    assert list(Krum(attackers=1, chosen=2).select(same)) == [0, 1]
    with pytest.raises(TooFew):
        Krum(attackers=2).select(same)


@pytest.mark.parametrize(
    "aggregator", [Median(), TrimmedMean(trim=0.2), Krum(attackers=1), Krum(chosen=0)], ids=str
)
def test_one_site_that_sends_nonsense_cannot_ruin_the_model(pool: Executor, aggregator: Aggregator) -> None:
    spec = spec_of({"w": ("float32", (50,))})
    honest: list[dict[str, np.ndarray]] = [
        {"w": np.full(50, 1.0, np.float32) + 0.01 * values(spec, i)["w"]} for i in range(5)
    ]
    for nonsense in (3e38, -3e38, 1e4):
        bad = {"w": np.full(50, nonsense, np.float32)}
        got = Course(pool, Plain(), values(spec, 9), spec).merge(
            [(arrays, 1.0) for arrays in [*honest[:2], bad, *honest[2:]]], aggregator=aggregator
        )
        assert np.abs(got["w"] - 1).max() < 0.1


@pytest.mark.parametrize(
    "aggregator", [Median(), TrimmedMean(trim=0.3), Krum(attackers=1, chosen=3)], ids=str
)
def test_neither_order_nor_memory_nor_threads_change_a_bit(aggregator: Aggregator) -> None:
    parts = [(values(SPEC, seed), 1.0) for seed in range(6)]
    found = []
    for threads, memory, order in ((1, 1 << 30, parts), (3, 1, parts), (2, 1 << 20, parts[::-1])):
        with ThreadPoolExecutor(threads) as pool:
            found.append(Course(pool, Plain()).merge(order, aggregator=aggregator, memory=memory))
    for other in found[1:]:
        assert exactly({name: found[0][name] for name in FLOATS}, {name: other[name] for name in FLOATS})


def test_the_median_of_partial_updates_is_over_those_that_carry_a_tensor(pool: Executor) -> None:
    course = Course(pool, Plain())
    before = {name: array.copy() for name, array in values(SPEC, 99).items()}
    got = course.merge(
        [(values(SPEC, seed), 1.0) for seed in range(3)], aggregator=Median(), tensors=frozenset({"long"})
    )
    assert got["long"].tobytes() == np.median(stacked([0, 1, 2], "long"), axis=0).astype(np.float32).tobytes()
    assert got["small"].tobytes() == before["small"].tobytes()


def test_rows_are_read_in_pieces_when_memory_is_short() -> None:
    assert frames_of.LEAST * 8 < 1 << 20  # else the tests above would not come to pieces
