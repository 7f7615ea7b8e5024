"""The `hansa` command. Groups are loaded when they are used, so that `hansa --help` is quick."""

import importlib
import os
import sys
from typing import Any

import click

from hansa import __version__
from hansa.common.process.settings import check_options, defaults, show_variables
from hansa.common.process.terminal import guarded

COMMANDS = {
    "run": ("hansa.common.run.command:run", "Run a whole federation on this machine."),
    "simulate": ("hansa.simulation.cli:simulate", "Run a job with thousands of virtual sites."),
    "sweep": ("hansa.simulation.sweep.command:sweep", "Run a job with many settings and seeds, and compare."),
    "controller": ("hansa.controller.cli:controller", "Start, stop and inspect a controller."),
    "learner": ("hansa.learner.cli:learner", "Start, stop and inspect a site's learner."),
    "evaluator": ("hansa.evaluator.cli:evaluator", "Start, stop and inspect a site's evaluator."),
    "job": ("hansa.common.ui.job.command:job", "Submit, watch, fetch, compare and verify jobs."),
    "site": ("hansa.common.ui.sites:site", "Inspect the fleet."),
    "data": ("hansa.common.ui.data:data", "List data sets, split them across sites, describe partitions."),
    "audit": ("hansa.controller.audit.cli:audit", "Show and verify who did what on a controller."),
    "pki": ("hansa.common.ui.pki:pki", "Issue certificates for controller, sites and operators."),
    "dashboard": ("hansa.dashboard.cli:dashboard", "Serve a web page that shows the fleet and its jobs."),
    "rules": ("hansa.controller.rulebook.cli:rules", "Look up the rules that a job can name."),
    "completion": ("hansa.common.ui.completion:completion", "Complete commands with the Tab key."),
}


class LazyGroup(click.Group):
    """A group that knows the one-line help of its commands, and imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return show_variables(command)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete names of commands without importing them."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Suggest the nearest commands if there is none of that name."""
        if args and args[0] not in COMMANDS:
            from hansa.common.values.wording.words import suggestion

            ctx.fail(f"There is no command {args[0]!r}{suggestion(args[0], list(COMMANDS))}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command from its arguments to its exit code; everything that it prints is cleaned."""
        if "_HANSA_COMPLETE" in os.environ:  # a shell wants names of commands, as bytes
            return super().main(*args, **options)
        with guarded():
            return super().main(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; our errors end with their message and their exit code."""
        from hansa.common.process.logs import set_up_brief
        from hansa.common.values.errors import HansaError

        set_up_brief()
        try:
            return super().invoke(ctx)
        except HansaError as error:
            from hansa.common.process.state import announce

            announce(f"failed {error}")
            for line in (str(error) or type(error).__name__).split("\n"):
                click.echo(f"hansa: {line}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output is gone, and nobody can read a message
            ctx.exit(1)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="hansa %(version)s")
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    envvar="HANSA_CONFIG",
    help="TOML file with defaults for options (default: ./hansa.toml, then ~/.config/hansa/hansa.toml).",
)
@click.pass_context
def hansa(ctx: click.Context, config: str | None) -> None:
    """Federated learning for heterogeneous sites.

    Try `hansa run examples/digits/job.yaml` first; `hansa COMMAND --help` explains each command.
    """
    ctx.default_map = settings = defaults(config)
    group = ctx.invoked_subcommand or ""
    if group in settings:
        command = hansa.get_command(ctx, group)
        assert command is not None
        commands = command.commands.values() if isinstance(command, click.Group) else [command]
        check_options(group, {param.name or "" for each in commands for param in each.params}, settings)
