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
from hansa.common.values.words import suggestion
from hansa.controller.rulebook.compose import objections

SETTINGS: Mapping[str, Mapping[str, Any]] = {  # outside the parts of a rule, that some rules do not go with
    "train.until": {"train": {"until": {}}},
    "train.batches": {"train": {"batches": 1}},
    "validation.fraction: 0": {"validation": {"fraction": 0}},
    "sites.together: 2": {"sites": {"min": 2, "together": 2}},
}


@click.group()
def rules() -> None:
    """Look up the rules a job can name."""


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
    """Show a rule: its parts, their parameters, what else each part could be and what is refused."""
    known = plugins.rules()
    if name not in known:
        hint = suggestion(name, list(known)) or "; see `hansa rules list`"
        raise NotFound(f"there is no rule {name!r}{hint}{plugins.not_loaded()}")
    rule = known[name]
    refused = {point: dict(_refused(rule, point)) for point in POINTS}
    tried = {setting: _against(rule, change) for setting, change in SETTINGS.items()}
    elsewhere = {
        setting: "; ".join(located(each, {}) for each in found) for setting, found in tried.items() if found
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
    """Return a part with its parameters as the rule has them."""
    start = rule.part(point)
    kind = str(start["kind"])
    cls = plugins.kinds(point)[kind]
    parameters = _parameters(cls, start)
    if point == TRAIN:
        parameters = [each for each in parameters if f"{TRAIN}.{each['name']}" not in dict(_sections(rule))]
    return {"kind": kind, "summary": summary_of(cls), "parameters": parameters}


def _sections(rule: Rule) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield what a job file says in a section of its own of how long sites train, such as `train.until`."""
    cls = plugins.kinds(TRAIN)[str(rule.part(TRAIN)["kind"])]
    for name, field in cls.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Value):
            yield f"{TRAIN}.{name}", _parameters(field.annotation, {})


def _parameters(cls: type[Value], start: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the fields of a plugin or section: names, what they start from, what they mean."""
    found = []
    for name, field in cls.model_fields.items():
        said = field.alias or name
        usual = (
            None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        )
        default = to_jsonable_python(start.get(said, usual), fallback=str)
        lacking = {"required": True} if field.is_required() and said not in start else {}
        found.append({"name": said, "default": default, "meaning": field.description or ""} | lacking)
    return found


def _print_parameters(parameters: Iterable[Mapping[str, Any]]) -> None:
    for field in parameters:
        default = "(required)" if field.get("required") else _shown(field["default"])
        click.echo(f"    {field['name']} = {default}  {field['meaning']}")


def _shown(default: object) -> str:
    """Return a default as one writes it in a job file."""
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default in (None, {}, []) else str(default)


def _refused(rule: Rule, point: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds that this rule cannot have at a point, and why: each is tried."""
    for kind in sorted(plugins.kinds(point)):
        found = _against(rule, {point: {"kind": kind}})
        if found:
            yield kind, "; ".join(text for _, text in found)


def _against(rule: Rule, change: Mapping[str, Any]) -> list[Problem]:
    """Return what speaks against a job of this rule with a change; what is only missing, a job can give."""
    job = {"app": "app.py:app", "rule": rule.name, **change}
    faults = part_faults(job, final=True)
    if faults:
        return [fault for fault in faults if fault[1] != REQUIRED]
    return objections(JobSpec.model_validate(job))
