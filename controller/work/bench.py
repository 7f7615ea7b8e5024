"""Where worker threads carry out the orders of one job.

Everything here blocks. An order starts again from the beginning if the store was unavailable meanwhile; its
drafts are discarded first.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hansa.common.plugins.calling import calling
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.engine.effects import StartOrder
from hansa.controller.engine.orders import Compare, Compared, Examine, ExamineHop, Merge, Order, Result
from hansa.controller.plugin.composition import Composition
from hansa.controller.storage.stores import Store
from hansa.controller.work.distance import distance_between
from hansa.controller.work.drafts import Drafts
from hansa.controller.work.examine import examine, warm_up
from hansa.controller.work.hops import examine_hop
from hansa.controller.work.merge import Merger


@dataclass(frozen=True)
class Done:
    """The result of an order, and the models that it put into the store."""

    result: Result
    models: tuple[ModelKey, ...] = ()


class Bench:
    """Carries out orders, and keeps the sums of rules that remember."""

    def __init__(self, job: JobId, rule: Composition, store: Store, pool: Executor, memory: int) -> None:
        self.job, self._rule, self._store, self._pool, self._memory = job, rule, store, pool, memory
        self._merger = Merger(job, rule.merge, rule.server, rule.auxiliary, store, pool, memory // 2)

    def drafts(self) -> Drafts:
        """Return a new list of drafts for an order."""
        return Drafts(self._store)

    def forget(self) -> None:
        """Drop the sums: the job has ended."""
        self._merger.forget()

    def preparation(self, order: Order) -> Callable[[], None] | None:
        """Return the work that prepares an order, if there is any; its time does not count."""
        return partial(warm_up, self._rule.parts[order.point]) if isinstance(order, Examine) else None

    def seconds(self, order: Order) -> float | None:
        """Return how many seconds an order may take; None if there is no limit."""
        if not isinstance(order, Examine):
            return None
        with calling(self._rule.parts[order.point]) as part:
            return part.examination_seconds

    def name(self, order: Order) -> str:
        """Name an order for messages."""
        match order:
            case Merge(version=version):
                return f"merging version {version}"
            case Examine(point=point):
                return f"the examination of updates by {point} {self._rule.parts[point].kind!r}"
            case ExamineHop(hop=hop):
                return f"the examination of hop {hop}"
            case Compare():
                return "the comparison of version 0 with the reference"
        assert_never(order)

    def carry_out(self, start: StartOrder, drafts: Drafts) -> Done:
        """Carry out an order; its models are durable when this returns."""
        drafts.discard()
        order = start.order
        match order:
            case Merge():
                merged, models = self._merger.merge(order, start.standing, drafts)
                return Done(merged, models)
            case Examine():
                part = self._rule.parts[order.point]
                examined, models = examine(
                    self.job, start.number, order, part, self._store, drafts, self._memory
                )
                return Done(examined, models)
            case ExamineHop():
                examined_hop, models = examine_hop(
                    self.job, order, self._store, drafts, self._pool, self._memory // 4
                )
                return Done(examined_hop, models)
            case Compare():
                return Done(Compared(distance=distance_between(self._store, order.model, order.reference)))
        assert_never(order)
