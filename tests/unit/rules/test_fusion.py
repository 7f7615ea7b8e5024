"""FedDAF's arithmetic: every invariant of its specification (feddaf §7), and what it reads from models."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.cluster.hierarchy import cut_tree, ward
from scipy.special import beta, digamma
from torch import nn

from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.torch.model import spec_of
from hansa.controller.rules.fusion import statistics
from hansa.controller.rules.fusion.fit import Fit, Method, fit
from hansa.controller.rules.fusion.mixture import Mixture, expectation_maximisation, groups
from hansa.controller.rules.fusion.reduce import adjusted, reduced, standardised
from hansa.controller.rules.fusion.statistics import plan
from hansa.controller.rules.fusion.variational import Autoencoder, allocate, stick_divergence, stick_mean
from hansa.controller.rules.fusion.weights import capped, fused, mixing, pruned

EM = Method(backend="em")
SIZES = [(10, 10), (10, 10, 10), (30, 15, 5), (20, 15, 10, 5), (40, 10), (13, 13, 12, 12), (48, 2)]


def planted(
    sizes: tuple[int, ...], delta: float = 1.0, width: int = 19_200, seed: int = 0, share: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of groups that differ in a share of their coordinates, and the group of each vector."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    shifts = rng.normal(0, delta, (len(sizes), width)) * (rng.random(width) < share)
    return shifts[labels] + rng.normal(size=(len(labels), width)), labels


def even(count: int) -> np.ndarray:
    return np.full(count, 1 / count)


def fitted(vectors: np.ndarray, method: Method = EM, base: np.ndarray | None = None, **more: Any) -> Fit:
    count = len(vectors)
    return fit(vectors, even(count) if base is None else base, np.full(count, 7), method, **more)


def same_groups(found: Fit, labels: np.ndarray) -> bool:
    """Whether the adjusted Rand index is 1: contributions share a component exactly if they share a group."""
    mine = found.allocation.argmax(axis=1)
    return bool(((mine[:, None] == mine) == (labels[:, None] == labels)).all())


def weight_of_groups(found: Fit, labels: np.ndarray) -> list[float]:
    return [float(found.weights[labels == group].sum()) for group in range(labels.max() + 1)]


def base_weights(count: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float64, count, elements=st.floats(0.01, 1)).map(lambda a: a / a.sum())


def allocations(count: int, components: int) -> st.SearchStrategy[np.ndarray]:
    drawn = hnp.arrays(np.float64, (count, components), elements=st.floats(1e-6, 1))
    return drawn.map(lambda a: a / a.sum(axis=1, keepdims=True))


# Groups are found (invariants 1 and 6).


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_planted_groups_are_found_exactly(sizes: tuple[int, ...]) -> None:
    for seed in range(8):
        vectors, labels = planted(sizes, seed=seed)
        found = fitted(vectors)
        assert same_groups(found, labels), seed
        assert found.why == ""
        sound(found, even(len(labels)))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_autoencoder_finds_them_too(sizes: tuple[int, ...]) -> None:
    vectors, labels = planted(sizes, seed=3)
    found, by_em = fitted(vectors, Method()), fitted(vectors)
    assert same_groups(found, labels)
    sound(found, even(len(labels)))
    assert weight_of_groups(found, labels) == pytest.approx(weight_of_groups(by_em, labels), abs=0.02)


def test_short_vectors_will_do() -> None:
    vectors, labels = planted((10, 10, 10), width=192, share=0.5)
    assert same_groups(fitted(vectors), labels)


def test_one_group_is_one_group() -> None:
    for seed in range(8):
        vectors, _ = planted((20,), seed=seed)
        found = fitted(vectors)
        assert found.weights.tolist() == even(20).tolist()
        assert found.allocation.shape == (20, 1)
        assert "noise" in found.why


def sound(found: Fit, base: np.ndarray, boost: float = 4.0) -> None:
    assert abs(found.weights.sum() - 1) <= 1e-12
    assert (found.weights >= 0).all()
    assert (found.weights <= boost * base + 1e-12).all()
    np.testing.assert_allclose(found.allocation.sum(axis=1), 1, atol=1e-12)
    assert abs(found.shares.sum() - 1) <= 1e-12


# The base weights come back exactly where there is nothing to say (invariant 2, edge cases).


@pytest.mark.parametrize(
    ("vectors", "method", "why"),
    [
        (planted((40, 10))[0], Method(backend="em", max_components=1), "one group"),
        (np.full((12, 30), 3.5), EM, "the same statistics"),
        (np.tile(np.arange(30.0), (12, 1)) * 1e6, EM, "the same statistics"),
        (planted((2, 1))[0], EM, "3 contributions; groups are sought from 4 on"),
        (np.zeros((12, 0)), EM, "the same statistics"),
        (np.where(np.eye(12) > 0, np.nan, 1.0), EM, "statistics of 12 of 12 contributions are not finite"),
    ],
    ids=["max_components", "equal", "large and equal", "few", "nothing", "nan"],
)
def test_without_groups_the_weights_are_the_base_weights_exactly(
    vectors: np.ndarray, method: Method, why: str
) -> None:
    examples = np.random.default_rng(0).integers(1, 500, len(vectors)).astype(np.float64)
    base = examples / examples.sum()
    found = fitted(vectors, method, base)
    assert np.array_equal(found.weights, base)
    assert why in found.why


def test_a_single_outlier_is_not_a_group() -> None:
    vectors, _ = planted((19, 1), delta=3.0)
    assert np.array_equal(fitted(vectors).weights, even(20))
    assert not np.array_equal(fitted(vectors, Method(backend="em", min_clients=1)).weights, even(20))


# From groups to weights (invariants 1, 3 and 8).


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_with_the_shares_of_em_the_weights_are_the_base_weights(data: st.DataObject) -> None:
    count, components = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 5))
    base, allocation = data.draw(base_weights(count)), data.draw(allocations(count, components))
    np.testing.assert_allclose(fused(allocation, base, base @ allocation), base, rtol=0, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_weights_always_add_up_to_one_and_keep_below_the_cap(data: st.DataObject) -> None:
    count, components = data.draw(st.integers(4, 12)), data.draw(st.integers(1, 5))
    base, boost = data.draw(base_weights(count)), data.draw(st.floats(1, 8))
    allocation = pruned(data.draw(allocations(count, components)), base)
    shares = mixing(allocation, base, data.draw(st.floats(0.05, 100)))
    weights = capped(fused(allocation, base, shares), base, boost)
    sound(Fit(weights, allocation, shares), base, boost)


def test_groups_of_equal_size_weigh_as_their_clients_do() -> None:
    for method in (EM, Method()):
        vectors, _ = planted((10, 10))
        np.testing.assert_allclose(fitted(vectors, method).weights, even(20), rtol=0, atol=1e-6)


def test_forty_against_ten() -> None:
    allocation = np.repeat(np.eye(2), (40, 10), axis=0)
    shares = mixing(allocation, even(50))
    assert shares == pytest.approx((0.6457, 0.3543), abs=5e-5)
    vectors, labels = planted((40, 10))
    assert weight_of_groups(fitted(vectors), labels) == pytest.approx(shares.tolist(), abs=1e-6)


def test_theta_leads_from_the_shares_towards_equal_groups() -> None:
    allocation = np.repeat(np.eye(2), (40, 10), axis=0)
    assert mixing(allocation, even(50), 1e6) == pytest.approx((0.5, 0.5), abs=1e-6)
    assert mixing(allocation, even(50), 0.1)[0] > 0.99
    assert mixing(allocation, even(50), 1e-4).tolist() == [1.0, 0.0]


def test_two_sites_cannot_buy_more_than_the_cap() -> None:
    vectors, labels = planted((48, 2))
    assert weight_of_groups(fitted(vectors), labels) == pytest.approx((0.84, 0.16))
    free = fitted(vectors, Method(backend="em", max_boost=50))
    assert weight_of_groups(free, labels) == pytest.approx((0.72, 0.28), abs=0.01)


def test_a_component_that_hardly_anything_belongs_to_is_dropped() -> None:
    allocation = np.full((10, 3), (0.7, 0.28, 0.02))
    kept = pruned(allocation, even(10))
    np.testing.assert_allclose(kept, np.full((10, 2), (0.7, 0.28)) / 0.98)
    lost = np.vstack([np.tile((1.0, 0.0, 0.0), (9, 1)), (0.0, 0.0, 1.0)])
    tiny = np.r_[np.full(9, 0.11), 0.01]  # the last has all of its mass in what is dropped
    assert pruned(lost, tiny).tolist() == np.ones((10, 1)).tolist()


@pytest.mark.parametrize(("share", "components"), [(0.5, 2), (0.499, 1)])
def test_a_component_is_kept_from_half_a_contribution_on(share: float, components: int) -> None:
    allocation = np.array([[1 - share, share], [1, 0], [1, 0], [1, 0]])
    assert pruned(allocation, even(4)).shape == (4, components)


# Reproducible, whatever the order and the units (invariants 4, 5 and 7).


@pytest.mark.parametrize("backend", ["em", "vae"])
def test_the_same_seed_gives_the_same_bits_and_global_chance_is_left_alone(
    backend: Literal["em", "vae"],
) -> None:
    vectors, _ = planted((12, 5), width=500, share=0.3)

    def chances() -> tuple[Any, ...]:
        return np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), torch.get_num_threads()  # type: ignore[index]

    before = chances()
    first = fitted(vectors, Method(backend=backend), seed=(5, 1))
    assert chances() == before
    np.random.seed(2)
    torch.manual_seed(2)
    again = fitted(vectors, Method(backend=backend), seed=(5, 1))
    assert again.weights.tobytes() == first.weights.tobytes()
    assert again.allocation.tobytes() == first.allocation.tobytes()
    other = fitted(vectors, Method(backend=backend), seed=(5, 2))
    assert np.abs(other.weights - first.weights).max() * 17 < 0.05
    assert (other.allocation.tobytes() == first.allocation.tobytes()) == (backend == "em")


def test_the_order_of_contributions_does_not_matter_to_em() -> None:
    vectors, _ = planted((20, 15, 10, 5))
    order = np.random.default_rng(4).permutation(50)
    np.testing.assert_allclose(
        fitted(vectors[order]).weights, fitted(vectors).weights[order], rtol=0, atol=1e-12
    )


def test_the_units_of_a_coordinate_do_not_matter() -> None:
    vectors, _ = planted((12, 5), width=500, share=0.3)
    rng = np.random.default_rng(0)
    scale = rng.choice([-1.0, 1.0], 500) * 10 ** rng.uniform(-3, 3, 500)
    for method in (EM, Method()):
        other = fitted(vectors * scale + rng.normal(0, 10, 500), method)
        np.testing.assert_allclose(other.weights, fitted(vectors, method).weights, rtol=0, atol=1e-9)


# Local work (step 0).


def test_what_follows_from_the_number_of_steps_is_taken_away() -> None:
    vectors, labels = planted((16, 4), width=2000, share=0.3)
    steps = np.random.default_rng(1).integers(10, 60, 20)
    worked = vectors + 4 * np.outer(np.log(steps), np.random.default_rng(2).normal(size=2000))
    base = even(20)
    assert same_groups(fit(worked, base, steps, EM), labels)
    assert not same_groups(fit(worked, base, steps, Method(backend="em", adjust="none")), labels)
    left = standardised(adjusted(worked, steps))
    assert np.abs(np.log(steps) @ left).max() < 1e-9


def test_equal_steps_change_nothing() -> None:
    vectors, _ = planted((4, 4), width=50)
    assert adjusted(vectors, np.full(8, 12)) is vectors
    assert np.isfinite(adjusted(vectors, np.array([0, 1, 1, 1, 1, 1, 1, 1]))).all()


def test_a_coordinate_that_only_counts_steps_says_nothing() -> None:
    steps = np.arange(1, 9)
    vectors = 1e4 + 3 * np.outer(np.log(steps), np.ones(5))
    assert standardised(adjusted(vectors, steps)).shape == (8, 0)


# Reduction and mixture.


def test_scores_have_fixed_signs_and_one_scale() -> None:
    vectors, _ = planted((20, 15, 10, 5))
    spectrum = reduced(vectors)
    assert 1 <= spectrum.rank <= 8
    assert spectrum.top > spectrum.edge
    highest = np.abs(spectrum.scores).argmax(axis=0)
    assert (spectrum.scores[highest, np.arange(spectrum.rank)] > 0).all()
    assert (spectrum.scores**2).sum(axis=1).mean() == pytest.approx(spectrum.rank)


def spectrum_by_definition(vectors: np.ndarray) -> tuple[int, float, np.ndarray]:
    """Return rank, noise edge and scores as feddaf §3.2 has them, from a singular value decomposition."""
    z = (vectors - vectors.mean(axis=0)) / vectors.std(axis=0)
    count, width = z.shape
    left, lengths, _ = np.linalg.svd(z / np.sqrt(width), full_matrices=False)
    values = lengths**2
    edge = float(np.median(values[: count - 1])) * (1 + np.sqrt(count / width)) ** 2 * 1.1
    rank = (
        min(sum(value - edge >= 0.15 * (values[0] - edge) for value in values), 8) if values[0] > edge else 0
    )
    scores = left[:, :rank] * lengths[:rank]
    scores = scores * np.sign(scores[np.abs(scores).argmax(axis=0), np.arange(rank)])
    return rank, edge, scores * np.sqrt(rank / (scores**2).sum(axis=1).mean()) if rank else scores


def test_directions_are_kept_that_exceed_the_noise_and_a_share_of_the_first_but_no_more_than_eight() -> None:
    ranks = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        strengths = rng.uniform(0, (0.1, 0.35, 1.0, 3.0)[seed % 4], 12) * (np.arange(12) < seed % 5 * 3)
        shape = np.linalg.qr(rng.normal(size=(30, 12)))[0] * np.sqrt(30) * strengths
        vectors = shape @ rng.normal(size=(12, 300)) + rng.normal(size=(30, 300))
        rank, edge, scores = spectrum_by_definition(vectors)
        found = reduced(vectors)
        assert found.rank == rank, seed
        assert found.edge == pytest.approx(edge)
        np.testing.assert_allclose(found.scores, scores, atol=1e-8)
        ranks.add(rank)
    assert {0, 1, 8} <= ranks
    assert len(ranks) > 5, ranks


def test_the_number_of_components_has_the_least_cost_with_twice_the_penalty_of_bic() -> None:
    def choice(scores: np.ndarray, penalty: float) -> int:
        costs = {}
        for number in range(1, len(scores) // 2 + 1):
            found = expectation_maximisation(scores, cut_tree(ward(scores), n_clusters=number)[:, 0])
            rows, rank = scores.shape
            if number == 1 or np.bincount(found.allocation.argmax(axis=1), minlength=number).min() >= 2:
                costs[number] = -2 * found.likelihood + penalty * (number * rank + number) * np.log(rows)
        return min(costs, key=lambda number: costs[number])

    told_apart = {1.0: 0, 3.0: 0}
    for seed in range(24):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=(16, 2)) + rng.normal(0, 2.5, (4, 2))[np.arange(16) % 4]
        wanted = choice(scores, 2.0)
        assert groups(scores, 15, 2).components == wanted, seed
        for penalty in told_apart:
            told_apart[penalty] += choice(scores, penalty) != wanted
    assert min(told_apart.values()) > 2


def test_em_ends_where_responsibilities_and_the_mixture_follow_from_one_another() -> None:
    rng = np.random.default_rng(3)
    scores = np.concatenate([rng.normal(0, 1, (12, 2)), rng.normal(3, 1, (6, 2))])
    found = expectation_maximisation(scores, np.repeat([0, 1], (12, 6)))
    share = found.allocation.mean(axis=0)
    centres = found.allocation.T @ scores / found.allocation.sum(axis=0)[:, None]
    apart = ((scores[:, None] - centres) ** 2).sum(axis=2)
    variance = float((found.allocation * apart).sum()) / (18 * 2)
    joint = share * np.exp(-apart / (2 * variance)) / (2 * np.pi * variance)
    np.testing.assert_allclose(found.centres, centres, atol=1e-4)
    assert found.variance == pytest.approx(variance, abs=1e-4)
    np.testing.assert_allclose(found.allocation, joint / joint.sum(axis=1, keepdims=True), atol=1e-4)
    assert found.likelihood == pytest.approx(float(np.log(joint.sum(axis=1)).sum()), abs=1e-6)
    assert found.allocation.min(axis=1).max() > 0.02  # some belong to both


def test_components_come_largest_first() -> None:
    vectors, _ = planted((5, 30, 15))
    mixture = groups(reduced(vectors).scores, 15, 2)
    assert mixture.sizes.tolist() == [30, 15, 5]


def test_points_on_top_of_one_another_are_no_trouble() -> None:
    scores = np.repeat([[1.0], [-1.0]], (6, 6), axis=0)
    mixture = groups(scores, 6, 2)
    assert mixture.components == 2
    assert mixture.variance == 1e-4
    rows = allocate(scores, mixture, (0, 0))
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-12)


# The paper's distributions (invariant 9).


@pytest.mark.parametrize(("zeta", "kappa", "mean"), [(1, 1, 0.5), (2, 1, 2 / 3), (1, 2, 1 / 3)])
def test_the_mean_of_kumaraswamys_distribution(zeta: float, kappa: float, mean: float) -> None:
    assert float(
        stick_mean(torch.tensor(float(zeta)).double(), torch.tensor(float(kappa)).double())
    ) == pytest.approx(mean, abs=1e-12)


def softplus(x: float) -> float:
    return float(np.log1p(np.exp(x)))


@pytest.mark.parametrize(("variance", "scale"), [(0.5, 2.0), (0.01, 8.0)])
def test_the_autoencoder_begins_at_the_solution_of_em(variance: float, scale: float) -> None:
    rng = np.random.default_rng(4)
    centres, points = rng.normal(size=(3, 2)), rng.normal(size=(5, 2))
    model = Autoencoder(
        Mixture(centres, variance, np.eye(3)[[0, 1, 2, 0, 1]], 0.0), torch.Generator().manual_seed(1)
    )
    logits, spread, zeta, kappa = (found.detach().numpy() for found in model.encode(torch.from_numpy(points)))
    wanted = -scale / 2 * ((points[:, None] - centres) ** 2).sum(axis=2)  # up to a number for each row
    np.testing.assert_allclose(logits - logits[:, :1], wanted - wanted[:, :1], atol=1e-12)
    assert (spread == -3).all()
    np.testing.assert_allclose(zeta, softplus(4) + 0.1)
    np.testing.assert_allclose(kappa, softplus(0.5413) + 0.1)  # 1.1
    np.testing.assert_array_equal(model.means.detach().numpy(), centres)
    assert (model.log_variances == -4).all()
    np.testing.assert_array_equal(model.decode(torch.from_numpy(points)).detach().numpy(), points)
    assert float(model.log_noise.detach()) == pytest.approx(np.log(variance) / 2)
    assert (model.encoder.shape, model.decoder.shape) == ((2, 16), (2, 16))


def _anywhere(rng: np.random.Generator, variance: float, scale: float) -> Autoencoder:
    """Return an autoencoder that is not where it would start."""
    start = Mixture(rng.normal(size=(3, 2)), variance, np.eye(3)[[0, 1, 2, 0]], 0.0)
    model = Autoencoder(start, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.from_numpy(rng.normal(0, scale, parameter.shape)))
    return model


@pytest.mark.parametrize("noise", [-0.4, 0.3])
def test_the_loss_is_that_of_the_specification(noise: float) -> None:
    """Every term anew in numpy, from the same random numbers."""
    rng = np.random.default_rng(7)
    model = _anywhere(rng, 0.6, 0.4)
    with torch.no_grad():
        model.log_noise.fill_(noise)
    x = rng.normal(size=(4, 2))
    given = torch.from_numpy(x)
    nu, spread, zeta, kappa = (found.detach().numpy() for found in model.encode(given))
    chance = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> np.ndarray:
        return torch.randn(shape, generator=chance, dtype=torch.float64).numpy()

    def uniform(*shape: int) -> np.ndarray:
        return 1e-3 + (1 - 2e-3) * torch.rand(shape, generator=chance, dtype=torch.float64).numpy()

    b = np.exp(nu + np.exp(spread / 2) * normal(4, 3))
    b /= b.sum(axis=1, keepdims=True)
    p = np.cumprod((1 - uniform(4, 3) ** (1 / kappa)) ** (1 / zeta), axis=1)
    u = uniform(4, 3)
    c = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + np.log(u / (1 - u))) / 0.5))
    r = b * (c + 1e-4)
    r /= r.sum(axis=1, keepdims=True)
    means, log_variances = model.means.detach().numpy(), model.log_variances.detach().numpy()
    z = r @ (means + np.exp(log_variances / 2) * normal(3, 2))
    made = model.decode(torch.from_numpy(z)).detach().numpy()
    log_s = max(noise, 0.5 * np.log(0.6))
    fit_term = ((x - made) ** 2).sum() / (2 * np.exp(2 * log_s)) + 4 * 2 * log_s
    centred = nu - nu.mean(axis=1, keepdims=True)
    kl_b = 0.5 * (centred**2 / 16 + np.exp(spread) - spread - 1).sum()
    slope = (zeta - 4) / zeta * (-0.5772156649015329 - digamma(kappa) - 1 / kappa)
    kl_sticks = (slope + np.log(zeta * kappa / 4) - (kappa - 1) / kappa).sum()
    kl_z = 0.5 * (np.exp(log_variances) + means**2 - 1 - log_variances).sum()
    wanted = (fit_term + 0.1 * (kl_b + kl_sticks + kl_z)) / 4
    found = float(model.loss(given, torch.Generator().manual_seed(2)).detach())
    assert found == pytest.approx(wanted, rel=1e-9)


def test_the_autoencoder_is_trained_by_two_hundred_clipped_steps_of_adam() -> None:
    rng = np.random.default_rng(5)
    scores = np.concatenate([rng.normal(-1, 0.4, (7, 1)), rng.normal(1, 0.4, (5, 1))])
    start = groups(scores, 6, 2)
    assert start.components == 2
    chance = torch.Generator().manual_seed(
        int(np.random.SeedSequence((3, 4)).generate_state(1, np.uint64)[0] >> 1)
    )
    model, lengths = Autoencoder(start, chance), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        model.loss(torch.from_numpy(scores), chance).backward()  # type: ignore[no-untyped-call]
        lengths.append(float(nn.utils.clip_grad_norm_(model.parameters(), 5.0)))
        optimizer.step()
    wanted = model.allocation(torch.from_numpy(scores)).detach().numpy()
    np.testing.assert_allclose(allocate(scores, start, (3, 4)), wanted, rtol=1e-9)
    assert max(lengths) > 5  # so that the clipping matters


def test_the_result_is_by_means_of_the_logits_and_of_the_sticks_that_shrink_from_component_to_component() -> (
    None
):
    rng = np.random.default_rng(4)
    model = _anywhere(rng, 0.3, 0.5)
    points = rng.normal(size=(4, 2))
    logits, _, zeta, kappa = (found.detach().numpy() for found in model.encode(torch.from_numpy(points)))
    sticks = np.cumprod(kappa * beta(1 + 1 / zeta, kappa), axis=1)
    wanted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) * sticks
    found = model.allocation(torch.from_numpy(points)).detach().numpy()
    np.testing.assert_allclose(found, wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-10)


def test_the_divergence_of_sticks_is_zero_at_the_prior_and_positive_elsewhere() -> None:
    zeta, kappa = torch.meshgrid(
        torch.linspace(0.5, 8, 16).double(), torch.linspace(0.5, 3, 6).double(), indexing="ij"
    )
    assert float(stick_divergence(torch.tensor(4.0).double(), torch.tensor(1.0).double())) == pytest.approx(
        0, abs=1e-12
    )
    assert (stick_divergence(zeta, kappa) >= -1e-12).all()
    # Against the integral, by the trapezoidal rule.
    x = torch.linspace(0, 1, 200_001).double()[1:-1]
    density = 2 * 3 * x * (1 - x**2) ** 2
    integral = float(torch.trapezoid(density * torch.log(density / (4 * x**3)), x))
    assert float(stick_divergence(torch.tensor(2.0).double(), torch.tensor(3.0).double())) == pytest.approx(
        integral, abs=1e-4
    )


# What is read from models (feddaf §2).


class Residual(nn.Module):
    """A network with every kind of normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4, eps=1e-3)
        self.plain = nn.BatchNorm1d(2, affine=False)
        self.ln = nn.LayerNorm(5)
        self.bare = nn.InstanceNorm2d(4)
        self.act = nn.PReLU(6)
        self.last = nn.Linear(5, 2)


