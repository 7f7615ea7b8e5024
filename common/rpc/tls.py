"""TLS from a folder of files (ca.pem, cert.pem, key.pem, crl.pem), read again when they change.

gRPC supports TLS 1.2 and 1.3 and nothing older. The server requires a certificate of our authority from every
caller; a client requires a server certificate for the host that it connects to.
"""

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from hansa.common.pki import files
from hansa.common.pki.caller import Caller, Role, read_caller
from hansa.common.values.errors import HansaError, InvalidInput, Unproven

log = logging.getLogger(__name__)
Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class Credentials:
    """The contents of a TLS folder: our certificate, its key, and the authorities that we trust."""

    caller: Caller
    authorities: bytes
    chain: bytes
    key: bytes

    @staticmethod
    def load(folder: Path, roles: tuple[str, ...] | None = None, name: str | None = None) -> "Credentials":
        """Read a folder; refuse it, with the reason, if peers would refuse it anyway."""
        trusted = files.read_certificates(folder / files.CA)
        chain = files.read_certificates(folder / files.CERTIFICATE)
        key = files.read_key(folder / files.KEY)
        caller = _checked_caller(chain[0], folder)
        if _public(key.public_key()) != _public(chain[0].public_key()):
            raise InvalidInput(f"{folder}: {files.KEY} is not the key of {files.CERTIFICATE}")
        if not any(_issued_by(chain[0], issuer) for issuer in (*trusted, *chain[1:])):
            raise InvalidInput(f"{folder}: {files.CERTIFICATE} was not issued by the authority of {files.CA}")
        if roles is not None and caller.role not in roles:
            raise InvalidInput(f"{folder}: the certificate is for {caller}, not for {' or '.join(roles)}")
        if name is not None and caller.name != name:
            raise InvalidInput(f"{folder}: the certificate is for {caller}, not for {name}")
        return Credentials(caller, _text(trusted), _text(chain), files.key_pem(key))


def _checked_caller(certificate: x509.Certificate, folder: Path) -> Caller:
    try:
        caller = read_caller(certificate)
        caller.require_valid()
    except Unproven as error:
        raise InvalidInput(f"{folder}: {error}") from None
    return caller


def _public(key: object) -> bytes:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    encoded: bytes = key.public_bytes(serialization.Encoding.DER, kind)  # type: ignore[attr-defined]
    return encoded


def _issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _text(certificates: list[x509.Certificate]) -> bytes:
    return b"".join(files.pem(certificate) for certificate in certificates)


def client_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """Return the credentials in gRPC's form, for a channel."""
    return grpc.ssl_channel_credentials(credentials.authorities, credentials.key, credentials.chain)


class TlsFolder:
    """A TLS folder that is watched: `refresh` loads new files, or keeps the old ones if they are unusable."""

    def __init__(self, folder: Path, roles: tuple[str, ...] | None = None, name: str | None = None) -> None:
        self.folder = folder
        self._roles, self._name = roles, name
        self._stamp = self._look()
        self._complained: Stamp | None = None
        self.credentials = Credentials.load(folder, roles, name)

    def _look(self) -> Stamp:
        return tuple(_stat(self.folder / name) for name in (files.CA, files.CERTIFICATE, files.KEY))

    def refresh(self) -> bool:
        """Read the files again if they have changed; return whether a new certificate is in use."""
        seen = self._look()
        if seen == self._stamp:
            return False
        try:
            fresh = Credentials.load(self.folder, self._roles, self._name)
        except HansaError as error:  # perhaps only some of the files are new so far
            if seen != self._complained:
                log.warning("the new certificate is not usable, the old one stays in use: %s", error)
            self._complained = seen
            return False
        self._stamp, changed = seen, fresh != self.credentials
        self.credentials = fresh
        if changed:
            log.info(
                "new certificate for %s, until %s",
                fresh.caller,
                fresh.caller.ends.isoformat(timespec="seconds"),
            )
        return changed


class ServerTls(TlsFolder):
    """The TLS folder of a controller or dashboard, with the list of revoked certificates."""

    def __init__(self, folder: Path, role: Role = "controller") -> None:
        super().__init__(folder, (role,))
        self._lock = threading.Lock()  # gRPC asks for certificates from its own thread
        self._crl_stamp = _stat(folder / files.REVOKED)
        self._lists = self._read_lists()
        self._revoked = _entries(self._lists)
        if len(self._lists) < len(files.read_certificates(folder / files.CA)):
            log.warning("%s: %s has no list of an authority of %s", folder, files.REVOKED, files.CA)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials in gRPC's form, for a port; every new connection sees the newest files."""
        return grpc.dynamic_ssl_server_credentials(
            self._offered(), self._fresh, require_client_authentication=True
        )

    def _offered(self) -> grpc.ServerCertificateConfiguration:
        mine = self.credentials
        return grpc.ssl_server_certificate_configuration(
            [(mine.key, mine.chain)], root_certificates=mine.authorities
        )

    def _fresh(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            with self._lock:
                self.refresh()
                return self._offered()
        except Exception:
            log.exception("the certificate could not be read again; the old one stays in use")
            return None

    def require_good(self, caller: Caller) -> None:
        """Refuse a certificate that has expired or is revoked."""
        caller.require_valid()
        if (caller.issuer, caller.serial) in self._revoked:
            raise Unproven(f"the certificate of {caller} (serial {caller.serial:040x}) is revoked")

    def refresh_revoked(self) -> None:
        """Read the list again if it has changed; if it is lost or damaged, the last one stays in force."""
        seen = _stat(self.folder / files.REVOKED)
        if seen == self._crl_stamp:
            return
        self._crl_stamp = seen
        try:
            lists = self._read_lists()
        except HansaError as error:
            log.error("the list of revoked certificates is unusable; the last one stays in force: %s", error)  # noqa: TRY400
            return
        for signer, held in self._lists.items():
            if signer not in lists or lists[signer].last_update_utc < held.last_update_utc:
                log.warning(
                    "a list of revoked certificates is missing or out of date; the last one stays in force"
                )
                lists[signer] = held
        self._lists, self._revoked = lists, _entries(lists)
        log.info("%d certificates are revoked", len(self._revoked))

    def _read_lists(self) -> dict[bytes, x509.CertificateRevocationList]:
        """Return the newest list of each authority, by the authority's key."""
        path = self.folder / files.REVOKED
        signers = files.read_certificates(self.folder / files.CA)
        lists: dict[bytes, x509.CertificateRevocationList] = {}
        for held in files.read_revoked(path):
            signer = next((_public(each.public_key()) for each in signers if _signed_by(held, each)), None)
            if signer is None:
                raise InvalidInput(f"{path}: it was not signed by an authority in {files.CA}")
            if held.next_update_utc and held.next_update_utc < datetime.now(UTC):
                log.warning(
                    "%s has been out of date since %s",
                    path,
                    held.next_update_utc.isoformat(timespec="seconds"),
                )
            if signer not in lists or lists[signer].last_update_utc <= held.last_update_utc:
                lists[signer] = held
        return lists


def _entries(lists: Mapping[bytes, x509.CertificateRevocationList]) -> frozenset[tuple[bytes, int]]:
    """Return all revoked certificates by issuer and serial number."""
    return frozenset(
        (held.issuer.public_bytes(), entry.serial_number) for held in lists.values() for entry in held
    )


def _signed_by(held: x509.CertificateRevocationList, signer: x509.Certificate) -> bool:
    try:
        return held.issuer == signer.subject and held.is_signature_valid(signer.public_key())  # type: ignore[arg-type]
    except TypeError:
        return False


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - follows links, because secrets are mounted as links
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
