"""Verification of a job offline: do journal, receipts and stored models agree?

Every event is replayed through the engine, which yields the receipts that must be in the journal. Stored
models are read byte by byte against their digests, and the newest community model is computed again from its
updates. What no receipt speaks of (the job's own words, metrics, times) is compared with the digests in the
audit log.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hansa import __version__
from hansa.common.models.checkpoints import load_checkpoint, read_origin
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
from hansa.common.values.tasks import Receipt
from hansa.controller.audit.log import check_job
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.members import Change, in_order
from hansa.controller.community.merge import Means, make
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.records import NO_EVENTS, read_spec, replay
from hansa.controller.plugin.arithmetic import MergeInfo
from hansa.controller.rulebook.compose import composed_again
from hansa.controller.rulebook.resolve import resolved
from hansa.controller.storage.backends import Backends
from hansa.controller.storage.journal import Entry, JobRecord
from hansa.controller.storage.stores import Draft, Store

MEMORY = 256 << 20  # bytes for the numbers of many updates at the same place


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    where: str
    what: str


def verify(backends: Backends, record: JobRecord) -> tuple[Machine, int, list[Finding]]:
    """Return the job as its journal tells it, the number of receipts, and everything that does not agree."""
    spec = read_spec(record)
    machine = Machine(record.id, spec, composed_again(spec), record.at)
    machine.start()
    findings: list[Finding] = []
    receipts: list[Receipt] = []
    entries = backends.journal.entries(record.id)
    scope: frozenset[str] | None = None  # of the merge that made the newest version
    for entry in entries:
        plan = machine.state.plan
        try:
            replay(machine, entry)
        except Broken as error:
            findings.append(Finding(f"journal entry {entry.sequence}", str(error)))
            break
        if plan is not None and plan.version == machine.state.version:
            scope = plan.scope
        findings += _check_receipt(entry, machine.issued)
        if machine.issued:
            receipts.append(machine.issued)
    if not entries and set(backends.store.keys(f"{record.id}/")) - {reference_key(record.id)}:
        findings.append(Finding("journal", NO_EVENTS))
    wrong = list(_check_models(backends.store, machine, receipts, scope))
    newest = entries[-1].sequence if entries else 0
    if wrong and backends.journal.entries(
        record.id, newest
    ):  # models have been replaced since we began to look
        raise Refused(
            f"job {record.id} is under way: its models change while they are looked at; verify it when it has ended, or"
            " stop the controller"
        )
    findings += wrong
    findings += [Finding("audit log", fault) for fault in check_job(backends.journal, record)]
    return machine, len(receipts), findings


def _check_receipt(entry: Entry, wanted: Receipt | None) -> Iterator[Finding]:
    where = f"receipt {entry.sequence}"
    if wanted is None:
        if entry.receipt:
            yield Finding(where, "a receipt for an event that gives none")
        return
    try:
        held = Receipt.model_validate_json(entry.receipt)
    except ValueError:
        yield Finding(where, "it cannot be read")
        return
    if held != wanted:
        fields = [name for name in Receipt.model_fields if getattr(held, name) != getattr(wanted, name)]
        yield Finding(where, f"{', '.join(fields)}: not what the journal's events give")


def _check_models(
    store: Store, machine: Machine, receipts: list[Receipt], scope: frozenset[str] | None
) -> Iterator[Finding]:
    """Check every model that the job still needs, then compute the newest community model again."""
    current = machine.state.current
    if current is None:
        return
    known = {
        update_key(receipt.task): receipt.digest for receipt in receipts if receipt.task
    }  # merged or yet to be
    known |= {community_key(machine.job, record.version): record.digest for record in machine.state.history}
    kept = {each.key: each.digest for held in machine.state.kept.values() for each in held.values()}
    wanted = kept | machine.state.basis | {current: machine.state.history[-1].digest}
    wanted |= {key: known[key] for key in machine.state.models if key in known}
    if machine.state.reference is not None and machine.spec.reference:
        wanted[machine.state.reference] = machine.spec.reference
    sound = True
    for key, digest in sorted(wanted.items()):
        for finding in _check_model(store, key, digest):
            sound = False
            yield finding
    if sound and machine.state.members:
        try:
            yield from _recompute(store, machine, current, scope)
        except (NotFound, Broken) as error:
            yield _lost(f"model {current}", error)


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
                yield Finding(where, "the magnitudes kept beside it are not its own")
    except (NotFound, Broken, Rejected) as error:
        yield _lost(where, error)
    except ValueError as error:
        yield Finding(where, f"it cannot be read: {one_line(error)}")


def _lost(where: str, error: HansaError) -> Finding:
    """Return what an error of the store says about what it holds; a store that is away says nothing."""
    if isinstance(error, StoreFailed):
        raise error
    return Finding(where, str(error))


def _recompute(
    store: Store, machine: Machine, current: ModelKey, scope: frozenset[str] | None
) -> Iterator[Finding]:
    """Compute the newest community model from what it was made of and compare.

    Where the proposal is the next model (`plain`), the model before is gone: members are whole or cover every
    tensor.
    """
    state, rule = machine.state, machine.rule
    record = state.history[-1]
    members = in_order(state.members)
    info = MergeInfo(
        record.version, max((s for s, _ in record.staleness.values()), default=0), record.updates
    )
    with ExitStack() as stack:
        held = stack.enter_context(store.open(current))
        start = held
        if not rule.server.plain:
            start = stack.enter_context(store.open(_version_before(machine)))
        keys = machine.moments(record.version - 1)
        before = {name: stack.enter_context(store.open(key)) for name, key in keys.items()}
        means = Means(store.open, stack.enter_context(ThreadPoolExecutor(2)), MEMORY)
        sums = Accumulator(held.manifest.spec, kept=False)
        still = record.still and not rule.server.plain  # sums that stand give the same again, a step does not
        whole = Change(members, (), members, members, still, scope)
        made = make(rule.merge, rule.server, sums, whole, start, before, info, means, lambda *_: _Nowhere())
        compared = [i for i, tensor in enumerate(held.manifest.spec.tensors) if tensor.is_float]
        wrong = [i for i in compared if made.manifest.digests[i] != held.manifest.digests[i]]
        if wrong:
            name = held.manifest.spec.tensors[wrong[0]].name
            yield Finding(
                f"model {current}",
                f"tensor {name} is not what the rule makes of the updates that receipts name",
            )
        for name, key in machine.moments(record.version).items():
            if made.moments[name].digest.hex() != state.basis[key]:
                yield Finding(
                    f"model {key}", "it is not what the server update makes of the updates that receipts name"
                )


def _version_before(machine: Machine) -> ModelKey:
    """Return the model that the newest version was made from."""
    ours = {key for version in (0, 1) for key in machine.moments(machine.state.version - version).values()}
    (key,) = set(machine.state.basis) - ours
    return key


def check_export(file: Path, machine: Machine) -> Iterator[str]:
    """Yield what in an exported model, or in what it says of itself, is not as the job's receipts have it."""
    origin = read_origin(file)
    if origin is None:
        yield "it does not say which job made it: no `hansa job model` and no `hansa run` wrote it"
        return
    if origin.job != machine.job:
        yield f"it says that it is of job {origin.job}"
        return
    if not 0 <= origin.version <= machine.state.version:
        yield f"it says that it is version {origin.version}, which the job never had"
        return
    record = machine.state.history[origin.version]
    if origin.receipt != record.receipt:
        yield f"it names another receipt than the journal has for version {origin.version}"
    if load_checkpoint(file)[0].digest.hex() != record.digest:
        yield f"its tensors are not those of version {origin.version} that the receipt names"
    told, known = origin.resolved, resolved(machine.spec)
    if told and (told.made_with, told.init, told.reference) != (known.made_with, known.init, known.reference):
        yield "what it says of the software and models that the job was run with is not what was submitted"
    if (
        told and told.job != known.job and known.made_with.hansa == __version__
    ):  # defaults may differ elsewhere
        yield "what it says of the job is not what was submitted"


class _Nowhere(Draft):
    """A draft for a model that only its digest is wanted of."""

    def write(self, index: int, frame: Buffer) -> None:
        pass

    def publish(self, manifest: Manifest, peaks: object) -> None:
        pass

    def discard(self) -> None:
        pass
