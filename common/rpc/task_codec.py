"""Converts tasks to and from protobuf messages."""

import json
from collections.abc import Iterable

from hansa.common.values.bounds import AUXILIARY, PATTERNS, PLUGINS
from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import (
    LONGEST,
    TENSOR,
    JobId,
    ModelKey,
    TaskId,
    identifier,
    odd_tensor,
    site_name,
)
from hansa.common.values.settings.optimizers import ALWAYS, OptimizerSpec, ScheduleSpec
from hansa.common.values.settings.training import (
    AuxiliarySpec,
    LocalPluginSpec,
    Standard,
    Travel,
    ValidationSpec,
)
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Terms, Train
from hansa.protos import fleet_pb2 as fleet


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
    wire.backbone = task.backbone
    if not task.travel.whole:
        wire.travel.MergeFrom(fleet.Travel(**task.travel.model_dump()))
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
            wire.train.MergeFrom(_train_to_wire(work))
        case Evaluate() as work:
            wire.evaluate.model = work.model
            wire.evaluate.base = work.base or ""
            wire.evaluate.version = work.version
            wire.evaluate.validation = work.validation
            wire.evaluate.own_model = work.own_model
            wire.evaluate.both = work.both
    return wire


def _train_to_wire(work: Train) -> fleet.TrainWork:
    wire = fleet.TrainWork()
    wire.model = work.model
    wire.base = work.base or ""
    wire.version = work.version
    wire.tensors.extend(work.tensors)
    wire.committed = work.committed
    wire.epochs = work.epochs
    wire.personal_epochs = work.personal_epochs
    wire.steps = work.steps
    wire.batches = work.batches
    wire.after = work.after
    wire.batch_size = work.batch_size
    wire.optimizer.MergeFrom(_optimizer_to_wire(work.optimizer))
    wire.validate = work.validate_update
    wire.plugins.extend(_plugin_to_wire(plugin) for plugin in work.plugins)
    wire.keep_optimizer = work.keep_optimizer
    if work.schedule.changes:
        wire.schedule.MergeFrom(_schedule_to_wire(work.schedule))
    wire.clip, wire.accumulate = work.clip, work.accumulate
    wire.bf16, wire.max_seconds = work.precision == "bf16", work.max_seconds
    wire.auxiliary.extend(fleet.Auxiliary(**each.model_dump()) for each in work.auxiliary)
    if work.source is not None:
        wire.source.MergeFrom(_plugin_to_wire(work.source))
    if work.encoding is not None:
        wire.encoding.MergeFrom(_plugin_to_wire(work.encoding))
    return wire


def task_from_wire(wire: fleet.Task) -> Task:
    """Decode a task; raise InvalidInput for names that no controller gives."""
    work: Survey | Init | Probe | Train | Evaluate
    match wire.WhichOneof("work"):
        case "survey":
            survey = wire.survey
            work = Survey(moments=survey.moments, columns=survey.columns or None, classes=survey.classes)
        case "init":
            work = Init()
        case "probe":
            probe = wire.probe
            plugin = _plugin_from_wire(probe.plugin)
            work = Probe(model=_key(probe.model), batch_size=probe.batch_size, plugin=plugin)
        case "train":
            work = Train(
                model=_key(wire.train.model),
                base=_key(wire.train.base) if wire.train.base else None,
                version=wire.train.version,
                tensors=_tensors(wire.train.tensors),
                committed=wire.train.committed,
                epochs=wire.train.epochs,
                personal_epochs=wire.train.personal_epochs,
                steps=wire.train.steps,
                batches=wire.train.batches,
                after=wire.train.after and identifier(wire.train.after, "task"),
                batch_size=wire.train.batch_size,
                optimizer=_optimizer_from_wire(wire.train.optimizer),
                plugins=tuple(_plugin_from_wire(plugin) for plugin in wire.train.plugins[: PLUGINS + 1]),
                validate_update=wire.train.validate,
                keep_optimizer=wire.train.keep_optimizer,
                schedule=_schedule_from_wire(wire.train.schedule)
                if wire.train.HasField("schedule")
                else ScheduleSpec(),
                clip=wire.train.clip,
                accumulate=wire.train.accumulate,
                precision="bf16" if wire.train.bf16 else "float32",
                max_seconds=wire.train.max_seconds,
                source=_plugin_from_wire(wire.train.source) if wire.train.HasField("source") else None,
                encoding=_plugin_from_wire(wire.train.encoding) if wire.train.HasField("encoding") else None,
                auxiliary=tuple(_auxiliary_from_wire(each) for each in wire.train.auxiliary[: AUXILIARY + 1]),
            )
        case "evaluate":
            work = Evaluate(
                model=_key(wire.evaluate.model),
                base=_key(wire.evaluate.base) if wire.evaluate.base else None,
                version=wire.evaluate.version,
                validation=wire.evaluate.validation,
                own_model=wire.evaluate.own_model,
                both=wire.evaluate.both,
            )
        case _:
            raise InvalidInput("the task has no work")
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
        travel=_travel_from_wire(wire.travel) if wire.HasField("travel") else Travel(),
        backbone=wire.backbone,
        terms=Terms(**{field: getattr(wire.terms, field) for field in Terms.model_fields}),
    )


