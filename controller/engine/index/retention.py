"""Which models the store must keep, and which may go.

A model is kept while there is a reason: a task starts from it, no merge has taken it yet, a partial update
that no merge has taken yet is laid over it, a part of the rule looks at it or keeps it, a hop is being
studied that it belongs to, the newest community model is made of it or stands on it (the model before and the
moments of a server update), it is that model, or the job's versions are measured against it.
"""

from collections import Counter

from hansa.common.values.ids import ModelKey
from hansa.common.values.tasks import Task
from hansa.controller.engine.effects import DropModels, Effect, StudyPlan
from hansa.controller.engine.state import JobState


class Models:
    """Counts the reasons to keep each model; it can be made anew from a job's state at any time."""

    def __init__(self, state: JobState) -> None:
        self._stored = state.models
        self._reasons: Counter[ModelKey] = Counter()
        self._idle = set(self._stored)  # in the store for no reason
        for task in state.tasks.values():
            self.hold_base(task)
        for key in state.fresh:
            self.hold(key)
        for key in state.bases.values():
            self.hold(key)
        for inquiry in state.inquiries.values():
            for key in inquiry.models():
                self.hold(key)
        for kept in state.kept.values():
            for each in kept.values():
                self.hold(each.key)
        for members in state.members.values():
            for member in members:
                self.hold(member.model)
        for key in state.footing:
            self.hold(key)
        for plan in state.studies:
            self.hold_study(plan)
        for held in (state.current, state.first, state.reference, state.measuring):
            if held is not None:
                self.hold(held)

    def add(self, key: ModelKey) -> None:
        """Take note of a model in the store; whoever needs it says so with `hold`."""
        self._stored.add(key)
        if not self._reasons[key]:
            self._idle.add(key)

    def hold(self, key: ModelKey) -> None:
        """Keep a model for one more reason."""
        self._reasons[key] += 1
        self._idle.discard(key)

    def release(self, key: ModelKey) -> None:
        """Take one reason away."""
        self._reasons[key] -= 1
        if not self._reasons[key]:
            del self._reasons[key]
            if key in self._stored:
                self._idle.add(key)

    def hold_base(self, task: Task) -> None:
        """Keep the model that a task starts from, and what it is laid over."""
        for key in task.models:
            self.hold(key)

    def release_base(self, task: Task) -> None:
        """A task no longer needs its model."""
        for key in task.models:
            self.release(key)

    def hold_study(self, plan: StudyPlan) -> None:
        """Keep the models that a study reads."""
        for key in plan.models:
            self.hold(key)

    def release_study(self, plan: StudyPlan) -> None:
        """A study has read its models."""
        for key in plan.models:
            self.release(key)

    def drop_idle(self) -> list[Effect]:
        """Forget the models that nobody needs."""
        if not self._idle:
            return []
        dropped = tuple(sorted(self._idle))
        self._stored -= self._idle
        self._idle = set()
        return [DropModels(dropped)]
