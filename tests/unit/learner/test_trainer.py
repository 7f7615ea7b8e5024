"""The training loop: the optimizer's arithmetic, seeds, counts and cancellation (baselines §8.11)."""

import math
from threading import Event

import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.torch.data import Tensors
from hansa.common.torch.metrics import measure
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.tasks import Train
from hansa.learner.plugins.contract import Course
from hansa.learner.training.batches import shuffled
from hansa.learner.training.loop import Hooks, Trained, train
from hansa.learner.training.optimizers import make_optimizer
from hansa.learner.training.slow import Cancelled, Drag

SGD = OptimizerSpec(kind="sgd", lr=0.1)
pytestmark = pytest.mark.usefixtures("one_thread")


def _work(epochs: int = 1, batch_size: int = 4, optimizer: OptimizerSpec = SGD) -> Train:
    return Train(model="j/v0", version=0, epochs=epochs, batch_size=batch_size, optimizer=optimizer)


def _never() -> bool:
    return False


def _ignore(epoch: int, steps: int, loss: float) -> None:
    pass


def _data(rows: int, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return Tensors(x, torch.randint(0, 2, (rows,), generator=generator))


def _network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.3), nn.ReLU(), nn.Linear(5, 2))


CLASSIFY = App(model=_network, classes=2)


