"""`hansa rules list|show`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
from pydantic_core import to_jsonable_python

from hansa.common.job.check import REQUIRED, located, part_faults
from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.check import summary_of
from hansa.common.plugins.registry import POINTS, TRAIN, Rule
from hansa.common.ui.options import json_option, print_json, print_table
from hansa.common.values.bounds import Value
from hansa.common.values.errors import NotFound
from hansa.common.values.wording.words import suggestion
from hansa.controller.rulebook.compose import objections

# Settings outside the parts of a rule that some rules refuse.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "train.until": {"train": {"until": {}}},
    "train.batches": {"train": {"batches": 1}},
    "validation.fraction: 0": {"validation": {"fraction": 0}},
    "sites.together: 2": {"sites": {"min": 2, "together": 2}},
}


@click.group()
def rules() -> None:
    """Look up the rules that a job can use."""


@rules.command("list")
@json_option
def list_rules(as_json: bool) -> None:
    """List the rules."""
    known = plugins.rules().values()
    if as_json:
        print_json([{"name": r.name, "summary": r.summary, "paper": r.paper} for r in known])
        return
    print_table(("rule", "what it does", "paper"), [(r.name, r.summary, r.paper) for r in known], "no rules")


@rules.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a rule: its parts and their parameters, the alternatives for each part, and what it refuses."""
    known = plugins.rules()
    if name not in known:
        hint = suggestion(name, list(known)) or "; see `hansa rules list`"
        raise NotFound(f"there is no rule {name!r}{hint}{plugins.not_loaded()}")
    rule = known[name]
    refused = {point: dict(_refused(rule, point)) for point in POINTS}
    tried = {setting: _objections(rule, change) for setting, change in SETTINGS.items()}
    elsewhere = {
        setting: "; ".join(located(problem, {}) for problem in problems)
        for setting, problems in tried.items()
        if problems
    }
    parts = {point: _describe(rule, point) for point in POINTS}
    duration, sections = _describe(rule, TRAIN), dict(_sections(rule))
    if as_json:
        whole = {point: part | {"refused": refused[point]} for point, part in parts.items()}
        more: dict[str, Any] = {**sections, TRAIN: {f["name"]: f["default"] for f in duration["parameters"]}}
        more |= {"refused": elsewhere}
        print_json({"name": rule.name, "summary": rule.summary, "paper": rule.paper, "parts": whole} | more)
        return
    click.echo(f"{rule.name}: {rule.summary}\n  {rule.paper}\n")
    for point, part in parts.items():
        click.echo(f"{point}: {part['kind']} — {part['summary']}")
        _print_parameters(part["parameters"])
        others = sorted(set(plugins.kinds(point)) - {part["kind"]} - set(refused[point]))
        if others:
            click.echo(f"    (or: {', '.join(others)})")
        for why in refused[point].values():
            click.echo(f"    (refused: {why})")
    click.echo(f"{TRAIN}: {duration['kind']} — {duration['summary']}")
    _print_parameters(duration["parameters"])
    for section, parameters in sections.items():
        click.echo(f"{section}: {duration['summary']}")
        _print_parameters(parameters)
    for setting, why in elsewhere.items():
        click.echo(f"{setting}\n    (refused: {why})")


def _describe(rule: Rule, point: str) -> dict[str, Any]:
    """Return a part with its parameters as the rule sets them."""
    defaults = rule.part(point)
    kind = str(defaults["kind"])
    cls = plugins.kinds(point)[kind]
    parameters = _parameters(cls, defaults)
    if point == TRAIN:
        parameters = [each for each in parameters if f"{TRAIN}.{each['name']}" not in dict(_sections(rule))]
    return {"kind": kind, "summary": summary_of(cls), "parameters": parameters}


def _sections(rule: Rule) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the parameters of a duration that have a section of their own in job files: `train.until`."""
    cls = plugins.kinds(TRAIN)[str(rule.part(TRAIN)["kind"])]
    for name, field in cls.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Value):
            yield f"{TRAIN}.{name}", _parameters(field.annotation, {})


def _parameters(cls: type[Value], defaults: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the fields of a plugin or section with their defaults (the rule's first) and descriptions."""
    parameters = []
    for attribute, field in cls.model_fields.items():
        name, usual = field.alias or attribute, None
        if not field.is_required():
            usual = field.get_default(call_default_factory=True, validated_data={})
        default = to_jsonable_python(defaults.get(name, usual), fallback=str)
        required = {"required": True} if field.is_required() and name not in defaults else {}
        parameters.append({"name": name, "default": default, "meaning": field.description or ""} | required)
    return parameters


def _print_parameters(parameters: Iterable[Mapping[str, Any]]) -> None:
    for field in parameters:
        default = "(required)" if field.get("required") else _shown(field["default"])
        click.echo(f"    {field['name']} = {default}  {field['meaning']}")


def _shown(default: object) -> str:
    """Return a default as it is written in a job file."""
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default in (None, {}, []) else str(default)


def _refused(rule: Rule, point: str) -> Iterator[tuple[str, str]]:
    """Try every kind at a point; yield those that the rule refuses, and why."""
    for kind in sorted(plugins.kinds(point)):
        problems = _objections(rule, {point: {"kind": kind}})
        if problems:
            yield kind, "; ".join(text for _, text in problems)


def _objections(rule: Rule, change: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a job with this rule and a change, except for fields that a job must set."""
    job = {"app": "app.py:app", "rule": rule.name, **change}
    faults = part_faults(job, final=True)
    if faults:
        return [fault for fault in faults if fault[1] != REQUIRED]
    return objections(JobSpec.model_validate(job))
