"""Studies of hops: how far the travelling models are apart, and their mean, computed on a worker thread.

Nothing in training depends on what is found. The mean is kept as a model until evaluators have measured it.
"""

from concurrent.futures import Executor

from hansa.common.values.ids import JobId, hop_key
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.divergence import divergence
from hansa.controller.engine.effects import Change, StudyPlan
from hansa.controller.storage.stores import Store


def study(job: JobId, plan: StudyPlan, store: Store, pool: Executor, memory: int) -> tuple[float | None, str]:
    """Carry out a plan; return how far the models are apart, and the digest of their mean, if either is wanted."""
    with store.open(plan.current) as current:
        apart = divergence(plan.compared, store.open, current, pool, memory)
        if not plan.members:
            return apart, ""
        sums = Accumulator(current.manifest.spec, kept=False, memory=memory)
        draft = store.draft(hop_key(job, plan.version, plan.hop), current.manifest.spec)
        try:
            whole = Change(plan.members, (), plan.members, plan.members)
            manifest, peaks = sums.commit(whole, store.open, current, draft, pool)
            draft.publish(manifest, peaks)
        finally:
            draft.discard()
        return apart, manifest.digest.hex()
