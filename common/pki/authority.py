"""The certificate authority: a folder with its key, its certificate, and what it has issued and revoked.

ca.pem              its certificate: every daemon and operator needs it
ca.key              its key (0600): anyone who has it can act as anybody; keep it off the controller
crl.pem             the list of revoked certificates: the controller needs it
issued/SERIAL.pem   every certificate it has issued
"""

import ipaddress
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hansa.common.pki import files
from hansa.common.pki.caller import Role, identity_uri
from hansa.common.values.errors import InvalidInput, NotFound, Taken

KEY = "ca.key"
ISSUED = "issued"
SERVERS = ("controller", "dashboard", "store")
ONLY_SERVERS = ("dashboard", "store")  # roles whose certificates cannot be used to call anybody
SKEW = timedelta(minutes=5)  # sites' clocks may be a little behind ours
WEAKEST_RSA, WEAKEST_CURVE = 2048, 256  # bits
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key for a daemon or operator."""
    return ec.generate_private_key(ec.SECP256R1())


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, passphrase: bytes | None = None) -> None:
        if not (folder / files.CA).exists():
            raise NotFound(
                f"{folder} is not a certificate authority; `hansa pki init --dir {folder}` creates one"
            )
        self.folder = folder
        self.certificate = files.read_certificates(folder / files.CA)[0]
        self._passphrase = passphrase

    @staticmethod
    def create(folder: Path, name: str, days: int, passphrase: bytes | None = None) -> "Authority":
        """Create an authority in a new folder."""
        if (folder / KEY).exists() or (folder / files.CA).exists():
            raise Taken(
                f"{folder} already holds a certificate authority; its certificates would become worthless"
            )
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name), _common_name("certificate authority")]
        )
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA384())
        )
        files.write(folder / KEY, files.key_pem(key, passphrase), files.PRIVATE)
        files.write(folder / files.CA, files.pem(certificate), files.PUBLIC)
        authority = Authority(folder, passphrase)
        authority._write_revoked([])
        return authority

    def issue(
        self, role: Role, name: str, public: object, hosts: Sequence[str], begins: datetime, ends: datetime
    ) -> x509.Certificate:
        """Certify that the holder of a key may act in a role under a name; keep a copy."""
        if not isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
            raise InvalidInput("keys must be EC or RSA")
        _require_strong(public)
        if ends <= begins:
            raise InvalidInput("a certificate must become valid before it expires")
        ca_end = self.certificate.not_valid_after_utc
        if ends > ca_end:
            raise InvalidInput(
                f"the authority itself expires {ca_end:%Y-%m-%d}; give fewer --days, or create a new one"
            )
        uses = [] if role in ONLY_SERVERS else [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in SERVERS:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)  # no other role can pass for a server
        key = self._key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([_common_name(_subject(role, name))]))
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([identity_uri(role, name), *(_host(host) for host in hosts)]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        files.write(self._issued(certificate.serial_number), files.pem(certificate), files.PUBLIC)
        return certificate

    def certificates(self) -> list[x509.Certificate]:
        """Return all issued certificates, oldest first."""
        issued = [files.read_certificates(path)[0] for path in sorted((self.folder / ISSUED).glob("*.pem"))]
        return sorted(issued, key=lambda certificate: certificate.not_valid_before_utc)

    def find(self, serial: str) -> x509.Certificate:
        """Return an issued certificate by its serial number, or a unique beginning of it."""
        wanted = serial.lower().replace(":", "")
        matching = [
            each
            for each in self.certificates()
            if wanted and serial_text(each.serial_number).startswith(wanted)
        ]
        if len(matching) != 1:
            count = "more than one certificate matches" if matching else "no certificate matches"
            raise NotFound(f"{count} {serial!r}; `hansa pki show` lists all")
        return matching[0]

    def revoked(self) -> dict[int, datetime]:
        """Return the serial numbers of revoked certificates, and when they were revoked."""
        (entries,) = files.read_revoked(self.folder / files.REVOKED)[:1]
        return {entry.serial_number: entry.revocation_date_utc for entry in entries}

    def revoke(self, certificates: Iterable[x509.Certificate]) -> int:
        """Revoke certificates and write the list again; return how many were not on it before."""
        before = self.revoked()
        added = [each for each in certificates if each.serial_number not in before]
        entries = [_entry(serial, since) for serial, since in before.items()]
        now = datetime.now(UTC)
        self._write_revoked(entries + [_entry(each.serial_number, now) for each in added])
        return len(added)

    def _write_revoked(self, entries: list[x509.RevokedCertificate]) -> None:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now)
            # Operators distribute a new list whenever there is one.
            .next_update(self.certificate.not_valid_after_utc)
        )
        for entry in entries:
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(self._key(), hashes.SHA384())
        files.write(self.folder / files.REVOKED, files.pem(signed), files.PUBLIC)

    def _key(self) -> files.PrivateKey:
        return files.read_key(self.folder / KEY, self._passphrase)

    def _issued(self, serial: int) -> Path:
        return self.folder / ISSUED / f"{serial_text(serial)}.pem"


def request(role: Role, name: str, key: files.PrivateKey) -> x509.CertificateSigningRequest:
    """Return a request for a certificate; the key stays where it is."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([_common_name(_subject(role, name))])
    )
    return builder.add_extension(x509.SubjectAlternativeName([identity_uri(role, name)]), False).sign(
        key, hashes.SHA256()
    )


def check_request(wanted: x509.CertificateSigningRequest, role: Role, name: str) -> object:
    """Return the key of a request; refuse one that was not signed with it or that asks for something else.

    Only the key is taken from it. The authority's owner decides role and name, never the request.
    """
    if not wanted.is_signature_valid:
        raise InvalidInput("the request was not signed with its own key: it was damaged or forged")
    asked = [attribute.value for attribute in wanted.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if asked != [_subject(role, name)]:
        raise InvalidInput(
            f"the request is for {str(asked[0])[:100] if asked else 'nobody'!r}, not for '{role} {name}'"
        )
    return wanted.public_key()


def serial_text(serial: int) -> str:
    """Format a serial number for people."""
    return f"{serial:040x}"


def _entry(serial: int, since: datetime) -> x509.RevokedCertificate:
    return x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()


def _common_name(text: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, text)


def _subject(role: Role, name: str) -> str:
    return f"{role} {name}"[:64]  # the longest common name that is allowed; it is for people


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in USAGES})


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    labels = text.split(".")
    if len(text) > 253 or not all(
        label and label.replace("-", "").isalnum() and label.isascii() for label in labels
    ):
        raise InvalidInput(f"--host {text!r} is neither a host name nor an IP address")
    return x509.DNSName(text)


def _require_strong(public: PublicKey) -> None:
    weakest = WEAKEST_RSA if isinstance(public, rsa.RSAPublicKey) else WEAKEST_CURVE
    if public.key_size < weakest:
        raise InvalidInput(f"the key has {public.key_size} bits; at least {weakest} are required")