class _Slope(nn.Module):
    """A model whose gradient is the same everywhere: its output is w·x and its loss is the output."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


def _output(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


def _constant_gradient(optimizer: OptimizerSpec, steps: int) -> tuple[list[float], list[float], list[float]]:
    """Train with gradient g in every step; return w0, g and w."""
    app = App(model=_Slope, task="regression", loss=_output)
    module = _Slope()
    before = module.w.detach().tolist()
    g = torch.tensor([0.25, -4.0], dtype=torch.float64)
    data = Tensors(g.repeat(steps, 1), torch.zeros(steps))
    train(app, module, data, _work(batch_size=1, optimizer=optimizer), 1, _ignore, _never)
    return before, g.tolist(), module.w.detach().tolist()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("lr", [0.125, 0.05])
def test_two_steps_with_a_constant_gradient_move_by_lr_times_two_plus_momentum(
    momentum: float, lr: float
) -> None:
    w0, g, w = _constant_gradient(OptimizerSpec(kind="sgd", lr=lr, momentum=momentum), 2)
    assert w == pytest.approx([a - lr * (2 + momentum) * b for a, b in zip(w0, g, strict=True)], abs=1e-14)


def test_weight_decay_adds_the_weight_to_the_gradient() -> None:
    w0, g, w = _constant_gradient(OptimizerSpec(kind="sgd", lr=0.1, weight_decay=0.5), 1)
    assert w == pytest.approx([a - 0.1 * (b + 0.5 * a) for a, b in zip(w0, g, strict=True)], abs=1e-14)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adams_first_step_is_as_long_as_its_learning_rate(kind: str) -> None:
    w0, g, w = _constant_gradient(OptimizerSpec.model_validate({"kind": kind, "lr": 0.1}), 1)
    decay = 1.0
    assert w == pytest.approx(
        [a * decay - 0.1 * math.copysign(1, b) for a, b in zip(w0, g, strict=True)], abs=1e-6
    )


def test_no_optimizer_state_survives_from_task_to_task() -> None:
    spec = OptimizerSpec(kind="sgd", lr=0.1, momentum=0.9)
    app = App(model=_Slope, task="regression", loss=_output)
    module, data = _Slope(), Tensors(torch.ones(1, 2, dtype=torch.float64), torch.zeros(1))
    for _ in range(2):
        train(app, module, data, _work(batch_size=1, optimizer=spec), 1, _ignore, _never)
    assert module.w.tolist() == pytest.approx([1.0 - 0.2, -2.0 - 0.2], abs=1e-14)


def test_frozen_parameters_stay_as_they_are() -> None:
    network = _network()
    first = next(network.parameters())
    first.requires_grad_(False)
    before = first.clone()
    train(CLASSIFY, network, _data(8), _work(), 1, _ignore, _never)
    assert torch.equal(first, before)
    assert sum(len(group["params"]) for group in make_optimizer(SGD, network).param_groups) == 3


# Seeds.


def _trained(seed: int, epochs: int = 2) -> tuple[list[torch.Tensor], Trained]:
    network = _network()
    done = train(CLASSIFY, network, _data(21), _work(epochs), seed, _ignore, _never)
    return [value.clone() for value in network.state_dict().values()], done


def test_the_same_seed_gives_the_same_model_bit_for_bit_and_another_seed_another() -> None:
    once, again, other = _trained(7), _trained(7), _trained(8)
    assert once[1] == again[1]
    assert all(torch.equal(a, b) for a, b in zip(once[0], again[0], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once[0], other[0], strict=True))


def test_the_result_does_not_depend_on_what_was_drawn_before() -> None:
    once = _trained(7)
    torch.rand(100)
    assert all(torch.equal(a, b) for a, b in zip(once[0], _trained(7)[0], strict=True))


def test_dropout_does_not_change_the_order_of_the_batches() -> None:
    seen: list[list[float]] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(x[:, 0].tolist())
        return x

    app = App(model=_network, classes=2, transform=watched)
    for dropout in (0.0, 0.5):
        train(
            app,
            nn.Sequential(nn.Dropout(dropout), nn.Linear(3, 2)),
            _data(12),
            _work(epochs=3),
            5,
            _ignore,
            _never,
        )
    assert len(seen) == 18
    assert seen[:9] == seen[9:]


# Batches and counts.


@pytest.mark.parametrize(
    ("rows", "size", "expected"), [(10, 4, [4, 4, 2]), (9, 4, [4, 4, 1]), (3, 8, [3]), (0, 4, [])]
)
def test_an_epoch_sees_every_row_once(rows: int, size: int, expected: list[int]) -> None:
    batches = list(shuffled(rows, size, torch.Generator().manual_seed(1), drop_single=False))
    assert [len(batch) for batch in batches] == expected
    assert sorted(int(i) for batch in batches for i in batch) == list(range(rows))


def test_every_epoch_has_an_order_of_its_own() -> None:
    generator = torch.Generator().manual_seed(1)
    orders = [torch.cat(list(shuffled(50, 7, generator, False))).tolist() for _ in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_a_last_batch_of_one_is_dropped_if_the_model_normalises_batches() -> None:
    app = App(model=_network, classes=2)
    plain = nn.Linear(3, 2)
    normal = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert train(app, plain, _data(9), _work(epochs=2), 1, _ignore, _never).n_used == 18
    done = train(app, normal, _data(9), _work(epochs=2), 1, _ignore, _never)
    assert (done.n_used, done.steps) == (16, 4)
    assert math.isfinite(done.loss)


def test_a_model_that_normalises_cannot_learn_from_one_row_and_says_so_with_counts_of_zero() -> None:
    normal = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in normal.state_dict().items()}
    done = train(CLASSIFY, normal, _data(1), _work(), 1, _ignore, _never)
    assert (done.steps, done.n_used) == (0, 0)
    assert math.isnan(done.loss)
    assert all(torch.equal(value, before[name]) for name, value in normal.state_dict().items())


@pytest.mark.parametrize(("rows", "size", "epochs"), [(10, 4, 1), (10, 4, 3), (8, 8, 2), (5, 100, 2)])
def test_steps_and_examples_are_counted_and_every_epoch_is_reported(
    rows: int, size: int, epochs: int
) -> None:
    notes: list[tuple[int, int, float]] = []
    done = train(
        CLASSIFY, _network(), _data(rows), _work(epochs, size), 1, lambda *note: notes.append(note), _never
    )
    per_epoch = -(-rows // size)
    assert (done.steps, done.n_used) == (epochs * per_epoch, epochs * rows)
    assert [note[:2] for note in notes] == [(e, e * per_epoch) for e in range(1, epochs + 1)]
    assert done.loss == notes[-1][2]


def test_so_many_steps_are_made_however_many_epochs_that_takes() -> None:
    notes: list[tuple[int, int, float]] = []
    work = _work(epochs=1, batch_size=4).model_copy(update={"steps": 7})
    done = train(CLASSIFY, _network(), _data(10), work, 1, lambda *note: notes.append(note), _never)
    assert (done.steps, done.n_used, done.epochs) == (7, 24, 2.4)  # of three steps an epoch; the last has one
    assert [note[:2] for note in notes] == [(1, 3), (2, 6), (3, 7)]
    few = train(
        CLASSIFY, _network(), _data(10), _work(epochs=5).model_copy(update={"steps": 1}), 1, _ignore, _never
    )
    assert few.steps == 1
    normal = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert train(CLASSIFY, normal, _data(1), work, 1, _ignore, _never).steps == 0  # and it ends


def test_the_loss_is_the_mean_over_the_rows_of_the_last_epoch() -> None:
    app = App(
        model=nn.Module, task="regression", loss=lambda outputs, targets: outputs.mean() * 0 + targets.mean()
    )
    data = Tensors(torch.ones(5, 1), torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]))
    done = train(app, nn.Linear(1, 1), data, _work(batch_size=2), 1, _ignore, _never)
    assert done.loss == pytest.approx(4.0)


def test_transforms_see_the_training_features() -> None:
    app = App(model=_network, classes=2, transform=lambda x: x * 0)
    network = nn.Linear(3, 2)
    before = network.weight.detach().clone()
    train(app, network, _data(8), _work(), 1, _ignore, _never)
    assert torch.equal(network.weight, before)  # without features there is no gradient on the weights


# Cancellation.


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancellation_is_obeyed_within_one_batch(after: int) -> None:
    steps = 0

    def counted(x: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return x

    app = App(model=_network, classes=2, transform=counted)
    with pytest.raises(Cancelled):
        train(app, _network(), _data(40), _work(epochs=5), 1, _ignore, lambda: steps >= after)
    assert steps == after


def test_training_leaves_evaluation_mode() -> None:
    network = _network().eval()
    train(CLASSIFY, network, _data(4), _work(), 1, _ignore, _never)
    assert network.training


# Enough, and slowly.


@pytest.mark.parametrize("until", [1, 3])
def test_training_ends_when_somebody_says_that_it_is_enough(until: int) -> None:
    asked: list[tuple[int, int]] = []
    network = _network()

    course = Course()

    def enough() -> bool:
        asked.append((course.epoch, course.steps))
        network.eval()  # as for every evaluation
        return course.epoch == until

    hooks = Hooks(course, enough=enough)
    done = train(CLASSIFY, network, _data(8), _work(epochs=9), 1, _ignore, _never, hooks)
    assert asked == [(epoch, 2 * epoch) for epoch in range(1, until + 1)]
    assert (done.steps, done.epochs) == (2 * until, until)


def test_measuring_between_epochs_changes_nothing() -> None:
    """Dropout is on again in the next epoch, and chance goes on where it was."""
    plain, measured = _network(), _network()
    train(CLASSIFY, plain, _data(8), _work(epochs=3), 1, _ignore, _never)

    def enough() -> bool:
        measure(CLASSIFY, measured, _data(8, seed=2))
        return False

    train(CLASSIFY, measured, _data(8), _work(epochs=3), 1, _ignore, _never, Hooks(enough=enough))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), measured.parameters(), strict=True))


class Clock(Event):
    """A clock that moves only when somebody works or waits for the cancellation, which never comes."""

    now = 0.0

    def read(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


def test_a_slow_learner_takes_that_many_times_as_long_and_learns_the_same() -> None:
    seconds, weights = [], []
    for factor in (1.0, 4.0):
        clock = Clock()

        def work(x: torch.Tensor, clock: Clock = clock) -> torch.Tensor:
            clock.now += 1.0
            return x

        app = App(model=_network, classes=2, transform=work)
        network, drag = _network(), Drag(factor, clock, clock.read)
        train(app, network, _data(40), _work(), 1, _ignore, drag)
        drag.rest()
        seconds.append(clock.now)
        weights.append(network.state_dict())
    assert seconds[1] == 4 * seconds[0] > 0
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_withdrawal_ends_the_rest_of_a_slow_learner() -> None:
    cancelled, seconds = Event(), iter([0.0, 1.0, 1.0])
    drag = Drag(1e9, cancelled, lambda: next(seconds))
    cancelled.set()
    assert drag()
