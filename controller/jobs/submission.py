"""The models of a submission: version 0 and the reference, each received frame by frame into a draft."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from hansa.common.job.spec import JobSpec
from hansa.common.models.auxiliary import require_first
from hansa.common.models.frames import FrameCheck
from hansa.common.models.model import Manifest, check_manifest
from hansa.common.models.travel import mismatches, tensor_sets
from hansa.common.values.errors import InvalidJob, Refused, Rejected
from hansa.common.values.ids import JobId, ModelKey, community_key, reference_key
from hansa.common.values.settings.training import Travel
from hansa.controller.jobs.sieve import Sieve
from hansa.controller.storage.stores import Draft, Store
from hansa.controller.work.distance import require_reference
from hansa.controller.work.workers import Workers

FIRST, REFERENCE = "first model", "reference"  # what messages call them


@dataclass(frozen=True)
class SubmittedModel:
    """A model that came with a submission; it is invisible until it is published."""

    draft: Draft
    manifest: Manifest
    peaks: Sequence[float]


@dataclass(frozen=True)
class Submission:
    """The manifests of a submission's models, which come before their frames."""

    first: Manifest | None
    reference: Manifest | None
    travel: Travel  # which tensors of the first model are the job's

    @cached_property
    def version_0(self) -> Manifest | None:
        """The first model without what stays at the sites."""
        if self.first is None or self.travel.whole:
            return self.first
        # Only the app knows what it trains, so a file for `trainable` must not have anything else.
        kept = set(tensor_sets(self.first.spec, self.travel, self.first.spec.names).travelling)
        entries = zip(self.first.spec.names, self.first.digests, strict=True)
        digests = tuple(digest for name, digest in entries if name in kept)
        return Manifest(self.first.spec.subset(kept), digests)

    def check(self, spec: JobSpec, auxiliary: Collection[str] = ()) -> None:
        """Refuse invalid models, and a reference that is not the job's or does not fit its first model.

        `auxiliary` are the tensors that the rule will put beside the first model.
        """
        if self.first:
            require_first(self.first, auxiliary)
            if problems := list(mismatches(self.first.spec, self.travel)):
                raise InvalidJob([f"{problem} (in the file that init names)" for problem in problems])
        if self.reference:
            with _naming(REFERENCE):
                check_manifest(self.reference)
        if spec.reference != (self.reference.digest.hex() if self.reference else None):
            raise InvalidJob("reference: the submission does not contain the model that the job names")
        if self.version_0 and self.reference:
            require_reference(self.version_0.spec, self.reference.spec)

    def named(self, spec: JobSpec) -> JobSpec:
        """Return the job with the digests of its models."""
        models = {"init": self.version_0, "reference": self.reference}
        digests = {name: manifest.digest.hex() if manifest else None for name, manifest in models.items()}
        return spec.model_copy(update=digests)

    async def take(
        self, job: JobId, frames: AsyncIterator[bytes], store: Store, workers: Workers
    ) -> list[SubmittedModel]:
        """Receive the models' frames: those of the first model, then those of the reference."""
        keys = ((community_key(job, 0), self.first), (reference_key(job), self.reference))
        models = [(key, manifest) for key, manifest in keys if manifest]
        taken: list[SubmittedModel] = []
        try:
            for key, manifest in models:
                last, what = key == models[-1][0], REFERENCE if manifest is self.reference else FIRST
                kept = self.version_0 if manifest is self.first and self.version_0 else manifest
                taken.append(await _take(key, manifest, kept, frames, store, workers, what, last))
        except BaseException:
            for model in taken:
                await asyncio.shield(workers.io(model.draft.discard))
            raise
        return taken


async def _take(
    key: ModelKey,
    manifest: Manifest,
    kept: Manifest,
    frames: AsyncIterator[bytes],
    store: Store,
    workers: Workers,
    what: str,
    last: bool,
) -> SubmittedModel:
    """Receive a model and keep the tensors of it that are `kept`."""
    check = FrameCheck(manifest)
    draft = await _begin(key, kept, store, workers)
    sieve = None if kept is manifest else Sieve(check.sealer.layout, kept.spec)
    try:
        with _naming(what):
            await _fill(draft, check, sieve, frames, workers, last)
        _require_all(check, what)
    except BaseException:
        await asyncio.shield(workers.io(draft.discard))  # the operator may have hung up
        raise
    peaks = [check.sealer.peaks[manifest.spec.index[name]] for name in kept.spec.names]
    return SubmittedModel(draft, kept, peaks)


async def _begin(key: ModelKey, manifest: Manifest, store: Store, workers: Workers) -> Draft:
    """Begin a draft. If the operator hangs up meanwhile, discard it once the thread has begun it."""
    beginning = asyncio.ensure_future(workers.io(store.draft, key, manifest.spec))
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        await asyncio.shield(workers.io((await beginning).discard))
        raise


async def _fill(
    draft: Draft,
    check: FrameCheck,
    sieve: Sieve | None,
    frames: AsyncIterator[bytes],
    workers: Workers,
    last: bool,
) -> None:
    """Write the frames of a model until it is complete; no frames may follow the last model."""
    written = 0
    while last or not check.complete:
        frame = await anext(frames, None)
        if frame is None:
            return
        index = check.next
        await workers.io(check.feed, frame)
        for kept in sieve.feed(index, frame) if sieve else (frame,):
            await workers.io(draft.write, written, kept)
            written += 1


def _require_all(check: FrameCheck, what: str) -> None:
    if not check.complete:
        raise Refused(f"the {what} ended after {check.next} frames")
    if what == REFERENCE and not any(check.sealer.peaks):
        raise InvalidJob("reference: it contains only zeros, so no distance from it can be computed")


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Say which model is wrong."""
    try:
        yield
    except Rejected as error:
        raise Rejected(f"{what}: {error}") from None
