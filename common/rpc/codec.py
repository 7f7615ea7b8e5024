"""The one module that knows both our values and protobuf."""

import json
from collections.abc import Iterable, Sequence

import numpy as np

from hansa.common.models.model import MAX_TENSORS, Manifest, ModelSpec, Role, TensorInfo
from hansa.common.values.bounds import COLUMNS, PLUGINS
from hansa.common.values.counts import Counts
from hansa.common.values.errors import InvalidInput, Rejected, TooLarge
from hansa.common.values.ids import (
    LONGEST,
    TENSOR,
    JobId,
    ModelKey,
    SiteName,
    TaskId,
    identifier,
    odd_tensor,
    site_name,
)
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import Anatomy, Evaluation, Failure, Profile, Progress, UpdateFacts
from hansa.common.values.stated import TASKS, Stated
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Terms, Train
from hansa.common.values.training import LocalPluginSpec, OptimizerSpec, Standard, ValidationSpec
from hansa.common.values.words import plain
from hansa.protos import fleet_pb2 as fleet
from hansa.protos import model_pb2 as model

DIGEST = 32  # bytes of a digest


def manifest_to_wire(manifest: Manifest) -> model.Manifest:
    """Encode a manifest."""
    wire = model.Manifest(layers=manifest.spec.layers)
    for info, digest in zip(manifest.spec.tensors, manifest.digests, strict=True):
        wire.tensors.add(
            name=info.name,
            dtype=info.dtype,
            shape=info.shape,
            role=model.Role.ValueType(info.role.value),
            layer=info.layer,
            digest=digest,
            norm=info.norm,
        )
    return wire


def manifest_from_wire(wire: model.Manifest) -> Manifest:
    """Decode a manifest; `check_manifest` says whether it makes sense."""
    if len(wire.tensors) > MAX_TENSORS or len(wire.layers) > MAX_TENSORS:
        raise TooLarge(
            f"{max(len(wire.tensors), len(wire.layers))} tensors or layers; at most {MAX_TENSORS} are allowed"
        )
    infos = []
    for t in wire.tensors:
        if t.role not in (1, 2, 3):
            raise Rejected(f"tensor {t.name[:40]!r} has no role")
        norm = t.norm if t.HasField("norm") else None
        infos.append(TensorInfo(t.name, t.dtype, tuple(t.shape), Role(t.role), t.layer, norm))
    return Manifest(ModelSpec(tuple(infos), tuple(wire.layers)), tuple(t.digest for t in wire.tensors))


def task_to_wire(task: Task) -> fleet.Task:
    """Encode a task."""
    wire = fleet.Task(
        id=task.id, job=task.job, site=task.site, round=task.round, app=task.app, seed=task.seed
    )
    wire.hop, wire.slot, wire.turn = task.hop, task.slot, task.turn
    wire.validation.fraction = task.validation.fraction
    wire.validation.stratified = task.validation.stratified
    wire.terms.MergeFrom(fleet.Terms(**task.terms.model_dump()))
    wire.local_statistics = task.local_statistics
    if task.standard is not None:
        wire.standard.MergeFrom(_standard_to_wire(task.standard))
    match task.work:
        case Survey() as work:
            wire.survey.SetInParent()
            wire.survey.moments = work.moments
            wire.survey.columns = work.columns or 0
            wire.survey.classes = work.classes
        case Init():
            wire.init.SetInParent()
        case Probe() as work:
            wire.probe.model = work.model
            wire.probe.batch_size = work.batch_size
            wire.probe.plugin.MergeFrom(_plugin_to_wire(work.plugin))
        case Train() as work:
            wire.train.model = work.model
            wire.train.base = work.base or ""
            wire.train.version = work.version
            wire.train.tensors.extend(work.tensors)
            wire.train.committed = work.committed
            wire.train.epochs = work.epochs
            wire.train.steps = work.steps
            wire.train.batches = work.batches
            wire.train.after = work.after
            wire.train.batch_size = work.batch_size
            wire.train.optimizer.MergeFrom(fleet.Optimizer(**work.optimizer.model_dump()))
            wire.train.validate = work.validate_update
            wire.train.plugins.extend(_plugin_to_wire(plugin) for plugin in work.plugins)
            wire.train.keep_optimizer = work.keep_optimizer
            if work.source is not None:
                wire.train.source.MergeFrom(_plugin_to_wire(work.source))
        case Evaluate() as work:
            wire.evaluate.model = work.model
            wire.evaluate.base = work.base or ""
            wire.evaluate.version = work.version
            wire.evaluate.validation = work.validation
    return wire


