"""Optimizers of learners, and those that go on from task to task (`train.keep_optimizer`)."""

import logging
from typing import Literal

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from hansa.common.app import App
from hansa.common.torch.data import Tensors
from hansa.common.values.errors import InvalidApp
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.plugins.selection import asked_of
from hansa.learner.training.loop import train
from hansa.learner.training.memory import Memory
from hansa.learner.training.optimizers import States, make_optimizer, states_after, take_up
from tests.unit.engine.play import Play

KINDS = [
    OptimizerSpec(kind="sgd", lr=0.1, momentum=0.9),
    OptimizerSpec(kind="sgd", lr=0.1),
    OptimizerSpec(kind="adam", lr=0.1),
    OptimizerSpec(kind="adamw", lr=0.1, weight_decay=0.1),
    OptimizerSpec(kind="adam", lr=0.1, amsgrad=True),
]


def task(number: int, round_: int, spec: OptimizerSpec) -> Task:
    work = Train(model="j/v0", version=0, epochs=1, batch_size=4, optimizer=spec, keep_optimizer=True)
    return Task(
        id=TaskId(f"j-{number}"),
        job=JobId("j"),
        site=SiteName("a"),
        round=round_,
        app="app.py:app",
        seed=1,
        validation=ValidationSpec(),
        work=work,
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def fit(module: nn.Module, asked: Task, optimizer: torch.optim.Optimizer) -> None:
    assert isinstance(asked.work, Train)
    generator = torch.Generator().manual_seed(3)
    data = Tensors(torch.randn(10, 3, generator=generator), torch.randint(0, 2, (10,), generator=generator))
    app = App(model=network, classes=2)
    train(app, module, data, asked.work, asked.round, lambda *_: None, lambda: False, optimizer=optimizer)


class OptimizerMemory(Memory[States]):
    """Starts from nothing."""

    def __init__(self) -> None:
        super().__init__({}, {})


def remembered(memory: OptimizerMemory, module: nn.Module, asked: Task) -> None:
    """Do a task as a learner does."""
    assert isinstance(asked.work, Train)
    optimizer = make_optimizer(asked.work.optimizer, module)
    states = memory.recall(asked.id)
    take_up(states, asked, optimizer, module)
    fit(module, asked, optimizer)
    memory.after = states_after(states, optimizer, module)


def values(module: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in module.state_dict().values()]


def alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: f"{spec.kind}-{spec.momentum}")
def test_tasks_go_on_as_if_they_were_one_bit_for_bit(spec: OptimizerSpec) -> None:
    tasks = [task(number, number, spec) for number in range(1, 4)]
    once, often, anew = network(), network(), network()
    whole = make_optimizer(spec, once)
    memory = OptimizerMemory()
    for asked in tasks:
        fit(once, asked, whole)
        remembered(memory, often, asked)
        fit(anew, asked, make_optimizer(spec, anew))
    assert alike(values(often), values(once))
    assert alike(values(anew), values(once)) == (spec.kind == "sgd" and not spec.momentum), (
        "a new one forgets"
    )


@pytest.mark.parametrize("spec", KINDS[:1] + KINDS[2:3], ids=["sgd", "adam"])
def test_a_task_that_is_done_again_gives_the_same_update(spec: OptimizerSpec) -> None:
    memory, module = OptimizerMemory(), network()
    remembered(memory, module, task(1, 1, spec))
    start = {name: value.clone() for name, value in module.state_dict().items()}
    remembered(memory, module, task(2, 2, spec))
    first = values(module)
    module.load_state_dict(start)
    remembered(memory, module, task(2, 2, spec))
    assert alike(values(module), first)
    other = OptimizerMemory()
    module.load_state_dict(start)
    remembered(other, module, task(3, 3, spec))
    assert not alike(values(module), first)


def test_what_a_task_does_not_train_keeps_its_state() -> None:
    memory, module, spec = OptimizerMemory(), network(), KINDS[0]
    remembered(memory, module, task(1, 1, spec))
    held = memory.after["0.weight"]["momentum_buffer"].clone()
    first = module.get_parameter("0.weight")
    first.requires_grad_(False)
    remembered(memory, module, task(2, 2, spec))
    assert torch.equal(memory.after["0.weight"]["momentum_buffer"], held)
    assert memory.after.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_missing_state_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    memory, module, spec = OptimizerMemory(), network(), KINDS[0]
    with caplog.at_level(logging.WARNING):
        remembered(memory, module, task(1, 1, spec))
        remembered(memory, module, task(2, 2, spec))
        assert not caplog.records, "a first round starts from nothing, and the second from the first"
        remembered(OptimizerMemory(), module, task(3, 3, spec))
    assert "task j-3: there is no optimizer state" in caplog.text
    assert "or the learner was restarted" in caplog.text


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_amsgrad_is_torchs_and_belongs_to_adam(kind: Literal["adam", "adamw"]) -> None:
    made = {amsgrad: network() for amsgrad in (False, True)}
    for amsgrad, module in made.items():
        optimizer = make_optimizer(OptimizerSpec(kind=kind, lr=0.1, amsgrad=amsgrad), module)
        assert optimizer.defaults["amsgrad"] is amsgrad
        fit(module, task(1, 1, OptimizerSpec(kind=kind, lr=0.1, amsgrad=amsgrad)), optimizer)
    with pytest.raises(ValidationError, match="amsgrad belongs to adam and adamw"):
        OptimizerSpec(kind="sgd", amsgrad=True)


def test_an_app_that_trains_by_itself_cannot_keep_what_it_does_not_have() -> None:
    app = App(model=network, classes=2, train=print, evaluate=print)  # type: ignore[arg-type]
    work = task(1, 1, KINDS[0]).work
    assert isinstance(work, Train)
    with pytest.raises(InvalidApp, match=r"train\.keep_optimizer: the app trains by a function of its own"):
        asked_of(app, work)


@pytest.mark.parametrize("kept", [False, True])
def test_tasks_say_whether_the_optimizer_goes_on(kept: bool) -> None:
    tasks = Play(train={"keep_optimizer": kept}).training("a", "b")
    assert [t.work.keep_optimizer for t in tasks.values() if isinstance(t.work, Train)] == [kept, kept]