def test_normalisation_layers_give_means_log_deviations_shifts_and_scales() -> None:
    module = Residual()
    with torch.no_grad():
        module.state_dict()["bn.running_var"].copy_(torch.tensor([1.0, 4.0, 0.0, 2.0]))
    made = plan(spec_of(module), "auto")
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    assert made.kind == "norm"
    assert [source.tensor for source in made.sources] == [
        *("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"),
        *("plain.running_mean", "plain.running_var", "ln.weight", "ln.bias"),
    ]
    vector = made.vector(state.__getitem__)
    assert vector.dtype == np.float64
    assert len(vector) == 4 * 4 + 2 * 2 + 2 * 5
    np.testing.assert_allclose(vector[12:16], np.log(np.sqrt(np.array([1, 4, 0, 2]) + 1e-3)))


def test_counters_never_count() -> None:
    names = [
        source.tensor for stats in ("norm", "weights") for source in plan(spec_of(Residual()), stats).sources
    ]
    assert not [name for name in names if "num_batches" in name]


def test_norms_of_other_libraries_are_known_by_their_names() -> None:
    class LlamaRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.variance_epsilon = 1e-6

    module = nn.Sequential(
        nn.Linear(3, 3), LlamaRMSNorm(), nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    )
    norms = {info.name: info.norm for info in spec_of(module).tensors if info.norm is not None}
    assert norms == {"1.weight": 1e-6}