def task_from_wire(wire: fleet.Task) -> Task:
    """Decode a task; names that no controller gives raise InvalidInput."""
    work: Survey | Init | Probe | Train | Evaluate
    match wire.WhichOneof("work"):
        case "survey":
            asked = wire.survey
            work = Survey(moments=asked.moments, columns=asked.columns or None, classes=asked.classes)
        case "init":
            work = Init()
        case "probe":
            wanted = wire.probe
            plugin = _plugin_from_wire(wanted.plugin)
            work = Probe(model=_key(wanted.model), batch_size=wanted.batch_size, plugin=plugin)
        case "train":
            work = Train(
                model=_key(wire.train.model),
                base=_key(wire.train.base) if wire.train.base else None,
                version=wire.train.version,
                tensors=_tensors(wire.train.tensors),
                committed=wire.train.committed,
                epochs=wire.train.epochs,
                steps=wire.train.steps,
                batches=wire.train.batches,
                after=wire.train.after and identifier(wire.train.after, "task"),
                batch_size=wire.train.batch_size,
                optimizer=OptimizerSpec.model_validate(_fields(wire.train.optimizer)),
                plugins=tuple(_plugin_from_wire(plugin) for plugin in wire.train.plugins[: PLUGINS + 1]),
                validate_update=wire.train.validate,
                keep_optimizer=wire.train.keep_optimizer,
                source=_plugin_from_wire(wire.train.source) if wire.train.HasField("source") else None,
            )
        case "evaluate":
            asked_for = wire.evaluate
            work = Evaluate(
                model=_key(asked_for.model),
                base=_key(asked_for.base) if asked_for.base else None,
                version=asked_for.version,
                validation=asked_for.validation,
            )
        case _:
            raise InvalidInput("a task without work")
    return Task(
        id=TaskId(identifier(wire.id, "task")),
        job=JobId(identifier(wire.job, "job")),
        site=site_name(wire.site),
        round=wire.round,
        app=wire.app,
        seed=wire.seed,
        validation=ValidationSpec(fraction=wire.validation.fraction, stratified=wire.validation.stratified),
        standard=_standard_from_wire(wire.standard) if wire.HasField("standard") else None,
        work=work,
        hop=wire.hop,
        slot=wire.slot,
        turn=wire.turn,
        local_statistics=wire.local_statistics,
        terms=Terms(**{field: getattr(wire.terms, field) for field in Terms.model_fields}),
    )


def _key(text: str) -> ModelKey:
    if len(text) > LONGEST or not TENSOR.fullmatch(text):
        raise InvalidInput(f"{text[:40]!r} is not the key of a model")
    return ModelKey(text)


def _tensors(names: Iterable[str]) -> tuple[str, ...]:
    given = tuple(names)
    if wrong := odd_tensor(given):
        raise InvalidInput(wrong)
    return given


def _plugin_to_wire(plugin: LocalPluginSpec) -> fleet.LocalPlugin:
    return fleet.LocalPlugin(name=plugin.name, args=json.dumps(plugin.args))


def _plugin_from_wire(wire: fleet.LocalPlugin) -> LocalPluginSpec:
    return LocalPluginSpec(name=identifier(wire.name, "plugin"), args=json.loads(wire.args))


def _standard_to_wire(standard: Standard) -> fleet.Standard:
    return fleet.Standard(
        local=standard.kind == "local",
        columns=standard.columns or 0,
        mean=standard.mean,
        deviation=standard.deviation,
    )


