"""Statistics that stay at the sites (`layers: {kind: parameters}`)."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.torch.data import Tensors
from hansa.common.torch.statistics import BATCH, estimate_statistics, put_statistics, statistics_of
from hansa.common.values.errors import InvalidData, InvalidJob
from hansa.common.values.ids import ModelKey, SiteName
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.tasks import Train
from hansa.controller.layers.parameters import ParametersOnly
from hansa.controller.plugin.outline import outline_of
from hansa.controller.plugin.samples import view
from hansa.controller.rulebook.compose import compose
from tests.unit.engine.play import job_spec


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def data(rows: int) -> Tensors:
    x = 5 + 2 * torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    return Tensors(x, torch.zeros(rows, dtype=torch.int64))


def norm_of(module: nn.Module) -> nn.BatchNorm1d:
    found = module.get_submodule("1")
    assert isinstance(found, nn.BatchNorm1d)
    return found


def test_estimated_statistics_are_those_of_the_data_whatever_the_model_came_with() -> None:
    module, held = network(), data(BATCH)
    norm = norm_of(module)
    norm.running_mean.fill_(1e6)  # type: ignore[union-attr]
    before = [parameter.clone() for parameter in module.parameters()]
    module.train()
    estimate_statistics(module, held)
    with torch.no_grad():
        reached = module.get_submodule("0")(held.x)
    torch.testing.assert_close(norm.running_mean, reached.mean(dim=0))
    torch.testing.assert_close(norm.running_var, reached.var(dim=0))
    assert norm.momentum == 0.1
    assert not any(part.training for part in module.modules())
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    once = statistics_of(module)
    estimate_statistics(module, held)
    assert all(torch.equal(once[name], buffer) for name, buffer in module.named_buffers())


def test_estimated_statistics_do_not_depend_on_the_order_of_the_data() -> None:
    """Data often come class by class, and then a batch holds one class."""
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1))
    x = torch.arange(3 * BATCH, dtype=torch.float32).floor_divide(BATCH)[:, None]
    estimate_statistics(module, Tensors(x, torch.zeros(len(x))))
    torch.testing.assert_close(norm_of(module).running_mean, x.mean(dim=0))
    torch.testing.assert_close(norm_of(module).running_var, x.var(dim=0), rtol=0.02, atol=0)


def test_no_example_is_left_out_and_one_is_not_enough() -> None:
    module = network()
    estimate_statistics(module, data(BATCH + 1))
    assert norm_of(module).num_batches_tracked == 2
    estimate_statistics(module, data(2))
    with pytest.raises(InvalidData, match="too few training examples"):
        estimate_statistics(module, data(1))
    estimate_statistics(nn.Linear(3, 2), data(0))  # there is nothing to estimate


def test_a_sites_own_statistics_come_back_as_they_were() -> None:
    module = network()
    estimate_statistics(module, data(50))
    held = statistics_of(module)
    norm_of(module).reset_running_stats()
    put_statistics(module, held)
    assert all(torch.equal(held[name], buffer) for name, buffer in module.named_buffers())
    put_statistics(module, {})  # a site without statistics keeps the model's


def test_tasks_name_the_parameters_and_say_that_statistics_stay() -> None:
    roles = {"a.weight": Role.PARAM, "b.running_var": Role.STAT, "b.num": Role.COUNT, "c.bias": Role.PARAM}
    kinds = {Role.COUNT: "int64"}
    spec = ModelSpec(
        tuple(TensorInfo(name, kinds.get(role, "float32"), (2,), role) for name, role in roles.items())
    )
    work = Train(model=ModelKey("m"), version=0, epochs=1, batch_size=1, optimizer=OptimizerSpec())
    policy = ParametersOnly()
    for model, wanted in ((spec, ("a.weight", "c.bias")), (spec.subset(["a.weight"]), ())):
        shaped = policy.shape(policy.begin(), SiteName("a"), work, replace(view(), outline=outline_of(model)))
        assert shaped.tensors == wanted
    assert compose(job_spec(layers={"kind": "parameters"})).local_statistics
    assert not compose(job_spec()).local_statistics


def test_statistics_that_stay_cannot_be_pooled() -> None:
    with pytest.raises(InvalidJob, match=r"merge\.bn: pooled does not go with layers parameters"):
        compose(job_spec(layers={"kind": "parameters"}, merge={"bn": "pooled"}))