def test_norms_of_an_undescribed_model_are_found_by_the_names_of_running_statistics() -> None:
    kinds = ("weight", "bias", "running_mean", "running_var")
    infos = [TensorInfo(f"net.1.{kind}", "float32", (3,), Role.PARAM) for kind in kinds]
    spec = ModelSpec((TensorInfo("net.0.weight", "float32", (3, 3), Role.PARAM), *infos))
    assert [source.tensor for source in plan(spec, "norm").sources] == [info.name for info in infos]


def test_without_normalisation_layers_weights_are_described_or_the_job_is_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.PReLU())
    with torch.no_grad():
        module.state_dict()["0.weight"].copy_(torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]))
    spec = spec_of(module)
    made = plan(spec, "auto")
    assert made.kind == "weights"
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    vector = made.vector(state.__getitem__)
    np.testing.assert_allclose(vector[:4], [2, 5, np.log(np.sqrt(2 / 3)), np.log(1e-6)], rtol=1e-6)
    assert vector[4:].tolist() == [*state["0.bias"].tolist(), 0.25]
    with pytest.raises(ValueError, match="no normalisation layer"):
        plan(spec, "norm")


def test_of_a_very_long_vector_a_part_is_drawn_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST", 100)
    spec = ModelSpec((TensorInfo("b", "float64", (1000,), Role.PARAM),))
    read = {"b": np.arange(1000.0)}.__getitem__
    drawn = plan(spec, "weights").vector(read, seed=3)
    assert len(drawn) == 100
    assert (np.diff(drawn) > 0).all()
    assert drawn.tolist() == plan(spec, "weights").vector(read, seed=3).tolist()
    assert drawn.tolist() != plan(spec, "weights").vector(read, seed=4).tolist()


def test_a_negative_variance_shows_as_nan() -> None:
    spec = ModelSpec(
        (
            TensorInfo("running_mean", "float32", (1,), Role.STAT),
            TensorInfo("running_var", "float32", (1,), Role.STAT),
        )
    )
    vector = plan(spec, "norm").vector({"running_mean": np.zeros(1), "running_var": -np.ones(1)}.__getitem__)
    assert np.isnan(vector).any()
