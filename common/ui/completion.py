"""`hansa completion`: what a shell needs to complete commands and options."""

import click
from click.shell_completion import get_completion_class

PLACES = {
    "bash": "hansa completion bash > ~/.local/share/bash-completion/completions/hansa",
    "zsh": "hansa completion zsh > ~/.zfunc/_hansa   (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "hansa completion fish > ~/.config/fish/completions/hansa.fish",
}


@click.command(
    epilog="\b\n" + "\n".join(PLACES.values()),
    help="Print a script that lets a shell complete commands and options with the Tab key.",
)
@click.argument("shell", type=click.Choice(list(PLACES)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "hansa", "_HANSA_COMPLETE").source())
