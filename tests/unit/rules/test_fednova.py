"""FedNova: how much steps add up to, what the next model is, and what is refused."""

from typing import Any

import numpy as np
import pytest

from hansa.common.methods.proximal import PROXIMAL
from hansa.common.values.errors import HansaError, InvalidJob
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.controller.plugin.samples import contribution, view, work
from hansa.controller.plugin.view import Contribution
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.baselines.fednova import Nova, accumulated
from tests.unit.engine.computed import Arrays, Computed, bits
from tests.unit.engine.play import job_spec
from tests.unit.samples import values

WEIGHT, MEAN = "layer.weight", "norm.mean"


def update(steps: int, mu: float = 0.0, n_train: int = 10, **optimizer: float) -> Contribution:
    plugins = (LocalPluginSpec(name=PROXIMAL, args={"mu": mu}),) if mu else ()
    shaped = {"optimizer": OptimizerSpec(**{"lr": 0.1, **optimizer}), "plugins": plugins}
    c = contribution(SiteName("a"), 1, n_train)
    task = c.task.model_copy(update={"work": work().model_copy(update=shaped)})
    return c.model_copy(update={"task": task, "facts": c.facts.model_copy(update={"steps": steps})})


# How much steps add up to.


def summed(steps: int, momentum: float, alpha: float) -> float:
    """Return |a| by the book: with what factors the gradients of all steps are in the update."""
    moved, velocity = np.zeros(steps), np.zeros(steps)
    for step in range(steps):
        gradient = np.eye(steps)[step] - alpha * moved  # the term pulls back what has moved so far
        velocity = momentum * velocity + gradient
        moved = moved + velocity
    return float(moved.sum())


@pytest.mark.parametrize("steps", [1, 2, 3, 17, 200])
@pytest.mark.parametrize(("momentum", "mu"), [(0, 0), (0.5, 0), (0.9, 0), (0.999, 0), (0, 0.01), (0, 5)])
def test_steps_add_up_as_their_gradients_do(steps: int, momentum: float, mu: float) -> None:
    wanted = summed(steps, momentum, 0.1 * mu)
    assert accumulated(update(steps, mu, momentum=momentum)) == pytest.approx(wanted, rel=1e-9)


def test_without_steps_nothing_adds_up() -> None:
    assert accumulated(update(0)) == accumulated(update(0, momentum=0.9)) == accumulated(update(0, 1.0)) == 0


@pytest.mark.parametrize("steps", [1, 2, 10**9])
def test_extreme_parameters_give_no_nonsense(steps: int) -> None:
    assert accumulated(update(steps, 1e-300)) == pytest.approx(steps)
    assert accumulated(update(steps, 9.99)) == pytest.approx(1.001 if steps > 1 else 1, rel=1e-2)
    assert steps <= accumulated(update(steps, momentum=1 - 1e-15)) < float("inf")
    assert accumulated(update(steps, momentum=1e-300)) == pytest.approx(steps)


def test_what_has_no_closed_form_is_an_error_even_if_a_policy_asks_for_it_later() -> None:
    with pytest.raises(HansaError, match="together"):
        accumulated(update(3, 1.0, momentum=0.9))
    with pytest.raises(HansaError, match="lr·μ is 1"):
        accumulated(update(3, 10.0))


def test_a_site_with_fewer_steps_counts_for_more_of_each() -> None:
    one, three = update(1), update(3)
    assert Nova().weigh(Nova().begin(), [one, three], view()).tolist() == [30.0, 10.0]  # as 1 to ⅓


# The next model.


def played(play: Computed, updates: dict[str, tuple[Arrays, dict[str, Any]]]) -> Arrays:
    for site, (arrays, facts) in updates.items():
        play.answer(site, arrays, **facts)
    return play.community()


def test_two_sites_with_one_and_three_steps() -> None:
    with Computed(rule="fednova") as play:
        x = play.begin("a", "b")
        y = {"a": values(play.model, 1), "b": values(play.model, 2)}
        after = played(play, {"a": (y["a"], {"steps": 1}), "b": (y["b"], {"steps": 3})})
        # p = ½ each and τ = 2: u = (1, ⅓).
        by_the_book = x[WEIGHT] + (y["a"][WEIGHT] - x[WEIGHT]) + (y["b"][WEIGHT] - x[WEIGHT]) / 3
        np.testing.assert_allclose(after[WEIGHT], by_the_book, rtol=0, atol=1e-6)
        assert play.machine.state.history[-1].prepared == 4 / 3
        assert play.machine.state.history[-1].diagnostics["weigh"] == {"accumulated": {"a": 1.0, "b": 3.0}}


@pytest.mark.parametrize(
    "train",
    [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "mu": 0.5}],
    ids=["sgd", "momentum", "proximal"],
)
@pytest.mark.parametrize("tau", [None, 7.5])
def test_the_next_model_is_the_papers(train: dict[str, float], tau: float | None) -> None:
    sizes, steps = {"a": 3, "b": 50, "c": 11}, {"a": 9, "b": 2, "c": 31}
    words: dict[str, Any] = {"server": {"tau": tau}} if tau else {}
    words |= {"local": {"kind": "proximal", "mu": train["mu"]}} if "mu" in train else {}
    optimizer = {name: value for name, value in train.items() if name != "mu"}
    with Computed(rule="fednova", sites={"min": 3}, train={"optimizer": optimizer}, **words) as play:
        x = play.begin(*sizes)
        for number in range(3):
            y = {site: values(play.model, 10 * number + i) for i, site in enumerate(sizes, 1)}
            after = played(play, {s: (y[s], {"steps": steps[s], "n_train": sizes[s]}) for s in sizes})
            alpha = train.get("mu", 0.0) * train["lr"]
            a = {site: summed(steps[site], train.get("momentum", 0.0), alpha) for site in sizes}
            p = {site: sizes[site] / sum(sizes.values()) for site in sizes}
            effective = tau or sum(p[site] * a[site] for site in sizes)
            wanted = x[WEIGHT].astype(np.float64)
            for site in sizes:
                moved = y[site][WEIGHT].astype(np.float64) - x[WEIGHT]
                wanted = wanted + effective * p[site] / a[site] * moved
            np.testing.assert_allclose(after[WEIGHT], wanted, rtol=1e-6, atol=1e-6)
            x = after


