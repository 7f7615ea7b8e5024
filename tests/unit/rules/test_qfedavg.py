"""q-FedAvg: what the next model is, which losses count, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from hansa.common.methods.starting_loss import STARTING_LOSS
from hansa.common.values.errors import InvalidJob, PluginFailed
from hansa.common.values.ids import update_key
from hansa.common.values.results import Anatomy
from hansa.controller.engine.orders import Examine
from hansa.controller.plugin.outline import outline_of
from hansa.controller.rulebook.compose import compose
from tests.unit.engine.computed import Arrays, Computed, bits
from tests.unit.engine.play import job_spec
from tests.unit.samples import keep, spec_of, values

WEIGHT, MEAN = "layer.weight", "norm.mean"
LR = 0.125


def fair(q: float, **more: Any) -> dict[str, Any]:
    train = {"optimizer": {"lr": LR}}
    return {"rule": "q-fedavg", "weigh": {"q": q}, "server": {"q": q}, "train": train, **more}


def near(x: Arrays, seed: int, distance: float = 0.1) -> Arrays:
    """Return a model near another."""
    noise = values_like(x, seed)
    return {n: (a + distance * noise[n]).astype(a.dtype) for n, a in x.items()}


def values_like(x: Arrays, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(array.shape) for name, array in x.items()}


def answer(play: Computed, updates: dict[str, tuple[Arrays, float]]) -> Arrays:
    for i, (site, (arrays, loss)) in enumerate(updates.items(), 1):
        play.answer(site, arrays, n_train=7 * i, metrics={STARTING_LOSS: loss})
    return play.community()


def by_the_book(x: Arrays, updates: dict[str, tuple[Arrays, float]], q: float) -> np.ndarray:
    """Return the next weights by Li et al., Algorithm 2."""
    big_l, delta, h = 1 / LR, np.zeros(x[WEIGHT].shape), 0.0
    for y, loss in updates.values():
        bad = max(loss, 1e-10)
        step = big_l * (x[WEIGHT].astype(np.float64) - y[WEIGHT])
        delta += bad**q * step
        h += q * bad ** (q - 1) * float((step**2).sum()) + big_l * bad**q
    return np.asarray(x[WEIGHT] - delta / h)


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.5, 5.0])
def test_the_next_model_is_the_papers(q: float) -> None:
    with Computed(**fair(q, sites={"min": 3})) as play:
        x = play.begin("a", "b", "c")
        for number in range(3):
            losses = {"a": 0.2, "b": 2.0, "c": 0.7 + number}
            updates = {s: (near(x, 10 * number + i), losses[s]) for i, s in enumerate(losses)}
            after = answer(play, updates)
            np.testing.assert_allclose(after[WEIGHT], by_the_book(x, updates, q), rtol=1e-6, atol=1e-6)
            x = after


def test_without_a_power_it_is_fedavg_with_equal_weights_bit_for_bit() -> None:
    models = []
    for words in ({"rule": "fedavg", "weigh": {"kind": "equal"}}, fair(0)):
        with Computed(**{**words, "sites": {"min": 3}}) as play:
            play.begin("a", "b", "c")
            for number in range(3):
                updates = {
                    s: (values(play.model, 10 * number + i), 0.3 * (i + 1)) for i, s in enumerate("abc")
                }
                models.append(bits(answer(play, updates)))
    assert models[:3] == models[3:]


def test_a_large_power_neither_overflows_nor_loses_the_site_with_the_largest_loss() -> None:
    with Computed(**fair(100)) as play:
        x = play.begin("a", "b")
        updates = {"a": (near(x, 1), 1e-12), "b": (near(x, 2), 1e30)}
        after = answer(play, updates)
        step = float(str(play.machine.state.history[-1].prepared))
        assert 0 < step <= 1
        moved = updates["b"][0][WEIGHT] - x[WEIGHT]
        np.testing.assert_allclose(after[WEIGHT], x[WEIGHT] + step * moved, rtol=1e-5, atol=1e-6)


def test_a_loss_of_zero_counts_as_a_very_small_one() -> None:
    with Computed(**fair(1)) as play:
        x = play.begin("a", "b")
        updates = {"a": (near(x, 1), 0.0), "b": (near(x, 2), 0.0)}
        after = answer(play, updates)
        np.testing.assert_allclose(after[WEIGHT], by_the_book(x, updates, 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -0.5])
def test_a_site_whose_loss_is_none_is_left_out(loss: float) -> None:
    with Computed(**fair(1)) as play:
        x = play.begin("a", "b")
        honest = {"a": (near(x, 1), 0.5)}
        after = answer(play, {**honest, "b": (near(x, 2), loss)})
        np.testing.assert_allclose(after[WEIGHT], by_the_book(x, honest, 1), rtol=1e-6, atol=1e-6)
        again = answer(play, {site: (near(x, 3), loss) for site in "ab"})
        assert bits(again) == bits(after)
        assert "no update counts" in play.machine.state.history[-1].note


def test_only_parameters_make_up_how_far_an_update_has_moved_and_statistics_are_the_means() -> None:
    with Computed(**fair(1)) as play:
        x = play.begin("a", "b")
        apart = {**near(x, 1), MEAN: np.full_like(x[MEAN], 1e6)}
        updates = {"a": (apart, 1.0), "b": ({**near(x, 2), MEAN: np.zeros_like(x[MEAN])}, 1.0)}
        after = answer(play, updates)
        np.testing.assert_allclose(after[WEIGHT], by_the_book(x, updates, 1), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(after[MEAN], np.full_like(x[MEAN], 5e5))


@pytest.mark.parametrize("travels", [("first", "second"), ("second",)])
def test_a_parameter_that_has_two_names_has_moved_only_once(travels: tuple[str, ...]) -> None:
    spec = spec_of(dict.fromkeys((*travels, WEIGHT), ("float32", (3, 4))))
    with Computed(spec, **fair(1)) as play:
        play.outline = outline_of(spec, Anatomy(ties=(("first", "second"),)))
        x = play.begin("a", "b")
        updates = {"a": (near(x, 1), 1.0), "b": (near(x, 2), 1.0)}
        answer(play, updates)
        moved = [
            y[name].astype(np.float64) - x[name] for y, _ in updates.values() for name in (travels[0], WEIGHT)
        ]
        wanted = 2 / (2 + np.square(moved).sum() / LR)
        assert play.machine.state.history[-1].prepared == pytest.approx(wanted, rel=1e-6)


def test_operators_are_told_once_that_steps_are_short() -> None:
    with Computed(**fair(1)) as play:
        x = play.begin("a", "b")
        for distance in (0.001, 10.0, 10.0):
            x = answer(play, {site: (near(x, i, distance), 1.0) for i, site in enumerate("ab")})
        history = play.machine.state.history
        assert [bool(version.diagnostics) for version in history] == [False, False, True, False]
        step = f"{100 * float(str(history[2].prepared)):.2g}"
        warning = (
            f"q-fedavg: with q = 1, the model goes only {step} % of the way to the mean; use a smaller q"
        )
        assert warning in str(history[2].diagnostics["server"]["warning"])
        assert play.again().memories == play.machine.memories


@pytest.mark.parametrize("far", [1e30, 1e200, 1.7e308])
def test_a_site_that_sends_huge_numbers_stops_the_model_but_not_the_job(far: float) -> None:
    spec = spec_of({WEIGHT: ("float64", (3, 4))})
    with Computed(spec, **fair(1)) as play:
        x = play.begin("a", "b")
        after = answer(play, {"a": (near(x, 1), 1.0), "b": ({WEIGHT: np.full((3, 4), far)}, 1.0)})
        np.testing.assert_allclose(after[WEIGHT], x[WEIGHT], rtol=0, atol=1e-20)
        assert float(str(play.machine.state.history[-1].prepared)) < 1e-50
        assert play.again().state == play.machine.state


def test_every_task_asks_for_the_loss_before_training() -> None:
    with Computed(**fair(2)) as play:
        play.begin("a", "b")
        (plugin,) = play.task("a").work.plugins  # type: ignore[union-attr]
        assert (plugin.name, plugin.args) == (STARTING_LOSS, {"least": 0.0})


def test_without_the_norms_the_job_fails_and_says_why() -> None:
    with Computed(**fair(1)) as play:
        x = play.begin("a", "b")
        for i, site in enumerate("ab"):
            task = play.task(site)
            keep(play.store, update_key(task.id), play.model, near(x, i))
            play.update(task, metrics={STARTING_LOSS: 1.0})
        (number,) = play.orders(Examine)
        with pytest.raises(PluginFailed, match=r"server 'q': .*could not be found out: no memory"):
            play.order_failed(number)


def test_a_crash_between_examination_and_merge_changes_nothing() -> None:
    with Computed(**fair(1)) as play:
        x = play.begin("a", "b")
        for i, site in enumerate("ab"):
            task = play.task(site)
            keep(play.store, update_key(task.id), play.model, near(x, i))
            play.update(task, metrics={STARTING_LOSS: 1.0})
        assert play.again().state == play.machine.state
        (number,) = play.orders(Examine)
        play.examined(number, [0.25, 0.75])
        plan = play.machine.state.plan
        assert plan is not None
        assert plan.prepared == 2 / (2 + (0.25 + 0.75) / LR)
        assert play.again().state == play.machine.state
        play.save()
        assert play.again().state == play.machine.state


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            {"train": {"optimizer": {"kind": "adamw"}}},
            "train.optimizer.kind: adamw: the bound holds for plain",
        ),
        ({"train": {"optimizer": {"momentum": 0.5}}}, "train.optimizer.momentum: the bound holds for plain"),
        ({"train": {"keep_optimizer": True}}, "train.keep_optimizer: state of earlier tasks"),
        ({"local": {"kind": "proximal"}}, "local: proximal does not go with server q"),
        ({"pace": {"kind": "async"}}, "pace: async does not go with server q: updates must start from"),
        ({"merge": {"kind": "trimmed"}}, "merge: trimmed does not go with server q"),
        ({"merge": {"kind": "incremental"}}, "merge: incremental does not go with server q"),
        ({"weigh": {"kind": "examples"}}, "weigh: examples does not go with server q"),
        ({"server": {"kind": "plain"}}, "server: plain does not go with weigh loss-power"),
        ({"weigh": {"q": 2}}, "weigh.q: it is 2, but server.q is 1; both must be the same"),
        ({"weigh": {"q": -1}, "server": {"q": -1}}, "greater than or equal to 0"),
    ],
)
def test_what_is_not_plain_sgd_from_the_rounds_model_is_refused(words: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        compose(job_spec(rule="q-fedavg", **words))
    assert why in str(refusal.value)
