"""Converts manifests, results and receipts to and from protobuf messages; `task_codec` converts tasks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hansa.common.models.model import MAX_TENSORS, Manifest, ModelSpec, Role, TensorInfo
from hansa.common.values.bounds import COLUMNS
from hansa.common.values.counts import Counts
from hansa.common.values.errors import Rejected, TooLarge
from hansa.common.values.ids import (
    JobId,
    SiteName,
    TaskId,
    identifier,
    odd_tensor,
)
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import Anatomy, Evaluation, Failure, Profile, Progress, UpdateFacts
from hansa.common.values.stated import TASKS, Stated
from hansa.common.values.wording.words import plain
from hansa.protos import fleet_pb2 as fleet
from hansa.protos import model_pb2 as model

DIGEST = 32  # bytes of a digest
ROLES = frozenset(role.value for role in Role)


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
    """Decode a manifest; `check_manifest` validates it."""
    if len(wire.tensors) > MAX_TENSORS or len(wire.layers) > MAX_TENSORS:
        raise TooLarge(
            f"{max(len(wire.tensors), len(wire.layers))} tensors or layers; at most {MAX_TENSORS} are allowed"
        )
    infos = []
    for t in wire.tensors:
        if t.role not in ROLES:
            raise Rejected(f"tensor {t.name[:40]!r} has no role")
        norm = t.norm if t.HasField("norm") else None
        infos.append(TensorInfo(t.name, t.dtype, tuple(t.shape), Role(t.role), t.layer, norm))
    return Manifest(ModelSpec(tuple(infos), tuple(wire.layers)), tuple(t.digest for t in wire.tensors))


def facts_to_wire(facts: UpdateFacts) -> fleet.UpdateFacts:
    """Encode what a learner knows about its update."""
    wire = fleet.UpdateFacts(**facts.model_dump(exclude={"evaluation", "anatomy"}))
    if facts.evaluation is not None:
        wire.evaluation.MergeFrom(evaluation_to_wire(facts.evaluation))
    if facts.anatomy is not None:
        ties = [fleet.Tie(tensors=tie) for tie in facts.anatomy.ties]
        anatomy = fleet.Anatomy(ties=ties, **facts.anatomy.model_dump(exclude={"ties"}))
        wire.anatomy.MergeFrom(anatomy)
    return wire


def facts_from_wire(wire: fleet.UpdateFacts, stated: Stated | None = None) -> UpdateFacts:
    """Decode what a learner knows about its update; raise ValueError if it is wrong or not as stated."""
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
        backbone=wire.backbone,
    )


def _anatomy_from_wire(wire: fleet.Anatomy) -> Anatomy:
    if sum(len(tie.tensors) for tie in wire.ties) > MAX_TENSORS:  # before millions of names are read
        raise ValueError(f"more than {MAX_TENSORS} names of tied tensors")
    if wrong := odd_tensor(name for tie in wire.ties for name in tie.tensors):
        raise ValueError(wrong)
    return Anatomy(
        ties=tuple(tuple(tie.tensors) for tie in wire.ties),
        blocks=tuple(wire.blocks),
        remarks=tuple(plain(remark) for remark in wire.remarks),
        frozen=tuple(wire.frozen),
        parameters=wire.parameters,
        frozen_parameters=wire.frozen_parameters,
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
    """Encode an evaluation; without examples it has no counts."""
    wire = fleet.Evaluation(personal=evaluation.personal, split=evaluation.split, **_measured(evaluation))
    if evaluation.validation is not None:
        wire.validation.MergeFrom(fleet.OwnEvaluation(**_measured(evaluation.validation)))
        if (own := evaluation.validation.own_model) is not None:
            wire.own_validation.MergeFrom(fleet.OwnEvaluation(**_measured(own)))
    if evaluation.own_model is not None:
        wire.own_model.MergeFrom(fleet.OwnEvaluation(**_measured(evaluation.own_model)))
    return wire


def _measured(evaluation: Evaluation) -> dict[str, Any]:
    confusion, labels = (evaluation.confusion, evaluation.labels) if evaluation.n else (Counts(), Counts())
    return {
        "n": evaluation.n,
        "loss_sum": evaluation.loss_sum,
        "classes": len(confusion),
        "confusion": confusion.array().reshape(-1).tolist(),
        "metrics": evaluation.metrics,
        "labels": labels.array().reshape(-1).tolist(),
    }


def profile_to_wire(profile: Profile) -> fleet.Profile:
    """Encode the statistics of a site's data."""
    return fleet.Profile(n=profile.n, mean=profile.mean, m2=profile.m2, classes=profile.classes)


