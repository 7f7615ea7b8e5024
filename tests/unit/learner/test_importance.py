"""RADFedi: how large a site's gradients are, and drawing sites by that."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.methods.importance import IMPORTANCE, Importance
from hansa.common.torch.data import Tensors
from hansa.common.values.errors import InvalidApp, InvalidJob, Stale
from hansa.common.values.ids import ModelKey, SiteName
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Init, Probe, Train
from hansa.controller.plugin.samples import contribution
from hansa.controller.plugin.view import View
from hansa.controller.rules.radfed import LARGEST, ByImportance, Scores, draw_keys
from hansa.learner.plugins.contract import Course
from hansa.learner.plugins.importance import Gauge, measured
from hansa.learner.plugins.selection import asked_of, probe_of
from hansa.learner.training.loop import Hooks, train
from hansa.learner.training.slow import Cancelled
from tests.unit.engine.play import Play, endings, job_spec, machine_of, sent, withdrawn
from tests.unit.engine.travel import radfed

A, B, C = (SiteName(name) for name in "abc")


def work(epochs: int = 1, batch_size: int = 4, plugins: tuple[LocalPluginSpec, ...] = ()) -> Train:
    optimizer = OptimizerSpec(lr=0.1)
    return Train(
        model=ModelKey("j/v0"),
        version=0,
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,
        plugins=plugins,
    )


def view(round_: int = 1, sites: tuple[SiteName, ...] = (A, B, C), draw: tuple[int, ...] = ()) -> View:
    return View(
        sites=sites,
        busy=frozenset(),
        examples={},
        evaluators=(),
        version=0,
        round=round_,
        steps=0,
        seed=7,
        now=0.0,
        draw=draw,
    )


# Drawing.


TWO_OF_THREE = 1 / 2 + 2 * (1 / 4) * (2 / 3)  # that the third, of scores 1, 1 and 2, is among two


@pytest.mark.parametrize(("m", "third"), [(1, 0.5), (2, TWO_OF_THREE)])
def test_the_largest_keys_are_a_draw_in_proportion_to_scores_without_replacement(
    m: int, third: float
) -> None:
    draws = 100_000
    keys = draw_keys(np.array([1.0, 1.0, 2.0]), np.random.default_rng(7), draws)
    drawn = np.argsort(-keys, axis=1)[:, :m]
    shares = np.bincount(drawn.ravel(), minlength=3) / draws
    assert shares == pytest.approx([(m - third) / 2, (m - third) / 2, third], abs=0.01)


@pytest.mark.parametrize(("fraction", "m", "third"), [(0.34, 1, 0.5), (0.67, 2, TWO_OF_THREE)])
def test_every_round_takes_the_largest_keys_of_a_draw_of_its_own(
    fraction: float, m: int, third: float
) -> None:
    sampler, state = ByImportance(fraction=fraction), Scores(seen={A: 1.0, B: 1.0, C: 2.0})
    draws = 5000
    counts: Counter[SiteName] = Counter()
    for round_ in range(draws):
        chosen = sampler.choose(state, view(round_))
        assert len(set(chosen)) == len(chosen) == m
        counts.update(chosen)
    assert counts[C] / draws == pytest.approx(third, abs=0.03)
    assert counts[A] / draws == pytest.approx((m - third) / 2, abs=0.03)


def test_with_everybody_drawn_everybody_is_in_every_draw() -> None:
    sampler = ByImportance(fraction=1.0)
    for round_ in range(20):
        assert set(sampler.choose(Scores(seen={A: 1e-300, B: 5.0}), view(round_))) == {A, B, C}


def test_a_site_that_is_excluded_is_not_drawn_whatever_its_score() -> None:
    sampler, state = ByImportance(fraction=1.0), Scores(seen={A: 1e9, B: 1.0})
    for round_ in range(20):
        assert set(sampler.choose(state, view(round_), frozenset({A}))) == {B, C}


def test_hops_of_a_round_are_different_draws() -> None:
    sampler, sites = ByImportance(fraction=0.2), tuple(SiteName(f"s{i}") for i in range(20))
    drawn = {tuple(sampler.choose(Scores(), view(1, sites, draw))) for draw in ((), (2,), (3,), (3, 1, 1))}
    assert len(drawn) == 4


def test_scores_that_cannot_be_compared_leave_the_draw_possible() -> None:
    sampler = ByImportance(fraction=0.34)
    for seen in ({A: 0.0, B: 0.0, C: 0.0}, {A: LARGEST, B: 0.0}, {A: 5e-324, B: 0.0, C: 0.0}):
        drawn = {sampler.choose(Scores(seen=seen), view(round_))[0] for round_ in range(200)}
        assert drawn <= {A, B, C}
        assert drawn


def test_no_score_is_less_than_a_millionth_of_a_millionth_of_the_largest() -> None:
    keys = draw_keys(np.array([4.0, 0.0, 4e-13, 4e-12, 4e-6]), np.random.default_rng(3))
    noise = np.random.default_rng(3).gumbel(size=(1, 5))
    np.testing.assert_allclose(keys - noise, np.log([[1.0, 1e-12, 1e-12, 1e-12, 1e-6]]), rtol=1e-12)


def test_a_site_that_was_never_heard_counts_as_the_mean_of_the_others() -> None:
    sampler, draws = ByImportance(fraction=0.34), 3000
    state = Scores(seen={A: 0.002, B: 0.004})  # c is taken to be 0.003
    counts = Counter(sampler.choose(state, view(round_))[0] for round_ in range(draws))
    assert counts[C] / draws == pytest.approx(1 / 3, abs=0.027)
    assert counts[A] / draws == pytest.approx(
        2 / 9, abs=0.025
    )  # however small scores are, their ratios count
    nobody = Counter(sampler.choose(Scores(), view(round_))[0] for round_ in range(draws))
    assert nobody[C] / draws == pytest.approx(1 / 3, abs=0.027)


@pytest.mark.parametrize(("gamma", "wanted"), [(0.9, 1.1), (1.0, 1.0), (0.0, 2.0)])
def test_scores_follow_what_sites_measure(gamma: float, wanted: float) -> None:
    sampler, state = ByImportance(gamma=gamma), Scores()

    def tell(number: float | None) -> float:
        c = contribution(A, 1)
        facts = c.facts.model_copy(update={"metrics": {} if number is None else {"importance": number}})
        sampler.observe(state, c.model_copy(update={"facts": facts}))
        return state.seen.get(A, math.nan)

    assert math.isnan(tell(None))
    assert tell(2.0) == 2.0  # the first is taken as it is
    assert tell(1.0) == pytest.approx(wanted)
    held = state.seen[A]
    for nonsense in (math.nan, math.inf, -1.0, None):
        assert tell(nonsense) == held
    assert math.isfinite(tell(1e308))
    assert state.seen.pop(A) <= LARGEST
    assert tell(0.0) == 0.0  # a score like any other


@pytest.mark.parametrize("form", ["online", "per_example"])
def test_either_form_of_the_score_goes_but_not_both(form: str) -> None:
    machine_of(job_spec(**importance(**{form: True})))
    with pytest.raises(InvalidJob, match="of whole batches"):
        machine_of(job_spec(**importance(online=True, per_example=True)))


# The engine.


def importance(**more: object) -> dict[str, object]:
    return radfed(rounds=1, hops=2, sites={"min": 4}) | {
        "sample": {"kind": "importance", "fraction": 0.5, **more}
    }


def test_every_task_asks_for_the_score_and_every_update_is_heard_before_the_next_hop_is_drawn() -> None:
    play = Play(**importance())
    first, second = play.training("a", "b", "c", "d").values()
    assert isinstance(first.work, Train)
    assert [plugin.name for plugin in first.work.plugins] == [IMPORTANCE]
    play.update(first, importance=3.0)
    play.update(second, importance=1.0)
    state = play.machine.memories["sample"]
    assert isinstance(state, Scores)
    assert state.seen == {first.site: 3.0, second.site: 1.0}
    assert play.again().memories == play.machine.memories


def test_the_score_of_a_site_that_leaves_is_kept_for_its_return() -> None:
    play = Play(**importance())
    first, second = play.training("a", "b", "c", "d").values()
    play.update(first, importance=3.0)
    play.leave(first.site)
    play.update(second, importance=1.0)
    play.join(first.site)
    state = play.machine.memories["sample"]
    assert isinstance(state, Scores)
    assert state.seen == {first.site: 3.0, second.site: 1.0}


def test_with_a_probe_all_sites_measure_the_first_model_before_the_first_round() -> None:
    play = Play(**importance(init="probe"))
    play.join("a", "b", "c", "d")
    (init,) = play.tasks(Init).values()
    play.update(init)
    probes = play.tasks(Probe)
    assert set(probes) == set("abcd")
    assert not play.tasks(Train)
    play.probe(probes["a"], 4.0)
    play.fail(probes["b"])
    play.join("e")  # too late to be asked
    assert play.again().state.model_dump() == play.machine.state.model_dump()
    play.leave("c")
    effects = play.probe(probes["d"], 2.0)
    assert [task.round for task in sent(effects)] == [1, 1]
    state = play.machine.memories["sample"]
    assert isinstance(state, Scores)
    assert state.seen == {"a": 4.0, "d": 2.0}


def test_a_site_that_hangs_over_its_probe_does_not_hold_up_the_job() -> None:
    play = Play(**importance(init="probe"))
    play.join("a", "b", "c", "d")
    play.update(play.tasks(Init)["a"])
    probes = play.tasks(Probe)
    play.probe(probes.pop("a"), 4.0)
    effects = play.ring("probes")
    assert set(withdrawn(effects)) == {task.id for task in probes.values()}
    assert [task.round for task in sent(effects)] == [1, 1]
    with pytest.raises(Stale):
        play.probe(probes["b"], 1.0)


def test_an_app_that_cannot_be_measured_fails_the_job_by_name() -> None:
    play = Play(**importance(init="probe"))
    play.join("a", "b", "c", "d")
    play.update(play.tasks(Init)["a"])
    effects = play.fail(
        play.tasks(Probe)["b"], "sample importance: the app trains by a function of its own", final=True
    )
    ((status, reason),) = endings(effects)
    assert (status, reason) == (
        "failed",
        "site b: sample importance: the app trains by a function of its own",
    )


# Measuring.


def never() -> bool:
    return False


def score(
    app: App,
    module: nn.Module,
    data: Tensors,
    given: Importance,
    batch_size: int,
    cancelled: Callable[[], bool] = never,
) -> float | None:
    module.train()
    return Gauge(module, given).score(app, data, batch_size, 1, cancelled)


def line(*weights: float) -> nn.Linear:
    module = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([weights]))
    return module


REGRESSION = App(model=lambda: line(0.0, 0.0), task="regression")


def test_a_gradient_of_three_and_four_scores_twenty_five() -> None:
    # Squared loss (x·w − y)² with w = 0, x = (3, 4), y = −1/2: the gradient is 2·(0 + 1/2)·x = x.
    module = line(0.0, 0.0)
    data = Tensors(torch.tensor([[3.0, 4.0]]), torch.tensor([-0.5]))
    for per_example in (False, True):
        found = score(REGRESSION, module, data, Importance(per_example=per_example), 8)
        assert found == pytest.approx(25.0)
    assert module.weight.tolist() == [[0.0, 0.0]]
    assert module.weight.grad is None


def data_of(rows: int, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    return Tensors(x, torch.randint(0, 3, (rows,), generator=generator))


CLASSES = App(model=lambda: nn.Linear(4, 3), classes=3)


def by_hand(module: nn.Module, data: Tensors, rows: list[list[int]]) -> float:
    found = []
    for batch in rows:
        module.zero_grad()
        nn.functional.cross_entropy(module(data.x[batch]), data.y[batch]).backward()  # type: ignore[no-untyped-call]
        found.append(
            sum(float(p.grad.double().square().sum()) for p in module.parameters() if p.grad is not None)
        )
    module.zero_grad()
    return sum(found) / len(found)


def test_the_score_is_the_mean_over_all_batches_or_over_all_examples() -> None:
    torch.manual_seed(0)
    module, data = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), data_of(10)
    whole = score(CLASSES, module, data, Importance(), 10)
    assert whole == pytest.approx(by_hand(module, data, [list(range(10))]))
    singles = score(CLASSES, module, data, Importance(per_example=True), 4)
    assert singles == pytest.approx(by_hand(module, data, [[i] for i in range(10)]))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1)).tolist()
    batches = score(CLASSES, module, data, Importance(), 4)  # 4, 4 and the partial one of 2
    assert batches == pytest.approx(by_hand(module, data, [order[:4], order[4:8], order[8:]]))
    assert whole is not None
    assert batches is not None
    assert singles is not None
    assert whole < batches < singles


def test_a_parameter_that_a_batch_does_not_use_adds_nothing() -> None:
    module, data = nn.Linear(4, 3), data_of(6)
    wanted = score(CLASSES, module, data, Importance(), 4)
    module.register_parameter("spare", nn.Parameter(torch.ones(2, 2)))
    assert score(CLASSES, module, data, Importance(), 4) == wanted


@pytest.mark.parametrize("tensors", [(), ("2.weight", "2.bias")], ids=["trained", "frozen"])
def test_a_parameter_with_two_names_is_measured_once(tensors: tuple[str, ...]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    module[1].weight = module[0].weight
    data = data_of(5)
    counted = [each for name, each in module.named_parameters() if not tensors or name in tensors]
    wanted = 0.0
    for x, y in zip(data.x, data.y, strict=True):
        loss = nn.functional.cross_entropy(module(x.unsqueeze(0)), y.unsqueeze(0))
        wanted += sum(float(g.double().square().sum()) for g in torch.autograd.grad(loss, counted)) / len(
            data
        )
    found = Gauge(module, Importance(per_example=True), tensors).score(CLASSES, data, 5, 1, never)
    assert found == pytest.approx(wanted)


def test_only_the_layers_named_and_the_tensors_trained_count() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    assert set(measured(module, Importance(layers=("2",)))) == {"2.weight", "2.bias"}
    assert set(measured(module, Importance(), ("0.weight",))) == {"0.weight"}
    assert set(measured(module, Importance(layers=("2",)), ("0.weight", "2.bias"))) == {"2.bias"}
    with pytest.raises(InvalidApp, match=r"sample\.layers: the app's model has no parameters in 'head'"):
        measured(module, Importance(layers=("head",)))
    data = data_of(6)
    part = score(CLASSES, module, data, Importance(layers=("2",)), 6)
    rest = score(CLASSES, module, data, Importance(layers=("0",)), 6)
    whole = score(CLASSES, module, data, Importance(), 6)
    assert part is not None
    assert rest is not None
    assert part + rest == pytest.approx(whole)


def test_measuring_changes_neither_weights_nor_running_statistics_and_can_be_withdrawn() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    data = data_of(9)
    torch.manual_seed(5)
    once = score(CLASSES, module, data, Importance(), 4)  # the last batch has one row
    torch.manual_seed(5)
    assert score(CLASSES, module, data, Importance(), 4) == once
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    with pytest.raises(Cancelled):
        score(CLASSES, module, data, Importance(), 4, lambda: True)
    with pytest.raises(InvalidApp, match="batch normalisation mixes the examples"):
        score(CLASSES, module, data, Importance(per_example=True), 4)
    assert score(CLASSES, module, data_of(0), Importance(), 4) is None


def test_online_is_the_mean_over_the_last_epoch_without_what_a_proximal_term_adds() -> None:
    torch.manual_seed(0)
    module, data = nn.Linear(4, 3), data_of(12)
    asked = work(epochs=3, batch_size=5)
    gauge = Gauge(module, Importance(online=True))
    seen: list[float] = []

    course = Course()

    def watch() -> None:
        assert gauge.watch is not None
        gauge.watch(course.epoch)
        if course.epoch == 3:
            seen.append(
                sum(float(p.grad.double().square().sum()) for p in module.parameters() if p.grad is not None)
            )

    def pull() -> None:
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(100.0)

    train(CLASSES, module, data, asked, 1, lambda *_: None, never, Hooks(course, pull, watch=watch))
    assert len(seen) == 3
    assert max(seen) < 1e4, "a gradient was seen with what the pull adds to it"
    assert gauge.score(CLASSES, data, 5, 1, never) == pytest.approx(sum(seen) / 3)


@pytest.mark.parametrize("online", [False, True])
def test_where_the_layers_that_count_are_frozen_there_is_no_score_rather_than_a_score_of_zero(
    online: bool,
) -> None:
    module, data = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), data_of(12)
    gauge = Gauge(module, Importance(layers=("2",), online=online), ("0.weight", "0.bias"))
    watch = gauge.watch
    train(
        CLASSES,
        module,
        data,
        work(),
        1,
        lambda *_: None,
        never,
        Hooks(watch=partial(watch, 1) if watch else None),
    )
    assert gauge.score(CLASSES, data, 4, 1, never) is None


def test_watching_does_not_change_training() -> None:
    made = []
    for watched in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(4, 3)
        watch = Gauge(module, Importance(online=watched)).watch
        assert (watch is not None) is watched
        hooks = Hooks(watch=partial(watch, 1) if watch else None)
        train(CLASSES, module, data_of(12), work(epochs=2, batch_size=5), 1, lambda *_: None, never, hooks)
        made.append(module.weight.detach().clone())
    assert torch.equal(*made)


def test_an_app_with_a_train_function_of_its_own_is_refused() -> None:
    app = replace(CLASSES, train=lambda arrays, _: arrays, evaluate=lambda *_: None)  # type: ignore[arg-type]
    asked = ByImportance().plugins[0]
    with pytest.raises(InvalidApp, match="sample importance: the app trains by a function of its own"):
        asked_of(app, work(plugins=(asked,)))
    with pytest.raises(InvalidApp, match="sample importance"):
        probe_of(app, Probe(model=ModelKey("j/v0"), batch_size=1, plugin=asked))
    asked_of(CLASSES, work(plugins=(asked,)))
