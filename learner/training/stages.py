"""Training in two stages: the site's own tensors, then those that travel (FedRep, personal-models §4)."""

from collections.abc import Callable
from typing import NamedTuple

from hansa.common.models.travel import TensorSets
from hansa.common.values.errors import Refused
from hansa.common.values.tasks import Train
from hansa.learner.plugins.contract import LocalRun
from hansa.learner.training.freezing import Scope
from hansa.learner.training.loop import Hooks, Trained, train
from hansa.learner.training.window import Window


class Stage(NamedTuple):
    """The tensors that a stage trains, while all others are frozen, and the task until its end."""

    tensors: tuple[str, ...]
    work: Train


def _stages(work: Train, sets: TensorSets) -> tuple[Stage, Stage]:
    """Return both stages of a task. Epochs are counted on from the first stage to the second."""
    if not sets.personal:
        raise Refused("the task is to train the site's own tensors first, but the whole model travels")
    total = work.personal_epochs + work.epochs
    return (
        Stage(sets.personal, work.model_copy(update={"epochs": work.personal_epochs})),
        Stage(sets.travelling, work.model_copy(update={"epochs": total})),
    )


def train_in_stages(
    run: LocalRun,
    sets: TensorSets,
    awake: list[Scope],
    progress: Callable[[int, int, float], None],
    cancelled: Callable[[], bool],
    hooks: Hooks,
    window: Window | None,
) -> Trained:
    """Train in place; each stage has an optimizer, a shuffle and a scope (the last of `awake`) of its own."""
    parts: list[Trained] = []
    for number, (tensors, work) in enumerate(_stages(run.work, sets)):
        with Scope(run.model, tensors) as scope:
            awake.append(scope)
            more = (progress, cancelled, hooks, window)
            parts.append(train(run.app, run.model, run.examples, work, run.seed + number, *more))
        awake.pop()
    first, second = parts
    return first.followed_by(second)
