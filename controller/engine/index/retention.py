"""Retention: which models the store must keep, and which can be deleted.

A model is kept as long as there is a reason to:

- a task starts from it, or an order reads it,
- it is an unmerged update, or an unmerged update is laid over it or counts as the difference from it,
- a part of the rule keeps it,
- it is the newest community model, or that one's basis: its contributions with what they differ from, the
  version before and moments,
- versions are compared with it,
- the job's `keep` says so.
"""

from collections import Counter

from hansa.common.values.ids import ModelKey
from hansa.controller.engine.effects import DropModels, Effect
from hansa.controller.engine.state import JobState


class Retention:
    """Counts the reasons to keep each model; it can be rebuilt from a job's state at any time."""

    def __init__(self, state: JobState) -> None:
        self._stored = state.models
        self._reasons: Counter[ModelKey] = Counter()
        self._idle = set(self._stored)  # in the store without a reason
        for task in state.tasks.values():
            self.hold(*task.models)
        for order in state.orders.values():
            self.hold(*order.reads)
        self.hold(*state.unmerged, *state.bases.values(), *state.basis, *state.saved.values())
        for kept in state.kept.values():
            self.hold(*(each.key for each in kept.values()))
        for members in state.members.values():
            self.hold(*(key for member in members for key in member.models))
        self.hold(*(key for key in (state.current, state.first, state.reference) if key is not None))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Retention):
            return False
        return self._reasons == other._reasons and self._idle == other._idle

    __hash__ = None  # type: ignore[assignment]

    def add(self, key: ModelKey) -> None:
        """Enter a model that is in the store; code that needs the model must also `hold` it."""
        self._stored.add(key)
        if not self._reasons[key]:
            self._idle.add(key)

    def hold(self, *keys: ModelKey) -> None:
        """Add one reason to keep each of these models."""
        for key in keys:
            self._reasons[key] += 1
            self._idle.discard(key)

    def release(self, *keys: ModelKey) -> None:
        """Remove one reason to keep each of these models."""
        for key in keys:
            self._reasons[key] -= 1
            if not self._reasons[key]:
                del self._reasons[key]
                if key in self._stored:
                    self._idle.add(key)

    def drop_idle(self) -> list[Effect]:
        """Have the models deleted that there is no reason to keep."""
        if not self._idle:
            return []
        dropped = tuple(sorted(self._idle))
        self._stored -= self._idle
        self._idle = set()
        return [DropModels(dropped)]
