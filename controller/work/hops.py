"""The models of a hop: how far apart they are, and their mean. Nothing in training depends on the result.

The mean is stored as a model until evaluators have reported on it.
"""

from concurrent.futures import Executor

from hansa.common.values.ids import JobId, ModelKey, hop_key
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.divergence import divergence
from hansa.controller.engine.orders import ExamineHop, HopExamined
from hansa.controller.storage.stores import Store
from hansa.controller.values.members import Change
from hansa.controller.work.drafts import Drafts


def examine_hop(
    job: JobId, order: ExamineHop, store: Store, drafts: Drafts, pool: Executor, memory: int
) -> tuple[HopExamined, tuple[ModelKey, ...]]:
    """Carry out an order; return its result, and the key of the mean, if the order asks for it."""
    with store.open(order.current) as current:
        apart = divergence(order.compared, store.open, current, pool, memory)
        if not order.members:
            return HopExamined(divergence=apart), ()
        sums = Accumulator(current.manifest.spec, kept=False, memory=memory)
        key = hop_key(job, order.version, order.hop)
        draft = drafts.open(key, current.manifest.spec)
        whole = Change(order.members, (), order.members, order.members)
        manifest, peaks = sums.commit(whole, store.open, current, draft, pool)
        draft.publish(manifest, peaks)
        drafts.published()
        return HopExamined(divergence=apart, digest=manifest.digest.hex()), (key,)
