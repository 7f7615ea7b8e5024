"""The layers of torch modules (divide-and-conquer §1)."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.models.model import Role
from hansa.common.torch import networks
from hansa.common.torch.layers import anatomy_of, layers_of
from hansa.common.torch.model import spec_of


def vgg9() -> nn.Sequential:
    """Return the paper's network for 32×32 pictures, small."""
    widths = [3, 4, 8, 8, 8, 8, 8]
    convolutions: list[nn.Module] = []
    for number, (into, out) in enumerate(pairwise(widths)):
        convolutions += [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        convolutions += [nn.MaxPool2d(2)] if number % 2 else []
    fully = [
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8 * 16, 8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Linear(8, 10),
    ]
    return nn.Sequential(*convolutions, *fully)


class Characters(nn.Module):
    """An embedding, an LSTM of two levels and a linear layer, tied if wanted."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 11)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(x.long()))
        made: torch.Tensor = self.head(hidden[:, -1])
        return made


class Hooked(nn.Linear):
    """Counts the calls of its hooks."""

    hook_calls = 0

    def register_forward_pre_hook(self, hook: Any, **options: Any) -> Any:
        def counted(*given: Any) -> Any:
            self.hook_calls += 1
            return hook(*given)

        return super().register_forward_pre_hook(counted, **options)


class Backwards(nn.Module):
    """Registers its layers in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.first = Hooked(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.first(x))
        return made


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.two(torch.relu(self.one(x)))
        return made


def test_vgg9_has_nine_layers_and_norms_join_the_one_before() -> None:
    spec = spec_of(vgg9())
    assert len(spec.layers) == 9
    norm = spec.tensors[spec.index["1.running_mean"]]
    assert (norm.layer, norm.role) == (0, Role.STAT)
    assert [
        info.layer for info in spec.tensors if info.name.endswith(".weight") and len(info.shape) > 1
    ] == list(range(9))
    assert anatomy_of(vgg9(), torch.zeros(2, 3, 32, 32)).remarks == ()


def test_a_character_model_has_three_layers() -> None:
    module = Characters()
    spec = spec_of(module)
    assert spec.layers == ("embedding", "lstm", "head")
    assert {info.layer for info in spec.tensors if info.name.startswith("lstm.")} == {1}
    assert anatomy_of(module, torch.zeros(2, 5)).remarks == ()


def test_a_norm_before_the_first_layer_belongs_to_it() -> None:
    spec = spec_of(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.PReLU(), nn.Linear(2, 2)))
    assert [info.layer for info in spec.tensors] == [0] * 8 + [1] * 2
    assert spec.layers == ("1", "3")


def test_a_norm_joins_the_layer_before_it_though_its_scales_have_the_shape_of_a_matrix() -> None:
    norm = nn.LayerNorm((2, 6, 6))
    spec = spec_of(nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(72, 2)))
    assert spec.layers == ("0", "3")
    assert [info.layer for info in spec.tensors] == [0, 0, 0, 0, 1, 1]
    assert spec_of(nn.Sequential(nn.LayerNorm((8, 8)), nn.Flatten(), nn.Linear(64, 2))).layers == ("2",)


def test_norms_of_libraries_are_recognised_by_name_and_weight_norms_are_not_norms() -> None:
    class LibraryNorm2d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2, 1))

    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))
    spec = spec_of(nn.Sequential(normed, LibraryNorm2d()))
    assert spec.layers == ("0",)
    assert {info.name for info in spec.tensors if info.norm} == {"1.scale"}


def test_a_module_with_two_names_is_one_layer() -> None:
    shared = nn.Linear(3, 3)
    layers, layer_of = layers_of(nn.Sequential(shared, nn.Linear(3, 3), shared))
    assert layers == ["0", "1"]
    assert layer_of["2"] == 0


def test_a_parametrized_layer_is_one_layer() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    spec = spec_of(nn.Sequential(nn.Linear(3, 3), normed))
    assert spec.layers == ("0", "1")
    assert {info.layer for info in spec.tensors if info.name.startswith("1.")} == {1}


def test_ties_are_reported() -> None:
    assert anatomy_of(Characters(tied=True)).ties == (("embedding.weight", "head.weight"),)
    assert anatomy_of(Characters()).ties == ()


def test_layers_that_the_app_has_frozen_are_reported() -> None:
    module = vgg9()
    assert anatomy_of(module).frozen == ()
    module[0].requires_grad_(False)  # its norm, which is trained, belongs to the layer
    module[4].weight.requires_grad_(False)
    module[-1].requires_grad_(False)
    assert anatomy_of(module).frozen == (8,)


def test_a_layer_whose_only_parameter_is_anothers_is_trained_with_it() -> None:
    module = Characters(tied=True)
    module.head.register_parameter("bias", None)
    assert anatomy_of(module).frozen == ()


def test_layers_that_run_in_another_order_are_remarked_upon_and_nothing_else_changes() -> None:
    module = Backwards()
    module.first.eval()
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    (remark,) = anatomy_of(module, torch.zeros(2, 3)).remarks
    assert "first, last" in remark
    assert torch.equal(torch.rand(1), wanted)
    assert (module.training, module.first.training, module.last.training) == (True, False, True)
    calls = module.first.hook_calls
    assert calls
    module(torch.zeros(2, 3))
    assert module.first.hook_calls == calls, "a hook was left behind"
    normed = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    anatomy_of(normed, torch.ones(2, 3))
    assert normed.state_dict()["1.running_mean"].tolist() == [0, 0]


def test_a_layer_that_runs_twice_or_never_causes_no_remark() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.spare, self.last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.last(self.first(self.first(x)))
            return y

    assert anatomy_of(Shared(), torch.zeros(2, 2)).remarks == ()


def test_a_model_that_cannot_be_run_is_remarked_upon() -> None:
    (remark,) = anatomy_of(nn.Sequential(nn.Linear(3, 2)), torch.zeros(2, 7)).remarks
    assert "could not be checked" in remark


def test_a_model_that_is_a_layer_itself_has_one() -> None:
    assert spec_of(nn.Linear(3, 2)).layers == ("Linear",)
    assert anatomy_of(nn.Linear(3, 2), torch.zeros(2, 3)).remarks == ()


def test_layers_inside_a_module_of_the_app_are_one_block() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 2, 1), nn.Sequential(Block(), Block()), nn.Flatten(), nn.LazyLinear(2)
    )
    module(torch.zeros(1, 3, 4, 4))
    assert anatomy_of(module).blocks == (0, 1, 1, 2, 2, 3)


def test_arrays_of_an_app_have_layers_too() -> None:
    arrays = {
        "w1": np.zeros((2, 3)),
        "b1": np.zeros(3),
        "out.weight": np.zeros((3, 2)),
        "out.scale": np.zeros((2, 2)),
    }
    spec = networks.describe(arrays | {"step": np.zeros((), np.int64)})
    assert spec.layers == ("w1", "out")
    assert [info.layer for info in spec.tensors] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("module", [vgg9(), Characters(), Backwards()])
def test_every_tensor_belongs_to_a_layer(module: nn.Module) -> None:
    spec = spec_of(module)
    assert {info.layer for info in spec.tensors} == set(range(len(spec.layers)))
