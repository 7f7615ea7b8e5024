"""The models that come with a job: version 0 and the reference, checked as a controller checks them."""

from pathlib import Path

import numpy as np

from hansa.common.job.check import located
from hansa.common.job.spec import JobSpec
from hansa.common.models.checkpoints import load_checkpoint
from hansa.common.models.frames import Layout, Sealer, cut, pack, views
from hansa.common.models.model import Manifest
from hansa.common.values.errors import InvalidJob
from hansa.common.values.ids import JobId, ModelKey, community_key, reference_key
from hansa.controller.engine import events as ev
from hansa.controller.jobs.admission import misfits_of
from hansa.controller.jobs.submission import Submission
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.outline import outline_of
from hansa.controller.storage.stores import Store


def submitted(
    spec: JobSpec, rule: Composition, job: JobId, store: Store
) -> tuple[JobSpec, ev.ModelGiven | None]:
    """Store the models that a job names; return the job with their digests, and the event of version 0."""
    first = load_checkpoint(Path(spec.init)) if spec.init else None
    reference = load_checkpoint(Path(spec.reference)) if spec.reference else None
    if reference:
        spec = spec.model_copy(update={"reference": reference[0].digest.hex()})
    models = Submission(first and first[0], reference and reference[0], rule.travel)
    models.check(spec, [each.name for each in rule.auxiliary])
    version_0 = models.version_0
    outline = outline_of(version_0.spec) if version_0 and rule.needs_outline else None
    if outline and (misfits := misfits_of(rule, outline)):
        raise InvalidJob([located(problem, {}) for problem in misfits])
    spec = models.named(spec)
    if reference:
        peaks = _publish(store, reference_key(job), *reference)
        if not any(peaks):
            raise InvalidJob("reference: it contains only zeros, so no distance from it can be computed")
    if not first or not version_0:
        return spec, None
    arrays = views(Layout(first[0].spec), first[1])
    kept = pack(version_0.spec, {name: arrays[name] for name in version_0.spec.names})
    _publish(store, community_key(job, 0), version_0, kept)
    described = None if rule.needs_description else outline
    return spec, ev.ModelGiven(
        at=0.0, digest=str(spec.init), outline=described, averaged=version_0.spec.is_averaged
    )


def _publish(store: Store, key: ModelKey, manifest: Manifest, payload: np.ndarray) -> list[float]:
    draft, sealer = store.draft(key, manifest.spec), Sealer(manifest.spec)
    for index, frame in enumerate(cut(payload)):
        sealer.feed(frame)
        draft.write(index, frame)
    draft.publish(manifest, sealer.peaks)
    return sealer.peaks
