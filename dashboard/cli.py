"""`hansa dashboard`."""

import os
import sys
from pathlib import Path

import click

from hansa.common.rpc.channel import Endpoint, is_loopback
from hansa.common.ui.options import Address, controller_option, run_async
from hansa.common.values.errors import InvalidInput

DEFAULT_LISTEN = "127.0.0.1:7380"
ACTIONS = ("cancel",)


@click.command()
@controller_option
@click.option(
    "--listen",
    type=Address(),
    envvar="HANSA_DASHBOARD_LISTEN",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where browsers find the dashboard; port 0 picks a free port.",
)
@click.option(
    "--listen-tls",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="HANSA_DASHBOARD_TLS",
    help="Folder with the certificate to show to browsers, as `hansa pki issue dashboard` makes it. Browsers"
    " must then present a certificate of an operator or a viewer.",
)
@click.option(
    "--allow",
    type=click.Choice(ACTIONS),
    multiple=True,
    envvar="HANSA_DASHBOARD_ALLOW",
    help="What may be done from the dashboard besides looking.",
)
def dashboard(controller: Endpoint, listen: str, listen_tls: Path | None, allow: tuple[str, ...]) -> None:
    """Serve a web page that shows the fleet and its jobs, live.

    On this machine, the dashboard prints a link that lets one browser in; press Enter for another one.
    Browsers on other machines present a certificate, see --listen-tls.
    """
    if listen_tls is None and not is_loopback(listen):
        raise InvalidInput(
            f"--listen {listen} can be reached from other machines: give --listen-tls, the folder of a"
            " certificate that `hansa pki issue --role dashboard` makes, or listen on 127.0.0.1"
        )
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise InvalidInput("the dashboard needs aiohttp: pip install 'hansa[dashboard]'") from None
    from hansa.common.process import logs
    from hansa.common.process.state import announce
    from hansa.dashboard.server import DashboardOptions, serve

    def ready(address: str, link: str) -> None:
        announce(f"ready dashboard (pid {os.getpid()}) at {address}")
        _tell(f"The dashboard of {controller} is at {link or address}")
        if link:
            more = (
                "Enter prints another one"
                if sys.stdin.isatty()
                else f"`kill -HUP {os.getpid()}` prints another one"
            )
            _tell(f"The link works once, within ten minutes; {more}. Ctrl-C stops the dashboard.")

    logs.set_up(os.environ.get("HANSA_LOG") or "warning")
    run_async(serve(DashboardOptions(controller, listen, listen_tls, frozenset(allow)), ready, _tell))


def _tell(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()