def _key(text: str) -> ModelKey:
    if len(text) > LONGEST or not TENSOR.fullmatch(text):
        raise InvalidInput(f"{text[:40]!r} is not the key of a model")
    return ModelKey(text)


def _tensors(names: Iterable[str]) -> tuple[str, ...]:
    tensors = tuple(names)
    if wrong := odd_tensor(tensors):
        raise InvalidInput(wrong)
    return tensors


def _plugin_to_wire(plugin: LocalPluginSpec) -> fleet.LocalPlugin:
    return fleet.LocalPlugin(name=plugin.name, args=json.dumps(plugin.args))


def _plugin_from_wire(wire: fleet.LocalPlugin) -> LocalPluginSpec:
    return LocalPluginSpec(name=identifier(wire.name, "plugin"), args=json.loads(wire.args))


def _auxiliary_from_wire(wire: fleet.Auxiliary) -> AuxiliarySpec:
    return AuxiliarySpec(name=wire.name, down=wire.down, up=wire.up, reset=wire.reset)


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


def _travel_from_wire(wire: fleet.Travel) -> Travel:
    return Travel.model_validate(
        {
            "kind": wire.kind,
            "match": tuple(wire.match[: PATTERNS + 1]),
            "norm": wire.norm,
            "last": wire.last,
            "personal": tuple(wire.personal[: PATTERNS + 1]),
        }
    )


def _optimizer_to_wire(spec: OptimizerSpec) -> fleet.Optimizer:
    common = {name: getattr(spec, name) for name in ("kind", "lr", *ALWAYS)}
    return fleet.Optimizer(**common, more=json.dumps(spec.more))


def _optimizer_from_wire(wire: fleet.Optimizer) -> OptimizerSpec:
    more = json.loads(wire.more or "{}")
    common = {name: getattr(wire, name) for name in ("kind", "lr", *ALWAYS)}
    if not isinstance(more, dict) or more.keys() & common.keys():
        raise InvalidInput("the further fields of the optimizer are not an object of their own")
    return OptimizerSpec.model_validate(common | more)


def _schedule_to_wire(spec: ScheduleSpec) -> fleet.Schedule:
    return fleet.Schedule(
        kind=spec.kind, every=spec.every or 0, factor=spec.factor or 0, over=spec.over or 0, least=spec.least
    )


def _schedule_from_wire(wire: fleet.Schedule) -> ScheduleSpec:
    return ScheduleSpec.model_validate(
        {
            "kind": wire.kind,
            "by": "step",
            "every": wire.every or None,
            "factor": wire.factor or None,
            "over": wire.over or None,
            "least": wire.least,
        }
    )
