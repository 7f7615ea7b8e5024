"""What every request passes: its host and origin are checked, and answers forbid what pages do not need.

A browser sends requests for whatever page it shows. A foreign page must neither read this one (the host is
checked, so a foreign name that leads to this address is refused) nor act in it (the origin is checked).
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from hansa.common.values.errors import Forbidden

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types hansa",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Border:
    """Lets requests pass that name one of our hosts and do not come from another site's page."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.hosts: frozenset[str] = frozenset()  # HOST:PORT

    def allow(self, names: Sequence[str], port: int) -> None:
        """Set our names, once the port is known; browsers leave out the usual port."""
        usual = port == (443 if self.scheme == "https" else 80)
        self.hosts = frozenset(
            each for name in names for each in (f"{name.lower()}:{port}", *([name.lower()] if usual else []))
        )

    def require_own(self, request: web.Request) -> None:
        """Refuse a foreign host or origin."""
        host = request.headers.get("Host", "").lower()
        if host not in self.hosts:
            raise Forbidden("the dashboard does not answer to this name; use the address that it printed")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in {f"{self.scheme}://{each}" for each in self.hosts}:
            raise Forbidden("the request comes from the page of another site")
        if request.method == "POST" and origin is None:
            raise Forbidden("the request does not say from which page it comes")
        came = request.headers.get("Sec-Fetch-Site", "none")
        navigates = request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
        if came == "cross-site" and (request.method == "POST" or not navigates):
            raise Forbidden("the request comes from the page of another site")

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request, and answer."""
        try:
            self.require_own(request)
        except Forbidden as error:
            log.warning("refused: %s %s from %s: %s", request.method, request.path, request.remote, error)
            return web.Response(status=403, text=f"{error}\n")
        return await handler(request)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers of every answer."""
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.popall("Server", None)
