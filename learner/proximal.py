"""The proximal term of FedProx (Li et al., 2020): the gradient of μ/2·‖w − w′‖², added in every step."""

from collections.abc import Collection

import torch
from torch import nn

from hansa.common.tasks import PROXIMAL, Proximal, Train


class Pull:
    """Pulls the parameters of a network towards where they are now."""

    def __init__(self, module: nn.Module, mu: float, tensors: Collection[str] = ()) -> None:
        named = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        self._parameters = [parameter for name, parameter in named if not tensors or name in tensors]
        self._anchors = [parameter.detach().clone() for parameter in self._parameters]
        self._mu = mu

    def __call__(self) -> None:
        """Add μ·(w − w′) to the gradients; a parameter that a batch does not use is pulled, too, if it has moved."""
        with torch.no_grad():
            for parameter, anchor in zip(self._parameters, self._anchors, strict=True):
                apart = parameter - anchor
                if parameter.grad is None:
                    parameter.grad = apart * self._mu if apart.any() else None
                elif parameter.grad.is_sparse:  # of an embedding; the term is over all its rows
                    parameter.grad = apart.mul_(self._mu).add_(parameter.grad)
                else:
                    parameter.grad.add_(apart, alpha=self._mu)


def pull_of(work: Train, module: nn.Module) -> Pull | None:
    """Return the pull that a task asks for; the network holds the model that the task starts from."""
    given = next((plugin.args for plugin in work.plugins if plugin.name == PROXIMAL), None)
    mu = Proximal.model_validate(given).mu if given is not None else 0.0
    return Pull(module, mu, work.tensors) if mu else None