@pytest.mark.parametrize("optimizer", [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}])
def test_equal_steps_give_fedavg_bit_for_bit(optimizer: dict[str, float]) -> None:
    models = []
    for rule in ("fedavg", "fednova"):
        with Computed(rule=rule, sites={"min": 3}, train={"optimizer": optimizer}) as play:
            play.begin("a", "b", "c")
            for number in range(3):
                updates = {
                    site: (values(play.model, 10 * number + i), {"steps": 7, "n_train": 3 * i})
                    for i, site in enumerate("abc", 1)
                }
                models.append(bits(played(play, updates)))
    assert models[:3] == models[3:]


def test_one_site_alone_decides_bit_for_bit_however_many_steps_it_makes() -> None:
    with Computed(rule="fednova", sites={"min": 1}) as play:
        play.begin("a")
        for number in range(1, 4):
            y = values(play.model, number)
            assert bits(played(play, {"a": (y, {"steps": 5 * number})})) == bits(y)


def test_an_update_without_steps_is_left_out_and_without_any_steps_the_model_stays() -> None:
    with Computed(rule="fednova") as play:
        x = play.begin("a", "b")
        nothing = {site: (values(play.model, 1), {"steps": 0}) for site in "ab"}
        assert bits(played(play, nothing)) == bits(x)
        y = values(play.model, 2)
        after = played(play, {"a": (y, {"steps": 4}), "b": (values(play.model, 3), {"steps": 0})})
        assert bits(after) == bits(y)


def test_statistics_are_averaged_and_never_extrapolated() -> None:
    with Computed(rule="fednova") as play:
        x = play.begin("a", "b")
        far = {name: array.copy() for name, array in x.items()}
        far[MEAN] = np.full_like(x[MEAN], 0.001)
        near = {**far, MEAN: np.full_like(x[MEAN], 3.0)}
        after = played(play, {"a": (far, {"steps": 1}), "b": (near, {"steps": 100})})
        assert float(str(play.machine.state.history[-1].prepared)) > 10
        assert (after[MEAN] > 0).all()
        assert (after[MEAN] < 3).all()


def test_a_merge_after_a_crash_is_prepared_in_the_same_way() -> None:
    with Computed(rule="fednova") as play:
        play.begin("a", "b")
        play.update(play.task("a"), steps=1)
        play.update(play.task("b"), steps=3)
        plan = play.machine.state.plan
        assert plan is not None
        assert plan.prepared == 4 / 3
        assert play.again().state == play.machine.state
        play.save()
        assert play.again().state == play.machine.state


# What is refused.


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"train": {"optimizer": {"kind": "adam"}}}, "train.optimizer.kind: adam: how much its steps add up"),
        ({"train": {"keep_optimizer": True}}, "train.keep_optimizer: state of earlier tasks"),
        (
            {"local": {"kind": "proximal"}, "train": {"optimizer": {"momentum": 0.9}}},
            "train.optimizer.momentum: with a proximal term, too",
        ),
        (
            {"local": {"kind": "proximal", "mu": 10}, "train": {"optimizer": {"lr": 0.1}}},
            "local.mu: lr·μ must be below 1",
        ),
        ({"pace": {"kind": "async"}}, "pace: async does not go with server nova: updates must start from"),
        ({"train": {"clip": 1}}, "train.clip: clipped gradients have other lengths: how much its steps"),
        (
            {"train": {"schedule": {"kind": "cosine", "by": "step"}}},
            "train.schedule.by: the rate changes within a task",
        ),
        (
            {"train": {"optimizer": {"momentum": 0.9, "nesterov": True}}},
            "train.optimizer.nesterov: how much its steps add up to is not known; leave it out",
        ),
        (
            {"pace": {"kind": "redistribute"}, "sample": {"kind": "uniform"}},
            "pace: redistribute does not go with server nova",
        ),
        ({"merge": {"kind": "median"}}, "merge: median does not go with server nova"),
        ({"merge": {"kind": "krum"}}, "merge: krum does not go with server nova"),
        ({"merge": {"kind": "latest"}}, "merge: latest does not go with server nova"),
        ({"merge": {"kind": "delta"}}, "merge: delta does not go with server nova"),
        ({"weigh": {"kind": "equal"}}, "weigh: equal does not go with server nova"),
        ({"server": {"kind": "plain"}}, "server: plain does not go with weigh nova"),
    ],
)
def test_what_is_not_a_known_sum_of_gradients_at_the_rounds_model_is_refused(
    words: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidJob) as refusal:
        compose(job_spec(rule="fednova", **words))
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    "words",
    [
        {"pace": {"kind": "semisync"}},
        {"local": {"kind": "proximal"}},
        {"train": {"optimizer": {"momentum": 0.9}}},
        {"sample": {"kind": "uniform", "fraction": 0.5}},
        {"merge": {"kind": "mean", "bn": "pooled"}},
        {"train": {"batches": 5}},
        {"train": {"accumulate": 4, "schedule": {"kind": "cosine"}}},
    ],
)
def test_what_only_changes_the_number_of_steps_is_welcome(words: dict[str, Any]) -> None:
    assert compose(job_spec(rule="fednova", **words)).name == "fednova"
