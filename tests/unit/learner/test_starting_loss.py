"""The loss before training: what is measured, that measuring changes nothing, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.methods.starting_loss import STARTING_LOSS
from hansa.common.torch.data import Tensors
from hansa.common.values.errors import InvalidApp, PluginFailed, Refused
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.training import LocalPluginSpec, ValidationSpec
from hansa.common.values.tasks import Probe, Task, Train
from hansa.learner.plugins.contract import LocalPlugin, ProbeRun
from hansa.learner.plugins.selection import probe_of, probed_by
from hansa.learner.plugins.starting_loss import mean_loss
from hansa.learner.plugins.testing import APP, data, network, run_of, state, trained_by, work
from hansa.learner.training.slow import Cancelled
from tests.unit.learner.test_partial_tasks import TORCH, do, trainer_of


def never() -> bool:
    return False


def asked(least: float | None = None) -> tuple[LocalPluginSpec, ...]:
    return (LocalPluginSpec(name=STARTING_LOSS, args={"least": least}),)


def probe(app: App, module: nn.Module, plugin: LocalPlugin[Any], rows: Tensors) -> float:
    work = Probe(model=ModelKey("j/v0"), batch_size=5, plugin=LocalPluginSpec(name=plugin.kind))
    place: dict[str, Any] = {"job": JobId("j"), "site": SiteName("a"), "round": 1, "app": "app.py:app"}
    task = Task(id=TaskId("j-1"), seed=7, validation=ValidationSpec(), work=work, **place)
    module.train()
    run = ProbeRun(app=app, task=task, batch_size=5, seed=7, model=module, examples=rows, cancelled=never)
    return probed_by(plugin, run)


def test_it_is_the_mean_over_all_examples_in_evaluation_mode() -> None:
    module, rows = network(), data()
    module.eval()
    with torch.no_grad():
        wanted = float(nn.functional.cross_entropy(module(rows.x), rows.y))
    assert mean_loss(APP, module, rows, never) == pytest.approx(wanted, rel=1e-6)


def test_a_task_reports_the_loss_of_the_model_it_started_from_and_trains_as_without() -> None:
    plain, watched = network(), network()
    before = mean_loss(APP, network(), data(), never)
    trained_by(run_of(APP, plain, data(), work()))
    _, metrics = trained_by(run_of(APP, watched, data(), work(plugins=asked())))
    assert metrics == {STARTING_LOSS: before}
    assert state(plain) == state(watched)
    assert mean_loss(APP, watched, data(), never) < before


def test_a_probe_reports_the_loss_and_leaves_the_model_as_it_is() -> None:
    module = network()
    before = state(module)
    plugin = probe_of(APP, Probe(model=ModelKey("j/v0"), batch_size=5, plugin=asked()[0]))
    assert probe(APP, module, plugin, data()) == mean_loss(APP, network(), data(), never)
    assert state(module) == before
    nothing = Tensors(data().x[:0], data().y[:0])
    assert math.isnan(probe(APP, module, plugin, nothing))


def test_a_loss_below_what_the_rule_can_work_with_is_refused() -> None:
    negative = App(model=network, classes=2, loss=lambda outputs, _: outputs.sum() * 0 - 0.5)
    with pytest.raises(InvalidApp, match=r"is -0\.5; the rule needs one that is never below 0"):
        trained_by(run_of(negative, network(), data(), work(plugins=asked(least=0.0))))
    _, metrics = trained_by(run_of(negative, network(), data(), work(plugins=asked())))
    assert metrics[STARTING_LOSS] == pytest.approx(-0.5)


def test_a_withdrawn_task_stops_measuring() -> None:
    with pytest.raises(Cancelled):
        mean_loss(APP, network(), data(), lambda: True)


def test_an_app_that_trains_by_itself_is_refused() -> None:
    own = replace(APP, train=lambda arrays, _: arrays, evaluate=lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidApp, match="the rule must know the loss before training"):
        probe_of(own, Probe(model=ModelKey("j/v0"), batch_size=5, plugin=asked()[0]))


def test_a_plugin_that_only_takes_part_in_training_cannot_probe() -> None:
    proximal = LocalPluginSpec(name="proximal", args={"mu": 0.1})
    with pytest.raises(Refused, match="'proximal' takes part in training, but a probe does not train"):
        probe_of(APP, Probe(model=ModelKey("j/v0"), batch_size=5, plugin=proximal))


class Wordy(LocalPlugin):
    """Returns no number."""

    kind = "wordy"
    point = "learner"

    def probe(self, run: ProbeRun) -> float:
        """Return a word."""
        return "large"  # type: ignore[return-value]


def test_a_probe_that_finds_no_number_is_blamed_on_its_plugin() -> None:
    with pytest.raises(PluginFailed, match="its probe returned 'large', which is not a number"):
        probe(APP, network(), Wordy(), data())


def test_a_probe_uses_the_statistics_that_stay_at_the_site(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, TORCH)
    task, start, (manifest, _, _) = do(trainer, ())
    app = trainer.shelf.get(task.app).app
    assert isinstance(task.work, Train)
    mine = task.model_copy(update={"id": TaskId("j-2"), "local_statistics": True})
    trainer.train(app, mine, task.work, manifest, start, Event(), lambda _: None)
    own = {name: each.clone() for name, each in trainer.jobs.network(app, mine).named_buffers()}
    work = Probe(model=ModelKey("j/v1"), batch_size=5, plugin=asked()[0])
    probing = mine.model_copy(update={"id": TaskId("j-3"), "work": work})
    found = trainer.probe(app, probing, work, start, Event())
    network = trainer.jobs.network(app, mine)
    assert all(torch.equal(own[name], each) for name, each in network.named_buffers())
    shared = probing.model_copy(update={"local_statistics": False})
    assert trainer.probe(app, shared, work, start, Event()) != found
