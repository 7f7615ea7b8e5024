"""Training of some tensors of a network: all others stay unchanged, bit for bit (divide-and-conquer §2).

Frozen parameters need no gradients and are not given to the optimizer, or weight decay and momentum would
move them. Frozen modules are in evaluation mode: running statistics do not move, and dropout is off.
Recurrent ones stay in training mode, without their dropout: cuDNN computes gradients through them in that
mode only. Where the frozen layers come first, none of them needs a gradient, so the backward pass ends where
the trained layers begin.
"""

from collections.abc import Collection
from types import TracebackType

from torch import nn

from hansa.common.torch.layers import layers_of, ties_of
from hansa.common.values.errors import InvalidApp


class Scope:
    """Freezes all tensors of a network except the named ones in a `with` block; without names, nothing."""

    def __init__(self, module: nn.Module, tensors: Collection[str]) -> None:
        self._module = module
        self._frozen: list[nn.Parameter] = []
        self._asleep: list[nn.Module] = []
        self._dropouts: dict[nn.RNNBase, float] = {}  # of recurrent modules among them
        if not tensors:
            return
        named = set(tensors)
        for tie in ties_of(module):
            if 0 < len(named.intersection(tie)) < len(tie):
                raise InvalidApp(
                    f"tied parameter crosses the split: {' and '.join(tie)} are one; choose another split"
                )
        parameters = dict(module.named_parameters(remove_duplicate=False))
        trained = {id(parameter) for name, parameter in parameters.items() if name in named}
        self._frozen = [p for p in module.parameters() if p.requires_grad and id(p) not in trained]
        if not any(p.requires_grad for p in parameters.values() if id(p) in trained):
            raise InvalidApp(
                "none of the tensors that the task asks for can be trained: the app has frozen them"
            )
        self._asleep = list(_asleep(module, named))
        self._dropouts = {part: part.dropout for part in self._asleep if isinstance(part, nn.RNNBase)}

    def __enter__(self) -> "Scope":
        for parameter in self._frozen:
            parameter.requires_grad_(False)
            parameter.grad = None
        for part in self._dropouts:
            part.dropout = 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        for part, dropout in self._dropouts.items():
            part.dropout = dropout

    def awaken(self) -> None:
        """Put the network into training mode, except for frozen modules."""
        self._module.train()
        for part in self._asleep:
            part.eval()
        for part in self._dropouts:
            part.training = True


def _asleep(module: nn.Module, trained: Collection[str]) -> list[nn.Module]:
    """Return the modules without trained tensors; one without any tensors goes with the layer it follows."""
    _, layer_of = layers_of(module)
    awake_layers = {layer_of[_owner(name)] for name in trained if _owner(name) in layer_of}
    own: dict[str, list[str]] = {}
    for name in module.state_dict():
        own.setdefault(_owner(name), []).append(name)
    asleep: list[nn.Module] = []

    def visit(name: str, part: nn.Module) -> bool:
        """Collect the modules asleep in a module, and return whether it is awake itself."""
        awake = [visit(f"{name}.{child}" if name else child, each) for child, each in part.named_children()]
        if name in own:
            awake.append(any(tensor in trained for tensor in own[name]))
        elif not awake:
            awake.append(layer_of[name] in awake_layers)
        if not any(awake):
            asleep.append(part)
        return any(awake)

    visit("", module)
    return asleep


def _owner(tensor: str) -> str:
    return tensor.rpartition(".")[0]
