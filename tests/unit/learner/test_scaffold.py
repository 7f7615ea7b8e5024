"""SCAFFOLD at a site: corrected steps, what goes up, and which control variate counts (scaffold §1, §2)."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.methods.scaffold import CONTROL, LOST, SCAFFOLD
from hansa.common.torch.data import Tensors
from hansa.common.torch.model import read, spec_of
from hansa.common.values.errors import InvalidApp, Refused
from hansa.common.values.ids import TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import AuxiliarySpec, LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.learner.memory.states import Recollection, State
from hansa.learner.plugins.contract import LocalRun, Returned
from hansa.learner.plugins.selection import asked_of
from hansa.learner.plugins.testing import returned_by, run_of, work

RATE = 0.125
ROWS = Tensors(torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]]), torch.tensor([[1.0], [0.0], [2.0]]))
Arrays = dict[str, np.ndarray]


def linear(dtype: torch.dtype = torch.float32) -> nn.Module:
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.5, -0.25]]))
        module.bias.fill_(0.125)
    return module.to(dtype)


APP = App(model=linear, task="regression")
CONTROLS: Arrays = {"weight": np.array([[0.5, 0.25]], np.float32), "bias": np.array([-1.0], np.float32)}
ZEROS: Arrays = {name: np.zeros_like(array) for name, array in CONTROLS.items()}


def asked(merged: str = "", plugins: bool = True, **more: Any) -> Train:
    named = LocalPluginSpec(name=SCAFFOLD, args={"merged": merged})
    fields: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 8,
        "optimizer": OptimizerSpec(lr=RATE),
        "plugins": (named,) if plugins else (),
        "auxiliary": (AuxiliarySpec(name=CONTROL),),
    }
    return work(**(fields | more))


def do(
    task: str, merged: str, control: Arrays, state: State, module: nn.Module | None = None, **more: Any
) -> tuple[LocalRun, Returned]:
    """Do a task of a site; `state` is what it remembers, and is changed."""
    run = run_of(
        APP,
        module or linear(),
        ROWS,
        asked(merged, **more),
        auxiliary={CONTROL: control},
        recollection=Recollection(lambda: state),
    )
    run.task = run.task.model_copy(update={"id": TaskId(task)})
    _, update = returned_by(run)
    return run, update


def descend(start: Arrays, correction: Arrays, steps: int = 3) -> Arrays:
    """Make steps of gradient descent on the mean squared error, in numpy."""
    x, y = ROWS.x.numpy().astype(np.float64), ROWS.y.numpy().astype(np.float64)
    weight, bias = (start[name].astype(np.float64) for name in ("weight", "bias"))
    for _ in range(steps):
        apart = x @ weight.T + bias - y
        weight = weight - RATE * (2 * apart.T @ x / len(x) + correction["weight"])
        bias = bias - RATE * (2 * apart.mean(axis=0) + correction["bias"])
    return {"weight": weight, "bias": bias}


def start() -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in linear().state_dict().items()}


def close(arrays: Arrays, wanted: Arrays, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(arrays[name], array, rtol=rtol, atol=atol)


def kept(state: State, place: str) -> Arrays:
    return {name: state.arrays[f"scaffold/{place}/{name}"] for name in ("weight", "bias")}


def test_every_step_is_corrected_and_the_change_of_the_control_variate_goes_up() -> None:
    state = State()
    _, first = do("t1", "", ZEROS, state)
    own = {name: (start()[name] - y) / (3 * RATE) for name, y in descend(start(), ZEROS).items()}
    close(first.auxiliary[CONTROL], own)
    close(kept(state, "last"), own)
    _, second = do("t2", "t1", CONTROLS, state)
    mine = kept(state, "merged")
    close(mine, own)
    trained = descend(start(), {name: CONTROLS[name] - mine[name] for name in mine})
    close(second.tensors, trained)
    change = {name: (start()[name] - y) / (3 * RATE) - CONTROLS[name] for name, y in trained.items()}
    close(second.auxiliary[CONTROL], change)
    close(kept(state, "last"), {name: mine[name] + change[name] for name in mine})
    assert state.memory[SCAFFOLD] == {"merged": "t1", "last": "t2"}
    assert LOST not in second.metrics
    assert all(array.dtype == np.float32 for array in second.auxiliary[CONTROL].values())


def test_without_control_variates_training_is_plain_training_bit_for_bit() -> None:
    module, plain = linear(), linear()
    do("t1", "", ZEROS, State(), module)
    returned_by(run_of(APP, plain, ROWS, asked(plugins=False, auxiliary=())))
    assert read(module, spec_of(module)).tobytes() == read(plain, spec_of(plain)).tobytes()


def test_an_update_that_was_not_merged_leaves_the_control_variate_as_it_was() -> None:
    state = State()
    do("t1", "", ZEROS, state)
    do("t2", "t1", CONTROLS, state)
    merged = kept(state, "merged")
    _, one = do("t3", "t1", CONTROLS, state)  # t2 has a receipt, but no merge took it
    close(kept(state, "merged"), merged, rtol=0, atol=0)
    _, two = do("t3", "t1", CONTROLS, state)
    assert one.auxiliary[CONTROL]["weight"].tobytes() == two.auxiliary[CONTROL]["weight"].tobytes()
    assert state.memory[SCAFFOLD] == {"merged": "t1", "last": "t3"}


def test_in_a_new_epoch_a_site_starts_from_zero_and_forgets_the_old_one() -> None:
    state = State()
    do("t1", "", ZEROS, state)
    do("t2", "t1", CONTROLS, state)
    _, update = do("t3", "", ZEROS, state)
    assert not any(name.startswith("scaffold/merged/") for name in state.arrays)
    close(kept(state, "last"), update.auxiliary[CONTROL], rtol=0, atol=0)
    assert LOST not in update.metrics


@pytest.mark.parametrize("what", ["everything", "an array", "the note"])
def test_a_site_that_has_lost_its_control_variate_says_so_and_starts_from_zero(what: str) -> None:
    state = State()
    do("t1", "", ZEROS, state)
    if what == "everything":
        state = State(lost=True)
    elif what == "an array":
        del state.arrays["scaffold/last/bias"]
    else:
        state.memory[SCAFFOLD] = "nonsense"
    _, update = do("t2", "t1", CONTROLS, state)
    assert update.metrics[LOST] == 1.0
    close(update.tensors, descend(start(), CONTROLS))
    assert state.memory[SCAFFOLD] == {"merged": "", "last": "t2"}


def test_without_a_step_nothing_changes() -> None:
    state = State()
    do("t1", "", ZEROS, state)
    run = run_of(
        APP,
        linear(),
        ROWS,
        asked("t1"),
        auxiliary={CONTROL: CONTROLS},
        recollection=Recollection(lambda: state),
    )
    (plugin,), _ = asked_of(APP, run.work)
    update = Returned(start())
    before = kept(state, "last")
    plugin.amend(plugin.begin(run), run, update)
    assert not any(array.any() for array in update.auxiliary[CONTROL].values())
    close(kept(state, "last"), before, rtol=0, atol=0)


def test_parameters_without_a_gradient_are_corrected_too() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle, self.frozen = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)
            self.frozen.requires_grad_(requires_grad=False)
            self.table = nn.Embedding(4, 1, sparse=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x) + self.table(torch.zeros(len(x), dtype=torch.long))  # type: ignore[no-any-return]

    module = Half()
    before = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
    control = {name: np.full_like(array, 0.5) for name, array in before.items()}
    _, update = do("t1", "", control, State(), module, epochs=1)
    moved = {name: update.tensors[name] - before[name] for name in before}
    np.testing.assert_allclose(moved["idle.weight"], -0.5 * RATE, rtol=1e-5)
    np.testing.assert_allclose(moved["table.weight"][1:], -0.5 * RATE, rtol=1e-5)
    assert not moved["frozen.weight"].any()
    np.testing.assert_allclose(update.auxiliary[CONTROL]["idle.weight"], 0, atol=1e-6)
    np.testing.assert_allclose(update.auxiliary[CONTROL]["frozen.weight"], -0.5)


def test_a_parameter_may_be_a_single_number() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.temperature = linear(), nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.temperature  # type: ignore[no-any-return]

    control = {n: np.full(t.shape, 0.5, np.float32) for n, t in Scaled().state_dict().items()}
    state = State()
    do("t1", "", {name: np.zeros_like(array) for name, array in control.items()}, state, Scaled())
    _, update = do("t2", "t1", control, state, Scaled())
    state.require_arrays()
    assert LOST not in update.metrics
    own = state.arrays["scaffold/merged/temperature"] + update.auxiliary[CONTROL]["temperature"]
    assert state.arrays["scaffold/last/temperature"] == own


def test_parameters_of_another_precision_have_control_variates_in_float32() -> None:
    data = Tensors(ROWS.x.double(), ROWS.y.double())
    run = run_of(APP, linear(torch.float64), data, asked(), auxiliary={CONTROL: CONTROLS})
    _, update = returned_by(run)
    close(update.tensors, descend(start(), CONTROLS), rtol=1e-12, atol=1e-12)
    assert {array.dtype.name for array in update.auxiliary[CONTROL].values()} == {"float32"}
    assert {array.dtype.name for array in run.arrays.values()} == {"float32"}


def test_a_task_of_some_tensors_returns_the_changes_of_these_alone() -> None:
    _, update = do("t1", "", CONTROLS, State(), tensors=("weight",))
    assert list(update.tensors) == list(update.auxiliary[CONTROL]) == ["weight"]


def test_an_app_that_trains_by_itself_cannot_take_part() -> None:
    own = App(model=dict, task="regression", train=lambda arrays, _: arrays, evaluate=lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidApp, match="whose steps cannot be corrected"):
        asked_of(own, asked())


def test_a_rule_that_does_not_send_c_is_refused() -> None:
    with pytest.raises(Refused, match="works with auxiliary tensors control, which the rule"):
        asked_of(APP, asked(auxiliary=()))
