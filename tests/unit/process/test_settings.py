"""The settings of `hansa.toml` reach every command that they are for."""

import click

from hansa.common.cli import hansa
from hansa.common.process.settings import OPERATOR


def test_every_command_of_operators_takes_the_settings_of_operators() -> None:
    context = click.Context(hansa)
    named = {(group, name) for group, names in OPERATOR.items() for name in names}
    for group in ("job", "site", "audit"):
        commands = hansa.get_command(context, group)
        assert isinstance(commands, click.Group)
        for name, command in commands.commands.items():
            if any("--controller" in each.opts for each in command.params):
                assert (group, name) in named, f"hansa {group} {name}"
