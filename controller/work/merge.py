"""Merges of one job, carried out on a worker thread; the sums of rules that remember are kept from one to the next."""

from concurrent.futures import Executor
from contextlib import ExitStack

from hansa.common.models.model import ModelSpec
from hansa.common.process import faults
from hansa.common.values.ids import JobId, ModelKey, community_key, moment_key
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.merge import Made, Means, make
from hansa.controller.engine.effects import Change, MergePlan
from hansa.controller.engine.machine import Machine
from hansa.controller.plugin.arithmetic import MergeInfo
from hansa.controller.storage.stores import Draft, Store


class Merger:
    """Computes community models and publishes them."""

    def __init__(self, job: JobId, store: Store, pool: Executor, memory: int) -> None:
        self._job, self._store, self._pool, self._memory = job, store, pool, memory
        self._sums: tuple[int, Accumulator] | None = None  # as of a version

    def forget(self) -> None:
        """Let go of the sums."""
        self._sums = None

    def key(self, version: int, name: str) -> ModelKey:
        """Return the key of what a merge makes: the community model (no name) or one of its moments."""
        return moment_key(self._job, version, name) if name else community_key(self._job, version)

    def merge(self, machine: Machine, plan: MergePlan, drafts: list[Draft]) -> Made:
        """Compute a version and publish it. `drafts` collects what is to be discarded if this is tried again."""
        store, rule = self._store, machine.rule
        sums, self._sums = self._sums, None  # void until the merge has succeeded
        discard(drafts)

        def draft(name: str, spec: ModelSpec) -> Draft:
            drafts.append(store.draft(self.key(plan.version, name), spec))
            return drafts[-1]

        with ExitStack() as stack:
            current = stack.enter_context(store.open(plan.current))
            before = {
                name: stack.enter_context(store.open(key))
                for name, key in machine.moments(plan.version - 1).items()
            }
            members = machine.members(plan)
            if sums is None or sums[0] != plan.version - 1 or not plan.kept:
                sums = None
                accumulator = Accumulator(current.manifest.spec, plan.kept, self._memory)
                whole = tuple(members)
                change = Change(whole, (), whole, plan.added, plan.still, plan.scope)
            else:
                accumulator = sums[1]
                change = Change(plan.added, plan.removed, members, plan.added, plan.still, plan.scope)
            info = MergeInfo(plan.version, plan.staleness, len(plan.added))
            means = Means(store.open, self._pool, self._memory)
            made = make(rule.merge, rule.server, accumulator, change, current, before, info, means, draft)
            faults.reach("merge-computed")
            made.publish()
            drafts.clear()  # they are models now
            faults.reach("merge-published")
        if plan.kept and (
            sums or not plan.still
        ):  # new sums have nothing in them yet if nothing was computed
            self._sums = (plan.version, accumulator)
        return made


def discard(drafts: list[Draft]) -> None:
    """Throw drafts away; those that are left, because the store is away, are for the next try."""
    while drafts:
        drafts[-1].discard()
        drafts.pop()
