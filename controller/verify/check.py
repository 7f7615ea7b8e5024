"""Offline checks of a job: do its journal, receipts and stored models agree?

Every event is replayed through the engine, which issues the receipts that must be in the journal. Stored
models are compared with their digests byte by byte, and the newest community model is computed again from its
updates. Everything that receipts do not cover (the specification, metrics, times) is compared with the
digests in the audit log.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from hansa.common.models.frames import Buffer, FrameCheck
from hansa.common.models.model import Manifest
from hansa.common.values.errors import (
    Broken,
    HansaError,
    NotFound,
    Refused,
    Rejected,
    StoreFailed,
    one_line,
)
from hansa.common.values.ids import ModelKey, community_key, reference_key, update_key
from hansa.common.values.receipts import Receipt
from hansa.controller.audit.check import check_job
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.auxiliary import Beside
from hansa.controller.community.merge import make
from hansa.controller.community.reading import Means
from hansa.controller.engine.events import UpdateArrived
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merge
from hansa.controller.jobs.records import NO_EVENTS, read_spec, replay
from hansa.controller.plugin.arithmetic import MergeInfo
from hansa.controller.rulebook.compose import composed_again
from hansa.controller.storage.backends import Backends
from hansa.controller.storage.journal import Entry, JobRecord
from hansa.controller.storage.stores import Draft, Store
from hansa.controller.values.members import Change, in_order

MEMORY = 256 << 20  # bytes for the numbers of many updates that are combined at once


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    where: str
    what: str


def verify(backends: Backends, record: JobRecord) -> tuple[Machine, int, list[Finding]]:
    """Return the job as its journal has it, the number of its receipts, and everything that disagrees."""
    spec = read_spec(record)
    machine = Machine(record.id, spec, composed_again(spec), record.at)
    machine.start()
    findings: list[Finding] = []
    receipts = 0
    updates: dict[ModelKey, str] = {}  # digests of updates as they are stored
    entries = backends.journal.entries(record.id)
    merge: Merge | None = None  # that made the newest version
    for entry in entries:
        plan = machine.state.plan
        try:
            event = replay(machine, entry)
        except Broken as error:
            findings.append(Finding(f"journal entry {entry.sequence}", str(error)))
            break
        if plan is not None and plan.version == machine.state.version:
            merge = plan
        findings += _check_receipt(entry, machine.issued)
        receipts += machine.issued is not None
        if isinstance(event, UpdateArrived):
            updates[update_key(event.task)] = event.decoded or event.digest
    if not entries and set(backends.store.keys(f"{record.id}/")) - {reference_key(record.id)}:
        findings.append(Finding("journal", NO_EVENTS))
    model_findings = list(_check_models(backends.store, machine, updates, merge))
    newest = entries[-1].sequence if entries else 0
    if model_findings and backends.journal.entries(record.id, newest):  # models were replaced meanwhile
        raise Refused(
            f"job {record.id} is under way: its models change while they are checked; verify it when it has"
            " ended, or stop the controller"
        )
    findings += model_findings
    findings += [Finding("audit log", fault) for fault in check_job(backends.journal, record)]
    return machine, receipts, findings


def _check_receipt(entry: Entry, issued: Receipt | None) -> Iterator[Finding]:
    """Compare a journaled receipt with the one that the engine issued in the replay."""
    where = f"receipt {entry.sequence}"
    if issued is None:
        if entry.receipt:
            yield Finding(where, "it belongs to an event that has no receipt")
        return
    try:
        journaled = Receipt.model_validate_json(entry.receipt)
    except ValueError:
        yield Finding(where, "it cannot be read")
        return
    if journaled != issued:
        fields = [name for name in Receipt.model_fields if getattr(journaled, name) != getattr(issued, name)]
        yield Finding(where, f"{', '.join(fields)}: not what follows from the journal's events")


def _check_models(
    store: Store, machine: Machine, updates: Mapping[ModelKey, str], merge: Merge | None
) -> Iterator[Finding]:
    """Check every model that the job still needs, then compute the newest community model again."""
    current = machine.state.current
    if current is None:
        return
    sound = True
    for key, digest in sorted(_digests(machine, current, updates).items()):
        for finding in _check_model(store, key, digest):
            sound = False
            yield finding
    if sound and machine.state.members and merge is not None:
        try:
            yield from _recompute(store, machine, current, merge)
        except (NotFound, Broken) as error:
            yield _lost(f"model {current}", error)


def _digests(machine: Machine, current: ModelKey, updates: Mapping[ModelKey, str]) -> dict[ModelKey, str]:
    """Return the digest that each model must have, for all models that the job still needs."""
    state = machine.state
    recorded = {**updates}
    recorded |= {community_key(machine.job, record.version): record.stored_digest for record in state.history}
    digests = {kept.key: kept.digest for by_name in state.kept.values() for kept in by_name.values()}
    digests |= {key: state.history[version].stored_digest for version, key in state.saved.items()}
    digests |= state.basis | {current: state.history[-1].stored_digest}
    digests |= {key: recorded[key] for key in state.models if key in recorded}
    if state.reference is not None and machine.spec.reference:
        digests[state.reference] = machine.spec.reference
    return digests


def _check_model(store: Store, key: ModelKey, digest: str) -> Iterator[Finding]:
    where = f"model {key}"
    try:
        with store.open(key) as model:
            if model.manifest.digest.hex() != digest:
                yield Finding(where, "its manifest is not the one that the receipts name")
                return
            check = FrameCheck(model.manifest)
            for index in range(model.layout.frames):
                check.feed(model.read(index))
            if check.sealer.peaks != list(model.peaks):
                yield Finding(where, "the magnitudes stored with it are not its own")
    except (NotFound, Broken, Rejected) as error:
        yield _lost(where, error)
    except ValueError as error:
        yield Finding(where, f"it cannot be read: {one_line(error)}")


def _lost(where: str, error: HansaError) -> Finding:
    """Return a finding for a model that the store has lost or damaged; if the store is unavailable, raise."""
    if isinstance(error, StoreFailed):
        raise error
    return Finding(where, str(error))


def _recompute(store: Store, machine: Machine, current: ModelKey, merge: Merge) -> Iterator[Finding]:
    """Compute the newest community model again from its updates and compare.

    If it follows from the updates alone, the previous model is gone and not needed: members are complete or
    cover every tensor.
    """
    state, rule = machine.state, machine.rule
    record = state.history[-1]
    members = in_order(state.members)
    counting = sum(update.weight is not None for update in record.updates)
    staleness = max((update.staleness[0] for update in record.updates), default=0)
    info = MergeInfo(record.version, staleness, counting, record.prepared)
    with ExitStack() as stack:
        stored = start = stack.enter_context(store.open(current))
        if rule.builds_on_current:
            start = stack.enter_context(store.open(_previous_version(machine)))
        keys = machine.moments(record.version - 1)
        before = {name: stack.enter_context(store.open(key)) for name, key in keys.items()}
        means = Means(store.open, stack.enter_context(ThreadPoolExecutor(2)), MEMORY)
        sums = Accumulator(stored.manifest.spec.own, kept=False)
        still = record.still and rule.builds_on_current  # the same sums give the same model, a step does not
        whole = Change(members, (), members, merge.added, still, merge.scope)
        beside = Beside(rule.auxiliary, merge.sites, merge.resets)
        recomputed = make(
            rule.merge, rule.server, sums, whole, start, before, info, means, lambda *_: _Nowhere(), beside
        )
        compared = [i for i, tensor in enumerate(stored.manifest.spec.tensors) if tensor.is_float]
        wrong = [i for i in compared if recomputed.manifest.digests[i] != stored.manifest.digests[i]]
        if wrong:
            name = stored.manifest.spec.tensors[wrong[0]].name
            yield Finding(
                f"model {current}",
                f"tensor {name} is not what the rule computes from the updates that receipts name",
            )
        for name, key in machine.moments(record.version).items():
            if recomputed.moments[name].digest.hex() != state.basis[key]:
                yield Finding(
                    f"model {key}",
                    "it is not what the server update computes from the updates that receipts name",
                )


def _previous_version(machine: Machine) -> ModelKey:
    """Return the model that the newest version was made from."""
    newest = machine.state.version
    moments = {key for version in (newest, newest - 1) for key in machine.moments(version).values()}
    (key,) = set(machine.state.basis) - moments
    return key


class _Nowhere(Draft):
    """A draft that keeps nothing: only the digest of the model is needed."""

    def write(self, index: int, frame: Buffer) -> None:
        pass

    def publish(self, manifest: Manifest, peaks: object) -> None:
        pass

    def discard(self) -> None:
        pass
