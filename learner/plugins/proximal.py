"""The proximal term of FedProx (Li et al., 2020): the gradient of μ/2·‖w − w′‖², added in every step."""

from collections.abc import Collection

import torch
from torch import nn

from hansa.common.methods.proximal import PROXIMAL, Proximal
from hansa.common.plugins.registry import register
from hansa.learner.plugins.contract import LocalPlugin, LocalRun


class Pull:
    """Pulls the parameters of a network towards where they are now."""

    def __init__(self, module: nn.Module, mu: float, tensors: Collection[str] = ()) -> None:
        named = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        self._parameters = [parameter for name, parameter in named if not tensors or name in tensors]
        self._anchors = [parameter.detach().clone() for parameter in self._parameters]
        self._mu = mu

    def __call__(self) -> None:
        """Add μ·(w − w′) to the gradients, even of parameters that a batch does not use."""
        with torch.no_grad():
            for parameter, anchor in zip(self._parameters, self._anchors, strict=True):
                apart = parameter - anchor
                if parameter.grad is None:
                    parameter.grad = apart * self._mu if apart.any() else None
                elif parameter.grad.is_sparse:  # of an embedding; the term is over all its rows
                    parameter.grad = apart.mul_(self._mu).add_(parameter.grad)
                else:
                    parameter.grad.add_(apart, alpha=self._mu)


@register("learner", PROXIMAL)
class NearStart(LocalPlugin[Pull], Proximal):
    """Keeps an update near the model that its task starts from."""

    alone = "local proximal: the app trains by a function of its own, which cannot be held back"

    def begin(self, run: LocalRun) -> Pull:
        """Remember where the parameters are."""
        return Pull(run.model, self.mu, run.work.tensors)

    def pull(self, held: Pull, run: LocalRun) -> None:
        """Add the gradient of the term; in the loss it would cost another pass over all parameters."""
        held()
