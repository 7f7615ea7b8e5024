"""Defaults for options from a TOML file. Flags take precedence, then HANSA_* variables, then the file.

[operator]                      # job and site commands, sweeps
controller = "10.0.0.5:7300"
[learner]                       # hansa learner start|stop|status
site = "st-mary"
[dashboard]                     # hansa dashboard, besides what it takes from [operator]
listen = "127.0.0.1:7380"
"""

import os
from pathlib import Path
from typing import Any

import click

from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import suggestion

PLACES = (Path("hansa.toml"), Path("~/.config/hansa/hansa.toml"))
GROUPS = {
    "controller": ("start", "stop", "logs"),
    "learner": ("start", "stop", "status", "logs", "model"),
    "evaluator": ("start", "stop", "status", "logs"),
}
OPERATOR = {
    "job": ("submit", "list", "show", "watch", "events", "cancel", "delete", "model", "compare", "export"),
    "site": ("list", "logs"),
    "audit": ("show",),
    "controller": ("status", "health"),
}
OPERATORS_OWN = ("sweep",)  # commands that are not in a group
DASHBOARD = "dashboard"


def defaults(given: str | None) -> dict[str, Any]:
    """Return click's default map for all commands."""
    path = _find(given)
    if path is None:
        return {}
    import tomllib

    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path}: {error}") from None
    sections = [*GROUPS, "operator", DASHBOARD]
    unknown = sorted(set(document) - set(sections))
    if unknown:
        raise InvalidInput(f"{path}: unknown section [{unknown[0]}]; known: {', '.join(sections)}")
    options = {
        group: dict.fromkeys(commands, _options(document, group, path)) for group, commands in GROUPS.items()
    }
    for group, commands in OPERATOR.items():
        of_operator = dict.fromkeys(commands, _options(document, "operator", path))
        options[group] = options.get(group, {}) | of_operator
    operators = _options(document, "operator", path)
    options[DASHBOARD] = operators | _options(document, DASHBOARD, path)
    return options | dict.fromkeys(OPERATORS_OWN, operators)


def _find(given: str | None) -> Path | None:
    if given == os.devnull:
        return None  # no file at all, not even one of PLACES
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise InvalidInput(f"--config {given}: no such file")
        return path
    return next((place.expanduser() for place in PLACES if place.expanduser().is_file()), None)


def _options(document: dict[str, Any], section: str, path: Path) -> dict[str, Any]:
    options = document.get(section, {})
    if not isinstance(options, dict):
        raise InvalidInput(f"{path}: [{section}] must be a section")
    return {name.replace("-", "_"): value for name, value in options.items()} | (
        {"apps": options["app"] if isinstance(options["app"], list) else [options["app"]]}
        if "app" in options
        else {}
    )


def show_variables(command: click.Command) -> click.Command:
    """Show the environment variables of options in the help of a command, or of all commands of a group."""
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    for each in commands:
        for option in each.params:
            if isinstance(option, click.Option) and option.envvar:
                option.show_envvar = True
    return command


def check_options(group: str, known: set[str], defaults: dict[str, Any]) -> None:
    """Refuse options in the file that no command of the group has."""
    single = group in (*OPERATORS_OWN, DASHBOARD)
    sections = [defaults[group]] if single else defaults.get(group, {}).values()
    given = {name for options in sections for name in options} - {"app"}
    unknown = sorted(given - known)
    if unknown:
        hint = suggestion(unknown[0], sorted(known))
        raise InvalidInput(f"the settings file gives [{group}] an unknown option {unknown[0]!r}{hint}")
