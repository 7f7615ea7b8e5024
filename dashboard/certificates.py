"""Browsers on other machines: they present certificates of the consortium's authority, and so do we."""

import logging
import ssl
from pathlib import Path

from aiohttp import web
from cryptography import x509

from hansa.common.pki import files
from hansa.common.pki.caller import caller_of_der
from hansa.common.rpc.tls import ServerTls
from hansa.dashboard.access import Visitor, visitor_of

log = logging.getLogger(__name__)


class BrowserTls:
    """The dashboard's TLS folder: every connection must present a certificate that its authority issued."""

    def __init__(self, folder: Path) -> None:
        self._tls = ServerTls(folder, "dashboard")
        self.hosts = _hosts(folder)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.verify_mode = ssl.CERT_REQUIRED  # strangers do not reach what reads requests
        self._load()

    def _load(self) -> None:
        folder = self._tls.folder
        self.context.load_cert_chain(folder / files.CERTIFICATE, folder / files.KEY)
        self.context.load_verify_locations(folder / files.CA)

    def visitor(self, request: web.Request) -> Visitor:
        """Return who asks; refuse those whose certificate is not for people, has expired or is revoked."""
        if self._tls.refresh():  # for connections from now on
            self._load()
        self._tls.refresh_revoked()
        connection = request.transport.get_extra_info("ssl_object") if request.transport else None
        shown = connection.getpeercert(binary_form=True) if connection else None
        caller = caller_of_der(shown) if shown else None
        visitor = visitor_of(caller)
        assert caller is not None
        self._tls.require_good(caller)
        return visitor


def _hosts(folder: Path) -> list[str]:
    """Return the names for which our certificate is valid, as browsers write them."""
    certificate = files.read_certificates(folder / files.CERTIFICATE)[0]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return [
        *names.get_values_for_type(x509.DNSName),
        *(f"[{each}]" if each.version == 6 else str(each) for each in addresses),
    ]
