"""The site's side of Ditto (Li et al., ICML 2021): a task also trains the site's own model v.

v minimises F(v) + λ/2·‖v − x‖², where x is the model that the task starts from (personal-models §5). It is
trained when the update is finished, in the same network and with random numbers of its own. Then the network
and the generators are put back, so that the update is FedAvg's, bit for bit, whatever λ is.
"""

from collections.abc import Mapping

import numpy as np

from hansa.common.methods.ditto import DITTO, Ditto
from hansa.common.plugins.registry import register
from hansa.common.torch.model import arrays_of, put
from hansa.common.torch.seeding import undisturbed
from hansa.learner.plugins.contract import LocalPlugin, LocalRun
from hansa.learner.plugins.proximal import Pull
from hansa.learner.training.loop import Hooks, train


@register("learner", DITTO)
class OwnModel(LocalPlugin[Pull | None], Ditto):
    """Trains a model of the site's own that stays near the community's."""

    alone = "local ditto: the app trains by a function of its own, which cannot be held near another model"

    def begin(self, run: LocalRun) -> Pull | None:
        """Remember where x is; with λ = 0 it does not matter, and v is trained on the site's data alone."""
        return Pull(run.model, self.lam) if self.lam else None

    def finish(self, held: Pull | None, run: LocalRun) -> Mapping[str, float]:
        """Train v, which begins as the first x that the site receives."""
        update = _copied(run)
        # A network is in training mode here, except for what is frozen: there is nothing to awaken.
        hooks = Hooks(pull=held, awaken=lambda: None)
        work = run.work.model_copy(update={"epochs": self.epochs, "steps": 0})
        seed = run.rng(DITTO).initial_seed()
        try:
            put(run.model, run.own_model or run.anchor)
            with undisturbed():
                train(run.app, run.model, run.examples, work, seed, lambda *_: None, run.cancelled, hooks)
            run.own_model.update(_copied(run))
        finally:
            put(run.model, update)
        return {}


def _copied(run: LocalRun) -> dict[str, np.ndarray]:
    """Return copies of the network's tensors; those that the job's models do not have never change."""
    return {name: array.copy() for name, array in arrays_of(run.model, run.anchor.keys()).items()}