def _standard_from_wire(wire: fleet.Standard) -> Standard:
    return Standard(
        kind="local" if wire.local else "global",
        columns=wire.columns or None,
        mean=tuple(wire.mean),
        deviation=tuple(wire.deviation),
    )


def _fields(wire: fleet.Optimizer) -> dict[str, object]:
    return {field: getattr(wire, field) for field in OptimizerSpec.model_fields}


def facts_to_wire(facts: UpdateFacts) -> fleet.UpdateFacts:
    """Encode what a learner knows of its update."""
    wire = fleet.UpdateFacts(**facts.model_dump(exclude={"evaluation", "anatomy"}))
    if facts.evaluation is not None:
        wire.evaluation.MergeFrom(evaluation_to_wire(facts.evaluation))
    if facts.anatomy is not None:
        ties = [fleet.Tie(tensors=tie) for tie in facts.anatomy.ties]
        told = fleet.Anatomy(ties=ties, **facts.anatomy.model_dump(exclude={"ties"}))
        wire.anatomy.MergeFrom(told)
    return wire


def facts_from_wire(wire: fleet.UpdateFacts, stated: Stated | None = None) -> UpdateFacts:
    """Decode what a learner knows of its update; nonsense, or what it has not stated, raises ValueError."""
    if stated and wire.HasField("evaluation"):
        require_stated(wire.evaluation, stated)
    return UpdateFacts(
        n_train=wire.n_train,
        n_used=wire.n_used,
        steps=wire.steps,
        epochs=wire.epochs,
        seconds=wire.seconds,
        loss=wire.loss,
        evaluation=evaluation_from_wire(wire.evaluation) if wire.HasField("evaluation") else None,
        metrics=dict(wire.metrics),
        anatomy=_anatomy_from_wire(wire.anatomy) if wire.HasField("anatomy") else None,
    )


def _anatomy_from_wire(wire: fleet.Anatomy) -> Anatomy:
    if sum(len(tie.tensors) for tie in wire.ties) > MAX_TENSORS:  # before millions of names are looked at
        raise ValueError(f"more than {MAX_TENSORS} names of tied tensors")
    if wrong := odd_tensor(name for tie in wire.ties for name in tie.tensors):
        raise ValueError(wrong)
    return Anatomy(
        ties=tuple(tuple(tie.tensors) for tie in wire.ties),
        blocks=tuple(wire.blocks),
        remarks=tuple(plain(remark) for remark in wire.remarks),
        frozen=tuple(wire.frozen),
    )


def progress_to_wire(progress: Progress) -> fleet.Progress:
    """Encode a progress note."""
    return fleet.Progress(**progress.model_dump())


def progress_from_wire(wire: fleet.Progress) -> Progress:
    """Decode a progress note."""
    return Progress(
        task=TaskId(wire.task), epoch=wire.epoch, epochs=wire.epochs, steps=wire.steps, loss=wire.loss
    )


def evaluation_to_wire(evaluation: Evaluation) -> fleet.Evaluation:
    """Encode an evaluation; one of no examples has no counts."""
    confusion, labels = (evaluation.confusion, evaluation.labels) if evaluation.n else (Counts(), Counts())
    return fleet.Evaluation(
        n=evaluation.n,
        loss_sum=evaluation.loss_sum,
        classes=len(confusion),
        confusion=confusion.array().reshape(-1).tolist(),
        metrics=evaluation.metrics,
        labels=labels.array().reshape(-1).tolist(),
    )


def profile_to_wire(profile: Profile) -> fleet.Profile:
    """Encode what a site tells of its data."""
    return fleet.Profile(n=profile.n, mean=profile.mean, m2=profile.m2, classes=profile.classes)


