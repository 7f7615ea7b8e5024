"""Certificates and keys as files: a folder with ca.pem, cert.pem, key.pem and, on the controller, crl.pem."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12

from hansa.common.process.files import write_whole
from hansa.common.values.errors import InvalidInput

T = TypeVar("T")
CA, CERTIFICATE, KEY, REVOKED, REQUEST = "ca.pem", "cert.pem", "key.pem", "crl.pem", "request.csr"
PRIVATE, PUBLIC = 0o600, 0o644
ROUNDS = 200_000  # of the function that makes a key of a passphrase
LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a file with its final permissions from the start; readers see the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, content, mode)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from None


def read(path: Path) -> bytes:
    """Return a file's content; raise InvalidInput if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path, what: str, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(read(path))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidInput(f"{path}: it does not hold a valid {what}") from None


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a file, in its order."""
    return _parsed(path, "certificate", x509.load_pem_x509_certificates)


def read_revoked(path: Path) -> list[x509.CertificateRevocationList]:
    """Return the lists of revoked certificates in a file, one for each authority."""
    return _parsed(path, "list of revoked certificates", _lists)


def _lists(content: bytes) -> list[x509.CertificateRevocationList]:
    lists = [x509.load_pem_x509_crl(text) for text in LIST.findall(content)]
    if not lists:
        raise ValueError("no list")
    return lists


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """Return a site's request for a certificate."""
    return _parsed(path, "certificate request", x509.load_pem_x509_csr)


def read_key(path: Path, passphrase: bytes | None = None) -> PrivateKey:
    """Return a private key."""
    key: PrivateKeyTypes = _parsed(
        path,
        "private key" + (" (or the passphrase is wrong)" if passphrase else " without a passphrase"),
        lambda content: serialization.load_pem_private_key(content, passphrase),
    )
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise InvalidInput(f"{path}: keys must be EC or RSA")
    return key


def key_pem(key: PrivateKey, passphrase: bytes | None = None) -> bytes:
    """Return a private key as text, encrypted if a passphrase is given."""
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        lock = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


def p12(
    name: str,
    key: PrivateKey,
    certificate: x509.Certificate,
    authorities: list[x509.Certificate],
    passphrase: bytes,
) -> bytes:
    """Return certificate and key as browsers import them, encrypted."""
    lock = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(ROUNDS)
        .key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(passphrase)
    )
    return pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, authorities, lock)


def pem(thing: x509.Certificate | x509.CertificateRevocationList | x509.CertificateSigningRequest) -> bytes:
    """Return a certificate, list or request as text."""
    return thing.public_bytes(serialization.Encoding.PEM)
