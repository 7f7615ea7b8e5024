"""Which models the store must keep, and which may go."""

from typing import Any

from hansa.controller.engine.effects import DropModels, Effect
from hansa.controller.engine.job import Job


def drop_unneeded(job: Job) -> list[Effect]:
    """Forget models that neither a task, a merge to come, nor the check of the last merge needs."""
    state = job.state
    bases: set[Any] = {getattr(task.work, "model", None) for task in state.tasks.values()}
    fresh = set() if job.ended else state.fresh
    counted = {member.model for held in state.members.values() for member in held}
    needed = bases | fresh | counted | {state.current}
    unneeded = tuple(sorted(state.models - needed))
    state.models -= set(unneeded)
    return [DropModels(unneeded)] if unneeded else []
