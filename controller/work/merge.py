"""The merges of one job. For rules that remember, the sums are kept from one merge to the next."""

import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

from hansa.common.models.auxiliary import with_auxiliary
from hansa.common.models.model import ModelSpec
from hansa.common.process import faults
from hansa.common.values.errors import StoreFailed, reason
from hansa.common.values.ids import JobId, ModelKey, community_key, moment_key
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.auxiliary import Beside
from hansa.controller.community.merge import Made, make
from hansa.controller.community.reading import Means
from hansa.controller.engine.orders import Merge, Merged
from hansa.controller.plugin.arithmetic import Aggregator, MergeInfo, ServerUpdate
from hansa.controller.plugin.auxiliary import Auxiliary
from hansa.controller.storage.stores import Draft, Store
from hansa.controller.values.members import Change, Membership, Standing, overlay
from hansa.controller.work.distance import distance_between
from hansa.controller.work.drafts import Drafts

log = logging.getLogger(__name__)


class Merger:
    """Computes community models and publishes them."""

    def __init__(
        self,
        job: JobId,
        aggregator: Aggregator[Any],
        server: ServerUpdate[Any],
        auxiliary: Sequence[Auxiliary],
        store: Store,
        pool: Executor,
        memory: int,
    ) -> None:
        self._job, self._aggregator, self._server = job, aggregator, server
        self._auxiliary = auxiliary
        self._store, self._pool, self._memory = store, pool, memory
        self._sums: tuple[int, Accumulator] | None = None  # as of a version

    def forget(self) -> None:
        """Drop the sums."""
        self._sums = None

    def merge(
        self, order: Merge, standing: Standing | None, drafts: Drafts
    ) -> tuple[Merged, tuple[ModelKey, ...]]:
        """Compute a version and publish it.

        `standing` are the members before it, if the aggregator remembers.
        """
        sums, self._sums = self._sums, None  # invalid until the merge has succeeded

        def draft(name: str, spec: ModelSpec) -> Draft:
            return drafts.open(self._key(order.version, name), spec)

        with ExitStack() as stack:
            current = stack.enter_context(self._store.open(order.current))
            before = {name: stack.enter_context(self._store.open(key)) for name, key in order.moments.items()}
            spec = current.manifest.spec.own
            beside = Beside(self._auxiliary, order.sites, order.resets)
            members = _members(order, standing, with_auxiliary(spec, beside.names))
            if sums is None or sums[0] != order.version - 1 or not order.kept:
                sums = None
                accumulator = Accumulator(spec, order.kept, self._memory)
                whole = tuple(members)
                change = Change(whole, (), whole, order.added, order.still, order.scope)
            else:
                accumulator = sums[1]
                change = Change(order.added, order.removed, members, order.added, order.still, order.scope)
            info = MergeInfo(order.version, order.staleness, len(order.added), order.prepared)
            means = Means(self._store.open, self._pool, self._memory)
            made = make(
                self._aggregator,
                self._server,
                accumulator,
                change,
                current,
                before,
                info,
                means,
                draft,
                beside,
            )
            faults.reach("merge-computed")
            made.publish()
            drafts.published()
            faults.reach("merge-published")
        if order.kept and (sums or not order.still):  # new sums are empty if nothing was computed
            self._sums = (order.version, accumulator)
        return self._merged(order, made), tuple(
            self._key(order.version, name) for name in ("", *made.moments)
        )

    def _merged(self, order: Merge, made: Made) -> Merged:
        note, distance = made.note, None
        if order.reference is not None:
            try:
                distance = distance_between(self._store, self._key(order.version, ""), order.reference)
            except StoreFailed:
                raise  # the store is unavailable: the merge is carried out again
            except Exception as error:  # nothing in training depends on it
                text = "job %s: version %d could not be compared with the reference"
                log.warning(text, self._job, order.version, exc_info=True)
                note = "; ".join(filter(None, (note, f"no distance: {reason(error)}")))
        return Merged(
            digest=made.manifest.model_digest.hex(),
            auxiliary=made.manifest.auxiliary_digest.hex(),
            moments={name: manifest.digest.hex() for name, manifest in made.moments.items()},
            note=note,
            prepared=order.prepared,
            distance=distance,
        )

    def _key(self, version: int, name: str) -> ModelKey:
        """Return the key of a merge's community model (empty name) or of one of its moments."""
        return moment_key(self._job, version, name) if name else community_key(self._job, version)


def _members(order: Merge, standing: Standing | None, spec: ModelSpec) -> Membership:
    """Return all members that count once the order is carried out."""
    gone: Standing = {member.site: [] for member in order.removed}
    changed = overlay(standing, (*order.added, *order.reweighed), spec.names)[0]
    return Membership(standing or {}, {**gone, **changed})
