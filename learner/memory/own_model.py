"""A model of the site's own beside the community's, which plugins train (Ditto, personal-models §5).

It is kept in the folder that the site's evaluator reads, and counts if and only if its task's update does.
"""

from collections.abc import Callable

from hansa.common.models.model import ModelSpec
from hansa.common.site.personal import PersonalFolder
from hansa.common.values.errors import Refused
from hansa.common.values.tasks import Task, Train
from hansa.learner.memory.states import Recollection, State


def recall(folder: PersonalFolder, task: Task, work: Train) -> Recollection:
    """Return the model after the site's last accepted update; it is read when a plugin asks for it."""

    def read() -> State:
        if task.travel.leaves_own:
            raise Refused("run.own_model: in this job sites have tensors of their own in the model already")
        personal = folder.begin(task, work.after)
        return State(arrays=dict(personal.arrays) if personal else {})

    return Recollection(read)


def keep(
    folder: PersonalFolder,
    task: Task,
    own: Recollection,
    spec: ModelSpec,
    require: Callable[[Task, int], None],
) -> None:
    """Write the model down, if a plugin has trained one, until the receipt arrives.

    `require` refuses models that have more bytes than the site's owner allows.
    """
    if not own.asked or not own.state.arrays:
        return
    own.state.require_arrays()
    tensors = {name: (array.dtype.name, array.shape) for name, array in own.state.arrays.items()}
    if tensors != {info.name: (info.dtype, info.shape) for info in spec.tensors}:
        raise Refused("run.own_model must have the tensors of the model that the task starts from")
    require(task, own.state.nbytes)
    folder.keep(task, spec, own.state.arrays)
