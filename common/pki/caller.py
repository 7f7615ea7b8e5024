"""The role and name in a certificate. Only this module knows how they are written into it.

They are a URI among the certificate's alternative names: `urn:hansa:learner:st-mary`. The subject is for
people.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, get_args

from cryptography import x509

from hansa.common.values.errors import Unproven
from hansa.common.values.ids import NAME

# A store is a Redis server, and what a dashboard shows to browsers: they never call.
Role = Literal["controller", "learner", "evaluator", "operator", "viewer", "dashboard", "store"]
ROLES: tuple[Role, ...] = get_args(Role)
URI = re.compile(rf"urn:hansa:({'|'.join(ROLES)}):({NAME.pattern})")


@dataclass(frozen=True)
class Caller:
    """The holder of a certificate: a site's daemon, a controller, an operator, or a viewer."""

    role: Role
    name: str  # of the site, the controller or the person
    serial: int
    issuer: bytes
    begins: datetime
    ends: datetime

    def __str__(self) -> str:
        return f"{self.role} {self.name}"

    def require_valid(self, now: datetime | None = None) -> None:
        """Refuse a certificate that is not valid now; a connection may outlive its certificate."""
        now = now or datetime.now(UTC)
        if not self.begins <= now < self.ends:
            expired = now >= self.ends
            what, at = ("expired", self.ends) if expired else ("becomes valid", self.begins)
            raise Unproven(
                f"the certificate of {self} {what} {at:%Y-%m-%d %H:%M} UTC; renew it with `hansa pki issue`"
            )


def identity_uri(role: Role, name: str) -> x509.UniformResourceIdentifier:
    """Return the alternative name that holds role and name."""
    return x509.UniformResourceIdentifier(f"urn:hansa:{role}:{name}")


def read_caller(certificate: x509.Certificate) -> Caller:
    """Return the caller that a certificate names; refuse one that names none, or more than one."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        raise Unproven(
            "the certificate does not name a role and site; `hansa pki issue` makes one that does"
        ) from None
    ours = [
        uri
        for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
        if uri.startswith("urn:hansa:")
    ]
    match = URI.fullmatch(ours[0]) if len(ours) == 1 else None
    if match is None:
        raise Unproven(
            "the certificate must name exactly one role and site; `hansa pki issue` makes one that does"
        )
    return Caller(
        role=next(role for role in ROLES if role == match[1]),
        name=match[2],
        serial=certificate.serial_number,
        issuer=certificate.issuer.public_bytes(),
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
    )


@lru_cache(maxsize=4096)
def caller_of_pem(pem: bytes) -> Caller:
    """Return the caller that a certificate names; a connection presents the same one with every call."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise Unproven("the certificate cannot be read") from None
    return read_caller(certificate)


def caller_of_der(der: bytes) -> Caller:
    """Return the caller that a certificate in binary form names."""
    try:
        certificate = x509.load_der_x509_certificate(der)
    except ValueError:
        raise Unproven("the certificate cannot be read") from None
    return read_caller(certificate)
