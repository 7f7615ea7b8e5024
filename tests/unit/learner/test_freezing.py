"""Training of a part of a network: the rest stays as it is, bit for bit (divide-and-conquer §2 and §8)."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.torch.data import Tensors
from hansa.common.torch.model import spec_of
from hansa.common.values.errors import InvalidApp
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.tasks import Train
from hansa.learner.plugins.proximal import Pull
from hansa.learner.training.freezing import Scope
from hansa.learner.training.loop import Hooks, Trained, train
from tests.unit.torch.test_torch_layers import Characters

pytestmark = pytest.mark.usefixtures("one_thread")


def network(dropout: float = 0.3) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(6, 5),
        nn.BatchNorm1d(5),
        nn.Dropout(dropout),
        nn.Linear(5, 3),
    )


APP = App(model=network, classes=3)
HARD = OptimizerSpec(kind="sgd", lr=0.1, momentum=0.9, weight_decay=0.1)


def data(rows: int = 20) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return Tensors(
        torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)
    )


def group(module: nn.Module, layers: set[int]) -> tuple[str, ...]:
    return tuple(info.name for info in spec_of(module).tensors if info.layer in layers)


def trained(
    module: nn.Module,
    tensors: tuple[str, ...],
    optimizer: OptimizerSpec = HARD,
    mu: float = 0,
    **more: object,
) -> Trained:
    work = Train(model="j/v0", version=0, epochs=2, batch_size=5, optimizer=optimizer, tensors=tensors)
    with Scope(module, tensors) as scope:
        hooks = Hooks(pull=Pull(module, mu, tensors) if mu else None, awaken=scope.awaken)
        return train(APP, module, data(), work, 7, lambda *_: None, lambda: False, hooks)


def snapshot(module: nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("layers", [{0}, {0, 1}, {1, 2}, {2}])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_only_the_tensors_asked_for_change(layers: set[int], kind: str) -> None:
    module = network()
    wanted = group(module, layers)
    before = snapshot(module)
    momentum = 0.9 if kind == "sgd" else 0.0
    trained(
        module,
        wanted,
        OptimizerSpec.model_validate({"kind": kind, "lr": 0.1, "momentum": momentum, "weight_decay": 0.1}),
    )
    after = snapshot(module)
    assert {name for name in before if before[name] != after[name]} == set(wanted)
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(parameter.grad is None for name, parameter in module.named_parameters() if name not in wanted)


@pytest.mark.parametrize("layers", [set(), {0, 1, 2}], ids=["none named", "all named"])
def test_with_no_tensors_named_or_all_of_them_everything_is_trained_as_ever(layers: set[int]) -> None:
    one, other = network(), network()
    trained(one, group(one, layers))
    work = Train(model="j/v0", version=0, epochs=2, batch_size=5, optimizer=HARD)
    train(APP, other, data(), work, 7, lambda *_: None, lambda: False)
    assert snapshot(one) == snapshot(other)


def test_frozen_modules_are_in_evaluation_mode_with_the_dropout_behind_them() -> None:
    module = network()
    with Scope(module, group(module, {1, 2})) as scope:
        scope.awaken()
        assert [part.training for part in module.children()] == [False] * 4 + [True] * 4
    with Scope(module, group(module, {0})) as scope:
        scope.awaken()
        assert [part.training for part in module.children()] == [True] * 4 + [False] * 4
    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2)))
    with Scope(nested, ("1.0.weight", "1.0.bias")) as scope:
        scope.awaken()
        assert (nested.training, nested[0].training, nested[1].training) == (True, False, True)
    with Scope(nested, ("0.0.weight", "0.0.bias")) as scope:
        scope.awaken()
        assert (nested.training, nested[0].training, nested[1].training) == (True, True, False)


def test_a_module_with_weights_of_its_own_is_awake_for_them_and_not_for_the_modules_in_it() -> None:
    attention = nn.MultiheadAttention(4, 2)  # it drops out by its own mode
    module = nn.Sequential(nn.Linear(4, 4), attention)
    own = ("1.in_proj_weight", "1.in_proj_bias")
    with Scope(module, own) as scope:
        scope.awaken()
        assert (attention.training, attention.out_proj.training, module[0].training) == (True, False, False)
    with Scope(module, ("0.weight", "0.bias")) as scope:
        scope.awaken()
        assert not attention.training


def test_a_frozen_recurrent_module_is_in_training_mode_without_its_dropout() -> None:
    """In evaluation mode cuDNN takes no gradient through it to the layers before."""
    lstm = nn.LSTM(6, 6, num_layers=2, dropout=0.9)
    module = nn.Sequential(nn.Embedding(11, 6), nn.Sequential(lstm))
    x = torch.rand(5, 3, 6)
    wanted = lstm.eval()(x)[0]
    with Scope(module, group(module, {0})) as scope:
        scope.awaken()
        assert lstm.training
        assert torch.equal(lstm(x)[0], wanted)
    assert lstm.dropout == 0.9
    with Scope(module, group(module, {1})):
        assert lstm.dropout == 0.9


def test_no_gradient_is_worked_out_for_what_comes_before_the_trained_part() -> None:
    module = network()
    seen: dict[int, bool] = {}

    def look(at: int) -> Callable[[nn.Module, object, torch.Tensor], None]:
        return lambda _, __, made: seen.update({at: made.requires_grad})

    for at, part in enumerate(module.children()):
        part.register_forward_hook(look(at))
    trained(module, group(module, {2}))
    assert seen == dict.fromkeys(range(7), False) | {7: True}


def test_fine_tuning_of_the_last_layer_alone_is_a_linear_probe() -> None:
    module, probe = network(0), network(0)
    trained(module, group(module, {2}), OptimizerSpec(kind="sgd", lr=0.1, momentum=0.9))
    probe.eval()
    with torch.no_grad():
        features = probe[:7](data().x)
    head = probe[7]
    work = Train(
        model="j/v0",
        version=0,
        epochs=2,
        batch_size=5,
        optimizer=OptimizerSpec(kind="sgd", lr=0.1, momentum=0.9),
    )
    train(
        App(model=network, classes=3),
        head,
        Tensors(features, data().y),
        work,
        7,
        lambda *_: None,
        lambda: False,
    )
    for mine, other in zip(module[7].parameters(), head.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_the_proximal_term_pulls_only_what_is_trained() -> None:
    free, held = network(0), network(0)
    start = snapshot(free)
    names = group(free, {2})
    trained(free, names, OptimizerSpec(kind="sgd", lr=0.1))
    trained(held, names, OptimizerSpec(kind="sgd", lr=0.1), mu=5.0)
    origin = network(0)
    moved = [
        sum(
            float((a - b).detach().norm())
            for a, b in zip(module[7].parameters(), origin[7].parameters(), strict=True)
        )
        for module in (free, held)
    ]
    assert moved[1] < moved[0]
    assert all(snapshot(held)[name] == start[name] for name in start if name not in names)


def test_a_tied_parameter_must_not_cross_the_split() -> None:
    module = Characters(tied=True)
    with pytest.raises(
        InvalidApp, match=r"tied parameter crosses the split: embedding\.weight and head\.weight"
    ):
        Scope(module, group(module, {0}))
    Scope(module, group(module, {0, 2}))
    Scope(module, group(module, {1}))  # the tie is on one side: the frozen one


def test_a_group_that_the_app_has_frozen_cannot_be_trained() -> None:
    module = network()
    for parameter in module[7].parameters():
        parameter.requires_grad_(False)
    with pytest.raises(InvalidApp, match="the app has frozen them"):
        Scope(module, group(module, {2}))
    trained(module, group(module, {0, 1}))
    assert not any(parameter.requires_grad for parameter in module[7].parameters())


def test_the_statistics_of_a_frozen_norm_and_its_counter_stay() -> None:
    module = network()
    trained(module, group(module, {2}))
    assert [int(module.state_dict()[f"{at}.num_batches_tracked"]) for at in (1, 5)] == [0, 0]
    trained(module, group(module, {1}))
    assert [int(module.state_dict()[f"{at}.num_batches_tracked"]) for at in (1, 5)] == [0, 8]
