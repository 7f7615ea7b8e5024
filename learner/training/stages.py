"""Training in two stages: the site's own tensors, then those that travel (FedRep, personal-models §4)."""

from typing import NamedTuple

from hansa.common.models.travel import TensorSets
from hansa.common.values.errors import Refused
from hansa.common.values.tasks import Train


class Stage(NamedTuple):
    """The tensors that a stage trains, while all others are frozen, and the task until its end."""

    tensors: tuple[str, ...]
    work: Train


def stages(work: Train, sets: TensorSets) -> tuple[Stage, Stage]:
    """Return both stages of a task. Epochs are counted on from the first stage to the second."""
    if not sets.personal:
        raise Refused("the task is to train the site's own tensors first, but the whole model travels")
    total = work.personal_epochs + work.epochs
    return (
        Stage(sets.personal, work.model_copy(update={"epochs": work.personal_epochs})),
        Stage(sets.travelling, work.model_copy(update={"epochs": total})),
    )
