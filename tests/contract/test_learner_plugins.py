"""What every plugin of learners must do, whoever wrote it: those that take part in training, and sources of batches."""

import json
import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

import hansa.learner.plugins.selection  # noqa: F401 - registers the plugins
from hansa.common.app import App
from hansa.common.methods.adaptive import ADAPTIVE
from hansa.common.methods.proximal import PROXIMAL
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.registry import LEARNERS_POINTS
from hansa.common.torch.data import Tensors
from hansa.common.values.ids import ModelKey
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Train
from hansa.common.values.training import LocalPluginSpec, OptimizerSpec
from hansa.learner.plugins.contract import BatchSource, LocalPlugin
from tests.unit.learner import local_parts
from tests.unit.learner.local import run_of, trained_by

CLASSES: dict[str, type[plugins.Plugin]] = {"learner": LocalPlugin, "batches": BatchSource}
NEEDED: dict[str, dict[str, Any]] = {  # arguments without a default, which those of packages have none of
    ADAPTIVE: {"vc_loss": 0.0, "tombstones": 5, "epochs": 2},
    PROXIMAL: {"mu": 0.1},
}
ROWS = 23


def every(point: str) -> list[Any]:
    """Return a plugin of each kind at a point; some tests register odd ones of their own."""
    usual = {
        kind: cls
        for kind, cls in plugins.kinds(point).items()
        if not cls.__module__.startswith("tests.") or cls.__module__ == local_parts.__name__
    }
    return [
        pytest.param(cls.model_validate(NEEDED.get(kind, {})), id=kind) for kind, cls in sorted(usual.items())
    ]


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2))


def data() -> Tensors:
    generator = torch.Generator().manual_seed(1)
    return Tensors(
        torch.randn(ROWS, 3, generator=generator), torch.randint(0, 2, (ROWS,), generator=generator)
    )


APP = App(model=network, classes=2)


def work(plugin: plugins.Plugin | None = None, **more: Any) -> Train:
    """Return a task that names a plugin, after its way over the wire."""
    if plugin is not None:
        spec = LocalPluginSpec(name=plugin.kind, args=json.loads(plugin.model_dump_json()))
        more |= {"plugins": (spec,)} if isinstance(plugin, LocalPlugin) else {"source": spec}
    fields: dict[str, Any] = {"epochs": 3, "batch_size": 5, "optimizer": OptimizerSpec(lr=0.1, momentum=0.9)}
    return Train(model=ModelKey("j/v0"), version=0, **(fields | more))


def state(module: nn.Module) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("plugin", [*every("learner"), *every("batches")])
def test_a_plugin_is_a_frozen_value_that_explains_itself(plugin: plugins.Plugin) -> None:
    assert plugin.point in LEARNERS_POINTS
    assert isinstance(plugin, CLASSES[plugin.point])
    assert (type(plugin).__doc__ or "").strip()
    assert type(plugin).model_validate(json.loads(plugin.model_dump_json())) == plugin
    with pytest.raises(ValidationError):
        type(plugin).model_validate(NEEDED.get(plugin.kind, {}) | {"no_such_argument": 1})
    with pytest.raises(ValidationError):
        plugin.anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("plugin", [*every("learner"), *every("batches")])
def test_the_same_task_gives_the_same_update_and_the_same_memory(plugin: plugins.Plugin) -> None:
    made = []
    for disturbance in (1, 2):
        module = network()
        run = run_of(APP, module, data(), work(plugin), memory={"mine": [1]})
        torch.manual_seed(disturbance)  # what others have drawn must not count
        done, found = trained_by(run)
        made.append((state(module), done, repr(found), json.dumps(run.memory)))
        assert done.steps > 0
        assert run.memory["mine"] == [1], "others' notes are theirs"
    assert made[0] == made[1]


@pytest.mark.parametrize("plugin", every("learner"))
def test_to_begin_changes_nothing_and_what_is_found_can_be_told(plugin: LocalPlugin) -> None:
    module = network()
    run = run_of(APP, module, data(), work(plugin))
    before = state(module)
    held = plugin.begin(run)
    assert state(module) == before
    module.train()
    found = plugin.finish(held, run)
    assert state(module) == before, "to measure is not to train"
    told = UpdateFacts(n_train=1, n_used=1, steps=1, epochs=1, seconds=0, metrics=found)
    assert all(isinstance(value, float) for value in told.metrics.values())


@pytest.mark.parametrize("plugin", every("learner"))
def test_only_the_tensors_of_a_task_are_trained(plugin: LocalPlugin) -> None:
    module = network()
    before = state(module)
    module.get_submodule("0").requires_grad_(
        requires_grad=False
    )  # as the learner freezes what a task does not name
    trained_by(run_of(APP, module, data(), work(plugin, tensors=("4.weight", "4.bias"))))
    after = state(module)
    assert {name for name in before if before[name] == after[name]} >= {"0.weight", "0.bias"}
    assert before["4.weight"] != after["4.weight"]


@pytest.mark.parametrize("source", every("batches"))
def test_a_source_yields_rows_of_the_sites_data_by_the_chance_it_is_given(source: BatchSource) -> None:
    run = run_of(APP, network(), data(), work(source))
    orders = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        epochs = [[torch.as_tensor(rows) for rows in source.epoch(run, generator)] for _ in range(2)]
        assert all(
            len(rows) and int(rows.min()) >= 0 and int(rows.max()) < ROWS for e in epochs for rows in e
        )
        orders.append([[rows.tolist() for rows in epoch] for epoch in epochs])
    assert orders[0] == orders[1]


def test_a_task_that_names_the_usual_source_is_trained_as_one_that_names_none() -> None:
    plain, named = network(), network()
    done, _ = trained_by(run_of(APP, plain, data(), work()))
    again, _ = trained_by(run_of(APP, named, data(), work(plugins.kinds("batches")["shuffled"]())))
    assert state(plain) == state(named)
    assert done == again
    assert math.isfinite(done.loss)
