"""`hansa rules list|show`."""

import inspect
from typing import Any

import click

import hansa.controller.rules  # noqa: F401 - registers the built-in rules
from hansa.common import plugins
from hansa.common.errors import NotFound
from hansa.common.ui.options import json_option, print_json, print_table
from hansa.common.words import suggestion


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
    """Show a rule: its parts, their parameters and what else each part could be."""
    known = plugins.rules()
    if name not in known:
        raise NotFound(f"there is no rule {name!r}" + suggestion(name, list(known)))
    rule = known[name]
    parts = {point: _describe(point, str(part["kind"])) for point, part in rule.parts.items()}
    if as_json:
        print_json({"name": rule.name, "summary": rule.summary, "paper": rule.paper, "parts": parts})
        return
    click.echo(f"{rule.name}: {rule.summary}\n  {rule.paper}\n")
    for point, part in parts.items():
        click.echo(f"{point}: {part['kind']} — {part['summary']}")
        for field in part["parameters"]:
            click.echo(f"    {field['name']} = {field['default']}  {field['meaning']}")
        others = [kind for kind in plugins.kinds(point) if kind != part["kind"]]
        if others:
            click.echo(f"    (or: {', '.join(sorted(others))})")


def _describe(point: str, kind: str) -> dict[str, Any]:
    cls = plugins.kinds(point)[kind]
    parameters = [
        {"name": field.alias or name, "default": field.default, "meaning": field.description or ""}
        for name, field in cls.model_fields.items()
    ]
    return {"kind": kind, "summary": (inspect.getdoc(cls) or "").splitlines()[0], "parameters": parameters}
