"""Batch-norm statistics of all sites' data together (`merge: {bn: pooled}`)."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

from hansa.common.models.frames import FRAME
from hansa.common.models.model import Role
from hansa.common.values.errors import InvalidJob
from hansa.controller.community.statistics import variances
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.baselines.fedasync import Mix
from hansa.controller.rules.baselines.fedavg import Latest, Mean, Plain
from tests.unit.community.test_server_updates import Course
from tests.unit.engine.play import job_spec
from tests.unit.samples import spec_of, values

STAT = Role.STAT
LARGE = FRAME // 4 + 40  # its numbers lie in two frames
SPEC = spec_of(
    {
        "bn.weight": ("float32", (3,)),
        "bn.running_mean": ("float32", (3,)),
        "bn.running_var": ("float32", (3,)),
        "bn.num_batches_tracked": ("int64", ()),
        "wide.running_var": ("float64", (LARGE,)),
        "wide.running_mean": ("float64", (LARGE,)),
        "lone.running_var": ("float32", (2,)),
    },
    {f"{layer}.{name}": STAT for layer in ("bn", "wide", "lone") for name in ("running_mean", "running_var")},
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def statistics(seed: int) -> dict[str, np.ndarray]:
    """Return a model with variances that are variances."""
    found = values(SPEC, seed)
    return {name: np.abs(array) if name.endswith("running_var") else array for name, array in found.items()}


def test_variances_are_paired_with_the_means_of_their_layer() -> None:
    names = SPEC.names
    assert {names[a]: names[b] for a, b in variances(SPEC).items()} == {
        "bn.running_var": "bn.running_mean",
        "wide.running_var": "wide.running_mean",
    }
    bare = spec_of(
        {"running_mean": ("float32", (2,)), "running_var": ("float32", (2,))}, {"running_mean": STAT}
    )
    assert variances(bare) == {}, "a trained tensor of that name is not a statistic"


def test_two_sites_give_the_variance_of_their_data_together(pool: Executor) -> None:
    """Data 0, 2 at one site and 10, 14, 18 at another: the variance of all five, as if in one place."""
    one, other = np.array([0.0, 2.0]), np.array([10.0, 14.0, 18.0])
    parts = []
    for data in (one, other):
        model = statistics(0)
        model["bn.running_mean"] = np.full(3, data.mean(), np.float32)
        model["bn.running_var"] = np.full(3, data.var(), np.float32)
        parts.append((model, float(len(data))))
    together = np.concatenate([one, other])
    made = Course(pool, Plain(), spec=SPEC, first=statistics(9)).merge(parts, aggregator=Mean(bn="pooled"))
    np.testing.assert_allclose(made["bn.running_mean"], together.mean(), rtol=1e-6)
    np.testing.assert_allclose(made["bn.running_var"], together.var(), rtol=1e-6)
    plain = Course(pool, Plain(), spec=SPEC, first=statistics(9)).merge(parts, aggregator=Mean())
    assert plain["bn.running_var"].max() < 7 < together.var(), "the plain mean forgets that the sites differ"


@pytest.mark.parametrize("aggregator", [Mean(bn="pooled"), Latest(bn="pooled")], ids=["mean", "latest"])
def test_the_formula_holds_over_many_frames_and_everything_else_is_the_mean(
    pool: Executor, aggregator: Mean | Latest
) -> None:
    parts = [(statistics(seed), weight) for seed, weight in ((1, 3.0), (2, 0.5), (3, 0.0), (4, 8.0))]
    first = statistics(9)
    made = Course(pool, Plain(), spec=SPEC, first=first).merge(parts, aggregator=aggregator)
    plain = Course(pool, Plain(), spec=SPEC, first=first).merge(parts, aggregator=Mean())
    total = sum(weight for _, weight in parts)
    for layer in ("bn", "wide"):
        mean = sum(p * m[f"{layer}.running_mean"].astype(np.float64) for m, p in parts) / total
        squares = sum(p * m[f"{layer}.running_mean"].astype(np.float64) ** 2 for m, p in parts)
        second = sum(p * m[f"{layer}.running_var"] for m, p in parts) + squares
        np.testing.assert_allclose(made[f"{layer}.running_var"], second / total - mean**2, rtol=1e-5)
    for name in SPEC.names:
        if name not in ("bn.running_var", "wide.running_var"):
            assert made[name].tobytes() == plain[name].tobytes(), name


def test_one_update_is_taken_as_it_is_and_alike_ones_stay_alike(pool: Executor) -> None:
    model = statistics(1)
    alone = Course(pool, Plain(), spec=SPEC, first=statistics(9)).merge(
        [(model, 2.0)], aggregator=Mean(bn="pooled")
    )
    for name, array in model.items():
        assert alone[name].tobytes() == array.tobytes()
    model["wide.running_mean"] += 1e10  # far means: their rounding would be larger than the variances
    model["wide.running_var"] *= 1e-20
    thrice = [(model, 1.0), (model, 5.0), (model, 0.7)]
    both = Course(pool, Plain(), spec=SPEC, first=statistics(9)).merge(thrice, aggregator=Mean(bn="pooled"))
    for name, array in model.items():
        assert both[name].tobytes() == array.tobytes(), name


def test_equal_variances_about_different_means_are_not_the_variance_of_all(pool: Executor) -> None:
    parts = [(statistics(1) | {"bn.running_mean": np.full(3, mean, np.float32)}, 1.0) for mean in (-3.0, 3.0)]
    made = Course(pool, Plain(), spec=SPEC, first=statistics(9)).merge(parts, aggregator=Mean(bn="pooled"))
    np.testing.assert_allclose(made["bn.running_var"], parts[0][0]["bn.running_var"] + 9, rtol=1e-6)


def test_far_means_of_tiny_variances_leave_no_negative_variance(pool: Executor) -> None:
    parts = []
    for offset in (0.0, 1e-4):
        model = statistics(0)
        model["wide.running_mean"] = np.full(LARGE, 1e8 + offset)
        model["wide.running_var"] = np.full(LARGE, 1e-12)
        parts.append((model, 1.0))
    for server in (Plain(), Mix(alpha=0.5)):
        made = Course(pool, server, spec=SPEC, first=statistics(9)).merge(parts, aggregator=Mean(bn="pooled"))
        assert (made["wide.running_var"] > 0).all()


@pytest.mark.parametrize("merge", ["incremental", "median", "trimmed", "krum"])
def test_it_is_refused_where_the_proposal_is_not_a_mean_of_one_round(merge: str) -> None:
    with pytest.raises(InvalidJob, match=r"merge\.bn: unknown key"):
        compose(job_spec(merge={"kind": merge, "bn": "pooled"}))