def outcome_from_wire(
    wire: fleet.TaskReport, stated: Stated | None = None
) -> Evaluation | Profile | Failure | float:
    """Decode a report; raise ValueError if it is invalid or contradicts what the site has stated."""
    if wire.WhichOneof("outcome") == "profile":
        profile = wire.profile
        count = len(profile.classes)
        if stated and count and count != stated.classes:
            raise ValueError(f"{count} classes are counted, but the site has stated {stated.shape}")
        mean, m2, classes = tuple(profile.mean), tuple(profile.m2), tuple(profile.classes)
        return Profile(n=profile.n, mean=mean, m2=m2, classes=classes)
    if wire.WhichOneof("outcome") == "failure":
        failure = wire.failure
        return Failure(reason=plain(failure.reason), final=failure.final, unfit=failure.unfit)
    if wire.WhichOneof("outcome") == "probed":
        return wire.probed
    if wire.WhichOneof("outcome") is None:
        raise ValueError("a report without an outcome")
    if stated:
        require_stated(wire.evaluation, stated)
    return evaluation_from_wire(wire.evaluation)


def evaluation_from_wire(wire: fleet.Evaluation) -> Evaluation:
    """Decode an evaluation; raise ValueError if it is invalid."""
    personal = wire.personal and identifier(wire.personal, "task")
    own_model = Evaluation(**_read(wire.own_model)) if wire.HasField("own_model") else None
    beside = Evaluation(**_read(wire.own_validation)) if wire.HasField("own_validation") else None
    validation = (
        Evaluation(**_read(wire.validation), own_model=beside) if wire.HasField("validation") else None
    )
    split: Any = wire.split or "validation"
    return Evaluation(
        **_read(wire), personal=personal, own_model=own_model, split=split, validation=validation
    )


def _read(wire: fleet.Evaluation | fleet.OwnEvaluation) -> dict[str, Any]:
    if not wire.n and (wire.classes or wire.labels):  # there was nothing to count
        raise ValueError("a report of 0 examples has counts")
    if len(wire.confusion) != wire.classes**2:
        raise ValueError(f"{len(wire.confusion)} counts do not make a {wire.classes}×{wire.classes} matrix")
    if len(wire.labels) % 3 or len(wire.labels) > 3 * COLUMNS:  # before millions of counts are read
        raise ValueError(f"{len(wire.labels)} counts are not three for each of at most {COLUMNS} labels")
    return {
        "n": wire.n,
        "loss_sum": wire.loss_sum,
        "confusion": _table(wire.confusion, wire.classes),
        "labels": _table(wire.labels, 3),
        "metrics": dict(wire.metrics),
    }


def _table(cells: Sequence[int], columns: int) -> np.ndarray:
    return np.fromiter(cells, np.uint64, len(cells)).reshape(-1, columns or 1)


def require_stated(wire: fleet.Evaluation | fleet.OwnEvaluation, stated: Stated) -> None:
    """Refuse an evaluation that contradicts what its site has stated, before its counts are read."""
    if isinstance(wire, fleet.Evaluation) and wire.HasField("own_model"):
        require_stated(wire.own_model, stated)
    if isinstance(wire, fleet.Evaluation) and wire.HasField("validation"):
        require_stated(wire.validation, stated)
    if isinstance(wire, fleet.Evaluation) and wire.HasField("own_validation"):
        require_stated(wire.own_validation, stated)
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
    """Decode what a site states about an app; raise ValueError if it is invalid."""
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
        decoded=bytes.fromhex(receipt.decoded),
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
        decoded=wire.decoded.hex(),
        sequence=wire.sequence,
        previous=wire.previous.hex(),
        hash=wire.hash.hex(),
    )