def outcome_from_wire(
    wire: fleet.TaskReport, stated: Stated | None = None
) -> Evaluation | Profile | Failure | float:
    """Decode a report; nonsense, or what does not fit what the site has stated, raises ValueError."""
    if wire.WhichOneof("outcome") == "profile":
        told = wire.profile
        if stated and told.classes and len(told.classes) != stated.classes:
            raise ValueError(
                f"{len(told.classes)} classes are counted, but the site has stated {stated.shape}"
            )
        return Profile(n=told.n, mean=tuple(told.mean), m2=tuple(told.m2), classes=tuple(told.classes))
    if wire.WhichOneof("outcome") == "failure":
        return Failure(reason=plain(wire.failure.reason), final=wire.failure.final)
    if wire.WhichOneof("outcome") == "importance":
        return wire.importance
    if wire.WhichOneof("outcome") is None:
        raise ValueError("a report without an outcome")
    if stated:
        require_stated(wire.evaluation, stated)
    return evaluation_from_wire(wire.evaluation)


def evaluation_from_wire(found: fleet.Evaluation) -> Evaluation:
    """Decode an evaluation; nonsense raises ValueError."""
    if not found.n and (found.classes or found.labels):  # no example was counted
        raise ValueError("a report of 0 examples has counts")
    if len(found.confusion) != found.classes**2:
        raise ValueError(
            f"{len(found.confusion)} counts do not make a {found.classes}×{found.classes} matrix"
        )
    if len(found.labels) % 3 or len(found.labels) > 3 * COLUMNS:  # before millions of counts are looked at
        raise ValueError(f"{len(found.labels)} counts are not three for each of at most {COLUMNS} labels")
    return Evaluation(
        n=found.n,
        loss_sum=found.loss_sum,
        confusion=_table(found.confusion, found.classes),
        labels=_table(found.labels, 3),
        metrics=dict(found.metrics),
    )


def _table(cells: Sequence[int], columns: int) -> np.ndarray:
    return np.fromiter(cells, np.uint64, len(cells)).reshape(-1, columns or 1)


def require_stated(wire: fleet.Evaluation, stated: Stated) -> None:
    """Refuse an evaluation that is not of the kind its site has stated, before its counts are looked at."""
    if not wire.n and not wire.classes and not wire.labels:
        return
    if wire.classes not in stated.matrix:
        raise ValueError(
            f"a confusion matrix of {wire.classes} classes, but the site has stated {stated.shape}"
        )
    if len(wire.labels) not in [3 * labels for labels in stated.labels]:
        raise ValueError(f"{len(wire.labels)} counts of labels, but the site has stated {stated.shape}")


def app_to_wire(ref: str, examples: int, stated: Stated) -> fleet.AppState:
    """Encode an app that can be used."""
    return fleet.AppState(
        ref=ref,
        examples=examples,
        task=stated.task,
        classes=stated.classes,
        source=bytes.fromhex(stated.source),
        changed=stated.changed,
    )


def stated_from_wire(wire: fleet.AppState) -> Stated:
    """Decode what a site states of an app; nonsense raises ValueError."""
    if wire.task not in ("", *TASKS):
        raise ValueError(f"task {plain(wire.task, 40)!r}: a site states one of {', '.join(TASKS)}")
    if len(wire.source) > DIGEST:
        raise ValueError(f"the digest of an app has at most {DIGEST} bytes")
    return Stated(task=wire.task, classes=wire.classes, source=wire.source.hex(), changed=wire.changed)


def receipt_to_wire(receipt: Receipt) -> fleet.Receipt:
    """Encode a receipt."""
    return fleet.Receipt(
        job=receipt.job,
        task=receipt.task,
        site=receipt.site,
        digest=bytes.fromhex(receipt.digest),
        sequence=receipt.sequence,
        previous=bytes.fromhex(receipt.previous),
        hash=bytes.fromhex(receipt.hash),
    )


def receipt_from_wire(wire: fleet.Receipt) -> Receipt:
    """Decode a receipt."""
    return Receipt(
        job=JobId(wire.job),
        task=TaskId(wire.task),
        site=SiteName(wire.site),
        digest=wire.digest.hex(),
        sequence=wire.sequence,
        previous=wire.previous.hex(),
        hash=wire.hash.hex(),
    )
