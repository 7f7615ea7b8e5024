"""The intake of a simulation: updates are checked and stored as a controller checks and stores them."""

import logging

import numpy as np

from hansa.common.models.auxiliary import require_first
from hansa.common.models.frames import cut
from hansa.common.models.model import Manifest, check_manifest, require_fit
from hansa.common.values.errors import Broken, PluginFailed, Rejected
from hansa.common.values.ids import ModelKey, sent_key, update_key
from hansa.common.values.tasks import Init, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.chores import Traffic
from hansa.controller.plugin.outline import outline_of
from hansa.controller.transfers.descriptions import require_same_model
from hansa.controller.transfers.wanted import Encoded, wanted_update
from hansa.controller.work.bench import Bench
from hansa.controller.work.decode import decode
from hansa.simulation.crew.base import Update
from hansa.simulation.storage.slab import Slot
from hansa.simulation.storage.store import SharedStore

log = logging.getLogger(__name__)


class Intake:
    """Turns updates into events, and knows the manifests of models."""

    def __init__(self, machine: Machine, bench: Bench, store: SharedStore, traffic: Traffic) -> None:
        self._machine, self._bench, self._store, self._traffic = machine, bench, store, traffic
        self._manifests: dict[ModelKey, Manifest] = {}

    def manifest(self, key: ModelKey) -> Manifest:
        """Return the manifest of a model."""
        if key not in self._manifests:
            with self._store.open(key) as model:
                self._manifests[key] = model.manifest
        return self._manifests[key]

    def drop(self, key: ModelKey) -> None:
        """Remove a model that the job no longer needs."""
        self._manifests.pop(key, None)
        try:
            self._store.delete(key)
        except Broken as error:
            log.warning("a model could not be removed: %s", error)

    def discard(self, update: Update) -> None:
        """Give up an update that was not stored."""
        if isinstance(update.payload, Slot):
            self._store.slab.give_back(update.payload)

    def take(self, task: Task, update: Update, seconds: float, at: float) -> ev.Event:
        """Store an update if it is as it should be; return what to tell the job.

        `seconds` says how long the site has trained.
        """
        stored = False
        try:
            if isinstance(task.work, Init) and self._machine.state.current is not None:
                return self._description(task, update, at)
            self._traffic.up += update.nbytes
            encoded = self._require_fit(task, update)
            key = sent_key(task.id) if encoded else update_key(task.id)
            stored = True
            self._publish(key, update)
            decoded = self._decode(task, encoded, key) if encoded else ""
        except Rejected as error:
            return ev.UpdateQuarantined(at=at, task=task.id, site=task.site, reason=str(error))
        except PluginFailed as error:
            return ev.EngineFailed(at=at, reason=str(error))
        finally:
            if not stored:
                self.discard(update)
        return self._arrival(task, update, decoded, seconds, at)

    def _arrival(self, task: Task, update: Update, decoded: str, seconds: float, at: float) -> ev.Event:
        manifest, facts, outline = update.manifest, update.facts, None
        if not isinstance(task.work, Init):
            facts = facts.model_copy(update={"anatomy": None, "seconds": seconds})
        elif self._machine.rule.needs_outline:
            outline = outline_of(manifest.spec, facts.anatomy)
        return ev.UpdateArrived(
            at=at,
            task=task.id,
            site=task.site,
            facts=facts,
            digest=manifest.digest.hex(),
            decoded=decoded,
            bytes_up=update.nbytes,
            tensors=len(manifest.digests),
            outline=outline,
            averaged=manifest.spec.is_averaged,
        )

    def _description(self, task: Task, update: Update, at: float) -> ev.Event:
        """Return what a file with version 0 does not say; nothing is uploaded for that."""
        assert self._machine.state.current is not None
        manifest = update.manifest
        require_same_model(manifest.spec, self.manifest(self._machine.state.current).spec)
        return ev.ModelDescribed(
            at=at,
            task=task.id,
            site=task.site,
            digest=manifest.digest.hex(),
            outline=outline_of(manifest.spec, update.facts.anatomy),
            backbone=update.facts.backbone,
        )

    def _require_fit(self, task: Task, update: Update) -> Encoded | None:
        """Refuse an update that its task does not ask for, or whose numbers are not finite."""
        manifest, encoded = update.manifest, None
        if isinstance(task.work, Train):
            wanted, encoded = wanted_update(task.work, self.manifest(task.models[0]).spec)
            if wanted != manifest.spec:
                check_manifest(manifest)
                require_fit(wanted, manifest.spec)
        else:
            require_first(manifest, [each.name for each in self._machine.rule.auxiliary])
        for info, peak in zip(manifest.spec.tensors, update.peaks, strict=True):
            if not np.isfinite(peak):
                raise Rejected(f"tensor {info.name} holds NaN or infinite values")
        return encoded

    def _decode(self, task: Task, encoded: Encoded, key: ModelKey) -> str:
        """Store what an encoded update stands for in place of what was sent; return its digest."""
        drafts = self._bench.drafts()
        try:
            manifest = decode(
                self._store, encoded.encoding, encoded.spec, key, task.models, update_key(task.id), drafts
            )
        finally:
            drafts.discard()
            self._store.delete(key)
        return manifest.digest.hex()

    def _publish(self, key: ModelKey, update: Update) -> None:
        self._store.require_room(update.nbytes)
        if isinstance(update.payload, Slot):
            self._store.adopt(key, update.manifest, update.peaks, update.payload)
            return
        draft = self._store.draft(key, update.manifest.spec)
        for index, frame in enumerate(cut(update.payload)):
            draft.write(index, frame)
        draft.publish(update.manifest, update.peaks)
