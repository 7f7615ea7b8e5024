"""The tensors of a job's model that stay at a site: the backbone, and the site's own (personal-models §1)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hansa.common.models.distance import misfit
from hansa.common.models.model import ModelSpec
from hansa.common.models.travel import TensorSets, digest_of
from hansa.common.torch import networks
from hansa.common.values.errors import InvalidApp, Unfit
from hansa.common.values.settings.training import Travel
from hansa.common.values.tasks import Task


@dataclass(frozen=True)
class Resident:
    """What of a job's model stays at the site."""

    spec: ModelSpec  # of the whole model
    sets: TensorSets
    backbone: str  # its digest
    initial: dict[str, np.ndarray]  # the site's own tensors as the app begins with them

    def require(self, task: Task) -> None:
        """Refuse to work on models that belong to another backbone."""
        if self.backbone != task.backbone:
            raise Unfit(
                "the tensors that stay and should be the same everywhere are not those of the job: their"
                f" digest is {self.backbone or 'empty'} here and {task.backbone or 'empty'} in the job; do"
                " all sites have the same app, the same weights and the same version of PyTorch?"
            )

    def require_travelling(self, spec: ModelSpec) -> None:
        """Refuse a model with tensors that stay here: they would be sent back, trained."""
        wanted = self.spec.subset(self.sets.travelling)
        if self.spec.tensors and (wrong := misfit(wanted, spec, types=False)):
            raise InvalidApp(f"the job's model is not what travels of the app's model: {wrong}")

    def trained(self, tensors: tuple[str, ...]) -> tuple[str, ...]:
        """Return what is trained if a task asks for some tensors, or with () for all; () means everything."""
        if not tensors and not self.sets.backbone:
            return ()
        return (*(tensors or self.sets.travelling), *self.sets.personal)


WHOLE = Resident(ModelSpec(()), TensorSets(()), "", {})  # nothing stays


def resident_of(network: Any, travel: Travel) -> Resident:
    """Return what stays of a model that the app has just built."""
    sets = networks.sets_of(network, travel)
    own = networks.arrays_of(network, sets.personal)
    return Resident(
        spec=networks.describe(network),
        sets=sets,
        backbone=digest_of(networks.arrays_of(network, sets.backbone)),
        initial={name: array.copy() for name, array in own.items()},  # training changes the network
    )
