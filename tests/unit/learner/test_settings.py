"""Settings of training: schedules, clipping, accumulation, precision and time, and PyTorch's optimizers."""

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from hansa.common.app import App
from hansa.common.torch.data import Tensors
from hansa.common.torch.devices import computing_in, require_device, supports_bf16
from hansa.common.values.errors import InvalidApp, InvalidInput, Refused, Unequipped
from hansa.common.values.settings.optimizers import FIELDS, OptimizerSpec, ScheduleSpec
from hansa.common.values.tasks import Train
from hansa.learner.training.loop import Hooks, train
from hansa.learner.training.optimizers import CLASSES, make_optimizer
from tests.unit.learner.test_learning_tasks import do
from tests.unit.learner.test_partial_tasks import OWN, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")
SGD = OptimizerSpec(lr=0.1)
COSINE = ScheduleSpec(kind="cosine", by="step")


class Slope(nn.Module):
    """A model whose gradient is its input: it moves by the learning rate times the mean input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


APP = App(model=Slope, task="regression", loss=lambda outputs, _: outputs.mean())


def work_of(**more: Any) -> Train:
    fields = {"epochs": 1, "batch_size": 1, "optimizer": SGD} | more
    return Train(model="j/v0", version=0, **fields)


def moved(rows: int, hooks: Hooks | None = None, value: float = 1.0, **more: Any) -> tuple[float, int]:
    """Train on rows that are all the same; return how far the first weight has moved, and the steps."""
    module = Slope()
    data = Tensors(torch.full((rows, 2), value, dtype=torch.float64), torch.zeros(rows))
    work = work_of(**more)
    done = train(APP, module, data, work, 1, lambda *_: None, lambda: False, hooks or Hooks())
    return -float(module.w.detach()[0]), done.steps


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (ScheduleSpec(), [1, 1, 1, 1]),
        (ScheduleSpec(kind="step", by="step", every=2, factor=0.5), [1, 1, 0.5, 0.5]),
        (ScheduleSpec(kind="exponential", by="step", factor=0.5), [1, 0.5, 0.25, 0.125]),
        (COSINE, [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]),
        (COSINE.model_copy(update={"over": 2, "least": 0.1}), [1, 0.55, 0.1, 0.1]),
    ],
)
def test_a_schedule_multiplies_the_rate_of_each_step(schedule: ScheduleSpec, factors: list[float]) -> None:
    for rows, epochs in ((4, 1), (2, 2)):
        assert moved(rows, epochs=epochs, schedule=schedule)[0] == pytest.approx(
            0.1 * sum(factors), abs=1e-12
        )


def test_a_schedule_that_ends_before_its_task_is_refused() -> None:
    with pytest.raises(Refused, match="it ends after 3 steps, but this task has 4 at this site"):
        moved(4, schedule=COSINE.model_copy(update={"over": 3}))
    composed = Hooks(batches=lambda _: [torch.tensor([0])])
    with pytest.raises(Refused, match="nobody knows how many steps this task has; give over"):
        moved(4, composed, schedule=COSINE)


def test_gradients_are_clipped_by_their_norm() -> None:
    assert moved(1, value=3.0)[0] == pytest.approx(0.3)
    assert moved(1, value=3.0, clip=1)[0] == pytest.approx(0.1 / math.sqrt(2), rel=1e-6)
    assert moved(1, value=0.1, clip=1)[0] == pytest.approx(0.01)


@pytest.mark.parametrize(("rows", "steps"), [(8, 2), (9, 3), (3, 1)])
def test_accumulated_batches_are_one_large_batch(rows: int, steps: int) -> None:
    seen: list[float] = []
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    data = Tensors(x, torch.randint(0, 2, (rows,), generator=generator))
    app = App(model=lambda: nn.Linear(3, 2), classes=2)
    weights = []
    for more in ({"batch_size": 4}, {"batch_size": 2, "accumulate": 2}):
        torch.manual_seed(0)
        module = app.model()
        hooks = Hooks(watch=lambda module=module: seen.append(float(module.weight.grad.norm())))  # type: ignore[misc]
        done = train(app, module, data, work_of(**more), 1, lambda *_: None, lambda: False, hooks)
        assert done.steps == steps
        assert done.n_used == rows
        weights.append(module.weight.detach())
    assert torch.allclose(weights[0], weights[1], atol=1e-7)
    assert seen[:steps] == pytest.approx(seen[steps:], rel=1e-5), "plugins see the gradients of steps"


def test_a_task_ends_when_its_time_is_over_but_not_without_a_step() -> None:
    assert moved(1000, epochs=1000, max_seconds=1e-9)[1] == 1


def test_bf16_computes_in_bfloat16_and_keeps_the_weights() -> None:
    kinds = set()
    app = App(model=list, classes=2, loss=lambda out, y: kinds.add(out.dtype) or _loss(out, y))  # type: ignore[func-returns-value]
    module = nn.Linear(3, 2)
    data = Tensors(torch.randn(8, 3), torch.zeros(8, dtype=torch.int64))
    if not supports_bf16("cpu"):
        pytest.skip("this machine does not compute in bfloat16")
    train(app, module, data, work_of(precision="bf16"), 1, lambda *_: None, lambda: False)
    assert kinds == {torch.bfloat16}
    assert module.weight.dtype is torch.float32


def _loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.float(), targets)


def test_a_device_without_bf16_or_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    with pytest.raises(Unequipped, match="this site trains on cuda:0, which cannot compute in bfloat16"):
        computing_in("bf16", "cuda:0")
    with pytest.raises(InvalidInput, match="--device abacus:"):
        require_device("abacus")


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_optimizers_are_pytorchs_with_their_own_fields(kind: str) -> None:
    known = inspect.signature(CLASSES[kind]).parameters
    assert set(FIELDS[kind]) <= known.keys()
    module = nn.Linear(2, 1)
    ours = make_optimizer(OptimizerSpec.model_validate({"kind": kind, "lr": 0.5}), module)
    theirs = CLASSES[kind](module.parameters(), lr=0.5)  # type: ignore[call-arg]
    decay = {"weight_decay": 0.0}  # ours, where PyTorch has a decay for some kinds
    assert ours.defaults | decay == theirs.defaults | decay


def test_fields_of_optimizers_reach_pytorch_and_those_of_others_are_refused() -> None:
    spec = OptimizerSpec.model_validate({"kind": "RMSprop", "alpha": 0.5, "centered": True, "momentum": 0.9})
    group = make_optimizer(spec, nn.Linear(2, 1)).param_groups[0]
    assert (group["alpha"], group["centered"], group["momentum"], group["eps"]) == (0.5, True, 0.9, 1e-8)
    for wrong, message in (
        ({"kind": "adam", "rho": 0.5}, "rho belongs to adadelta; adam has no such thing"),
        ({"kind": "rprop", "weight_decay": 0.5}, "weight_decay belongs to sgd and adam"),
        ({"nesterov": True}, "nesterov needs momentum"),
        ({"kind": "LBFGS"}, "lbfgs cannot be used: it evaluates a batch several times"),
    ):
        with pytest.raises(ValidationError, match=message):
            OptimizerSpec.model_validate(wrong)


@pytest.mark.parametrize(
    "more",
    [{"clip": 1.0}, {"accumulate": 2}, {"precision": "bf16"}, {"max_seconds": 9.0}, {"schedule": COSINE}],
)
def test_an_app_with_steps_of_its_own_cannot_be_told_how_to_make_them(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    with pytest.raises(
        InvalidApp, match=rf"train\.{next(iter(more))}: the app trains by a function of its own"
    ):
        do(trainer_of(tmp_path, OWN), **more)


def test_settings_do_not_change_a_task_that_does_not_have_them(tmp_path: Path) -> None:
    text = (
        "from torch import nn\nfrom hansa import App\napp = App(model=lambda: nn.Linear(3, 2), classes=2)\n"
    )
    plain, _ = do(trainer_of(tmp_path, text))
    clipped, _ = do(trainer_of(tmp_path, text), clip=1e9)
    assert np.array_equal(plain, clipped)
