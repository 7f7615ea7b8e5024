"""How long sites train: a job's `train.epochs`, `train.batches` or `train.until` as a part of the rule."""

from typing import Any

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import TRAIN, Plugin, Rule, fill, kinds

SPELLING = ("epochs", "batches", "until")  # under `train`; the last two are kinds of their own


def duration_of(spec: JobSpec, rule: Rule) -> Plugin:
    """Return the rule's duration with what the job says of it. Raises KeyError or ValidationError."""
    start, given = rule.part(TRAIN), _given(spec)
    kind = next((name for name in ("batches", "until") if name in given), start["kind"])
    known = kinds(TRAIN)[str(kind)].model_fields
    return fill(
        TRAIN,
        rule,
        {"kind": kind} | {name: value for name, value in (start | given).items() if name in known},
    )


def not_meant(spec: JobSpec, rule: Rule, duration: Plugin) -> list[Problem]:
    """Return what a job says under `train` that its duration has no use for, and what to say instead."""
    takes = [name for name in SPELLING if name in type(duration).model_fields]
    instead = f"leave {{name}} out, or set {takes[0]} instead" if takes else "leave {name} out"
    reason = f"rule {rule.name} takes {' and '.join(takes) or duration.kind}"
    return [
        (
            (TRAIN, name),
            f"{reason}, not {name}: {instead.format(name=name)}",
        )
        for name in _given(spec)
        if name not in takes
    ]


def _given(spec: JobSpec) -> dict[str, Any]:
    fields = {name: getattr(spec.train, name) for name in SPELLING}
    return {name: value for name, value in fields.items() if value is not None}
