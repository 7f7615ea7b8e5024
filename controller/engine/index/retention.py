"""Which models the store must keep, and which may go.

A model is kept while there is a reason: a task starts from it, an order reads it, no merge has taken it yet, a
partial update that no merge has taken yet is laid over it, a part of the rule keeps it, the newest community
model is made of it or was made from it (the model before and the moments of a server update), it is that model,
or versions are compared with it.
"""

from collections import Counter

from hansa.common.values.ids import ModelKey
from hansa.controller.engine.effects import DropModels, Effect
from hansa.controller.engine.state import JobState


class Retention:
    """Counts the reasons to keep each model; it can be made anew from a job's state at any time."""

    def __init__(self, state: JobState) -> None:
        self._stored = state.models
        self._reasons: Counter[ModelKey] = Counter()
        self._idle = set(self._stored)  # in the store for no reason
        for task in state.tasks.values():
            self.hold(*task.models)
        for order in state.orders.values():
            self.hold(*order.reads)
        self.hold(*state.unmerged, *state.bases.values(), *state.basis)
        for kept in state.kept.values():
            self.hold(*(each.key for each in kept.values()))
        for members in state.members.values():
            self.hold(*(member.model for member in members))
        self.hold(*(key for key in (state.current, state.first, state.reference) if key is not None))

    def add(self, key: ModelKey) -> None:
        """Take note of a model in the store; whoever needs it says so with `hold`."""
        self._stored.add(key)
        if not self._reasons[key]:
            self._idle.add(key)

    def hold(self, *keys: ModelKey) -> None:
        """Keep models for one more reason."""
        for key in keys:
            self._reasons[key] += 1
            self._idle.discard(key)

    def release(self, *keys: ModelKey) -> None:
        """Take one reason to keep models away."""
        for key in keys:
            self._reasons[key] -= 1
            if not self._reasons[key]:
                del self._reasons[key]
                if key in self._stored:
                    self._idle.add(key)

    def drop_idle(self) -> list[Effect]:
        """Forget the models that nobody needs."""
        if not self._idle:
            return []
        dropped = tuple(sorted(self._idle))
        self._stored -= self._idle
        self._idle = set()
        return [DropModels(dropped)]
