"""Start-up, main loop and shut-down of the dashboard."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.drawing.markup import page
from hansa.common.process.lifetime import stop_signal
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.errors import (
    Forbidden,
    HansaError,
    InvalidInput,
    NotFound,
    Taken,
    Unproven,
    Unreachable,
)
from hansa.dashboard.access import Access, Visitor
from hansa.dashboard.assets import assets
from hansa.dashboard.border import Border, Handler
from hansa.dashboard.certificates import BrowserTls
from hansa.dashboard.followed import FollowedJobs
from hansa.dashboard.overview import Overview
from hansa.dashboard.pages import entry
from hansa.dashboard.routes import Routes
from hansa.dashboard.scenes import Scenes

log = logging.getLogger(__name__)
LARGEST_FORM = 16 << 10
STATUSES = ((Unproven, 401), (Forbidden, 403), (NotFound, 404), (InvalidInput, 400), (Unreachable, 503))
TITLES = {401: "Sign in", 403: "Not allowed", 404: "Not found", 503: "The controller does not answer"}
SIGN_IN = (
    "Open the link that `hansa dashboard` prints in its terminal; it lets one browser in. If it has been used"
    " or has expired, press Enter there for another one."
)


@dataclass(frozen=True)
class DashboardOptions:
    """The options of `hansa dashboard`."""

    controller: Endpoint
    listen: str
    tls: Path | None = None  # the certificate for browsers
    allow: frozenset[str] = frozenset()


async def serve(
    options: DashboardOptions, ready: Callable[[str, str], None], tell: Callable[[str], None]
) -> None:
    """Serve pages until told to stop. `ready` is given the address and, without certificates, a link."""
    async with AsyncClient(options.controller) as client:
        dashboard = Dashboard(options, client)
        await dashboard.start()
        try:
            ready(dashboard.address, "" if options.tls else dashboard.link())
            with nullcontext() if options.tls else _asked(lambda: tell(dashboard.link())):
                await stop_signal()
        finally:
            await dashboard.stop()


class Dashboard:
    """The web server, and what it knows of the federation."""

    def __init__(self, options: DashboardOptions, client: AsyncClient) -> None:
        self._options = options
        self._tls = BrowserTls(options.tls) if options.tls else None
        self._access = Access(time.monotonic)
        self._border = Border("https" if self._tls else "http")
        self._overview, self._followed = Overview(client), FollowedJobs(client)
        self._routes = Routes(
            client,
            str(options.controller),
            self._access,
            self._border,
            Scenes(self._overview, self._followed),
            self._followed,
            options.allow,
            self._visitor,
        )
        app = web.Application(middlewares=[self._border.guard, self._admit], client_max_size=LARGEST_FORM)
        app.add_routes([*self._routes.table(links=self._tls is None), *assets()])
        app.on_response_prepare.append(self._border.add_headers)
        app.on_shutdown.append(self._routes.hang_up)
        # Handlers end when their browser hangs up, so that nothing is watched for nobody.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=2)
        self.address = ""

    async def start(self) -> None:
        """Listen."""
        host, _, port = self._options.listen.rpartition(":")
        await self._runner.setup()
        context = self._tls.context if self._tls else None
        site = web.TCPSite(self._runner, host.strip("[]"), int(port), ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise Taken(
                f"--listen {self._options.listen}: {error.strerror or error}; choose another address"
            ) from None
        bound = self._runner.addresses[0][1]
        names = self._tls.hosts if self._tls else _local_names(host)
        self._border.allow(names, bound)
        self._routes.cookie = f"hansa-{bound}"
        self.address = f"{self._border.scheme}://{names[0]}:{bound}"

    async def stop(self) -> None:
        """Hang up on everybody."""
        await self._runner.cleanup()
        await self._followed.close()
        await self._overview.close()

    def link(self) -> str:
        """Return a new link that lets one browser in."""
        return f"{self.address}/enter?key={self._access.new_link()}"

    def _visitor(self, request: web.Request) -> Visitor:
        """Return who asks; refuse strangers."""
        if self._tls:
            return self._tls.visitor(request)
        visitor = self._access.visitor(request.cookies.get(self._routes.cookie, ""))
        if visitor is None:
            raise Unproven(SIGN_IN)
        return visitor

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let people in, and answer errors with a page."""
        try:
            if not request.path.startswith("/assets/") and request.path != "/enter":
                self._visitor(request)
            return await handler(request)
        except HansaError as error:
            status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
            if status in (401, 403):
                log.info("refused: %s %s from %s: %s", request.method, request.path, request.remote, error)
            return _trouble(status, str(error))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            what = "There is no such page." if error.status == 404 else error.reason
            return _trouble(error.status, what)
        except ConnectionError:
            raise  # the browser has hung up
        except Exception:
            log.exception("%s %s", request.method, request.path)
            return _trouble(500, "This page could not be made; the dashboard's log says why.")


def _trouble(status: int, why: str) -> web.Response:
    title = TITLES.get(status, "Something is wrong")
    return web.Response(
        status=status,
        text=page(entry.trouble(title, why, back=status not in (401, 403))),
        content_type="text/html",
    )


def _local_names(host: str) -> list[str]:
    """Return the names of this machine for itself, first the one to listen on."""
    return list(dict.fromkeys([host, "127.0.0.1", "localhost", "[::1]"]))


@contextmanager
def _asked(answer: Callable[[], None]) -> Iterator[None]:
    """Answer SIGHUP, and Enter on a terminal."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, answer)
    keyboard = sys.stdin if sys.stdin is not None and sys.stdin.isatty() else None

    def read() -> None:
        assert keyboard is not None
        if keyboard.readline():
            answer()
        else:
            loop.remove_reader(keyboard)  # it is closed

    if keyboard is not None:
        loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if keyboard is not None:
            loop.remove_reader(keyboard)
