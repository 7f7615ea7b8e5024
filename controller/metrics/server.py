"""The web server behind `--metrics`: every connection has a thread of its own, handshake included.

On loopback it speaks plain HTTP. Elsewhere it speaks TLS and answers operators, viewers and controllers.
Their certificates are checked like those of RPCs: sites must not see other sites' jobs.
"""

import logging
import ssl
from collections.abc import Callable
from socket import AF_INET, AF_INET6
from threading import BoundedSemaphore
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer

from hansa.common.pki import files
from hansa.common.pki.caller import caller_of_der
from hansa.common.rpc.tls import ServerTls
from hansa.common.values.errors import Forbidden, HansaError

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds for the handshake, the request and each part of the answer
CONNECTIONS = 32  # at once; further ones are closed
ROLES = ("operator", "viewer", "controller")


class MetricsServer(ThreadingWSGIServer):
    """Answers scrapes. A silent caller delays only itself."""

    tls: ServerTls | None = None
    _context: ssl.SSLContext | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._room = BoundedSemaphore(CONNECTIONS)
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, if there is room for one."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer on the connection's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands, check the certificate, and answer."""
        request.settimeout(PATIENCE)
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self._fresh(self.tls).wrap_socket(request, server_side=True) as secured:
            self._require_allowed(self.tls, secured)
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line; the standard library would write a traceback to standard error."""
        debugging = log.isEnabledFor(logging.DEBUG)
        log.info("could not send metrics to %s", client_address[0], exc_info=debugging)

    def _fresh(self, tls: ServerTls) -> ssl.SSLContext:
        """Return a context with the newest files, or with the last good ones while a renewal is half done."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(tls.folder / files.CERTIFICATE, tls.folder / files.KEY)
            context.load_verify_locations(tls.folder / files.CA)
        except OSError:  # ssl.SSLError is one
            if self._context is None:
                raise
            return self._context
        self._context = context
        return context

    @staticmethod
    def _require_allowed(tls: ServerTls, secured: ssl.SSLSocket) -> None:
        caller = caller_of_der(secured.getpeercert(binary_form=True) or b"")
        try:
            tls.require_good(caller)
            if caller.role not in ROLES:
                raise Forbidden(f"{caller} may not read metrics: only {' or '.join(ROLES)} may")
        except HansaError as error:
            log.warning("%s", error)
            raise


class _Quiet(WSGIRequestHandler):
    """Does not log every scrape."""

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the standard library's name
        pass


def bound(host: str, port: int, app: Callable[..., Any], tls: ServerTls | None) -> MetricsServer:
    """Return a server that listens but does not serve yet."""

    class Server(MetricsServer):
        address_family = AF_INET6 if ":" in host else AF_INET

    server = make_server(host, port, app, Server, _Quiet)
    server.tls = tls
    return server
