"""The site's side of SCAFFOLD (Karimireddy et al., ICML 2020, option II): every step uses g − c_i + c.

After K steps with the rate η, c_i⁺ = c_i − c + (x − y)/(K·η), and Δc_i = c_i⁺ − c_i goes up with the update
(scaffold §1). The site keeps two control variates: the one whose update has been merged, and that of its last
update, which may or may not be merged. The next task says which of them counts (scaffold §2).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hansa.common.methods.scaffold import CONTROL, LOST, SCAFFOLD, Scaffold
from hansa.common.plugins.registry import register
from hansa.learner.plugins.contract import LocalPlugin, LocalRun, Returned

PLACES = ("merged", "last")  # the control variate that counts, and that of the site's last update


@dataclass(frozen=True)
class Variate:
    """A site's control variate at the beginning of a task, and the corrections that follow from it."""

    own: Mapping[str, np.ndarray]  # c_i; empty for zeros
    lost: bool  # whether the site should have one, but does not
    corrections: list[tuple[torch.nn.Parameter, torch.Tensor]]  # c − c_i


@register("learner", SCAFFOLD)
class ControlVariate(LocalPlugin[Variate], Scaffold):
    """Corrects the drift of a site's steps away from the community's."""

    alone = "local scaffold: the app trains by a function of its own, whose steps cannot be corrected"
    auxiliary = (CONTROL,)

    def begin(self, run: LocalRun) -> Variate:
        """Find the control variate that counts, and compute the corrections."""
        own = self._own(run)
        control = run.auxiliary[CONTROL]
        corrections = []
        for name, parameter in run.model.named_parameters():
            if parameter.requires_grad and name in control:
                apart = control[name] - own[name] if own else control[name]
                if apart.any():  # without a correction, training equals FedAvg's bit for bit
                    correction = torch.from_numpy(np.array(apart))
                    corrections.append((parameter, correction.to(parameter.device, parameter.dtype)))
        return Variate(own, bool(self.merged) and not own, corrections)

    def _own(self, run: LocalRun) -> dict[str, np.ndarray]:
        """Return c_i of the site's last merged update; nothing if there is none, or if it was lost."""
        known = run.memory.get(SCAFFOLD)
        tasks = known if isinstance(known, dict) else {}
        for place in PLACES:
            keys = {name: _key(place, name) for name in run.auxiliary[CONTROL]}
            if self.merged and tasks.get(place) == self.merged and run.arrays.keys() >= set(keys.values()):
                return {name: run.arrays[key] for name, key in keys.items()}
        return {}

    def pull(self, held: Variate, run: LocalRun) -> None:
        """Add c − c_i to the gradients, even of parameters that a batch does not use."""
        with torch.no_grad():
            for parameter, correction in held.corrections:
                if parameter.grad is None:
                    parameter.grad = correction.clone()
                elif parameter.grad.is_sparse:  # of an embedding; the correction is over all its rows
                    parameter.grad = correction.clone().add_(parameter.grad)
                else:
                    parameter.grad.add_(correction)

    def finish(self, held: Variate, run: LocalRun) -> Mapping[str, float]:
        """Report a lost control variate."""
        return {LOST: 1.0} if held.lost else {}

    def amend(self, held: Variate, run: LocalRun, update: Returned) -> None:
        """Return Δc_i with the update, and remember c_i and c_i⁺."""
        control, travelled = run.auxiliary[CONTROL], run.steps * run.work.optimizer.lr
        changes: dict[str, np.ndarray] = {}
        for name, trained in update.tensors.items():
            if name not in control:
                continue
            before = held.own.get(name, np.float32(0))
            change = np.zeros(trained.shape, dtype=np.float32)
            if travelled:
                apart = run.anchor[name].astype(np.float64) - trained.astype(np.float64)
                change[...] = apart / travelled - control[name]
            changes[name] = change
            run.arrays[_key("last", name)] = np.asarray(before + change)  # the sum may be a scalar
            if held.own:
                run.arrays[_key("merged", name)] = held.own[name]
            else:
                run.arrays.pop(_key("merged", name), None)
        update.auxiliary[CONTROL] = changes
        run.memory[SCAFFOLD] = {"merged": self.merged if held.own else "", "last": run.task.id}


def _key(place: str, tensor: str) -> str:
    return f"{SCAFFOLD}/{place}/{tensor}"
