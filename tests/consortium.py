"""Certificates for tests: an authority, and TLS folders for any role and name."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import grpc

from hansa.common.pki import files
from hansa.common.pki.authority import SERVERS, Authority, new_key
from hansa.common.pki.caller import Role
from hansa.common.rpc.channel import CLIENT
from hansa.common.rpc.methods import Stub
from hansa.common.rpc.tls import Credentials, client_credentials
from hansa.protos import fleet_pb2, operator_pb2

DAY = timedelta(days=1)


def later(by: timedelta) -> type[datetime]:
    """Return a clock that is ahead, to be put in the place of a module's `datetime`."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + by

    return Later


class Consortium:
    """An authority that issues any certificate."""

    def __init__(self, folder: Path, name: str = "Test") -> None:
        self.place = folder
        self.authority = Authority.create(folder / "ca", name, 30)

    def issue(
        self,
        role: Role,
        name: str,
        out: str = "",
        life: timedelta = DAY,
        age: timedelta = timedelta(),
        host: str = "",
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    ) -> Path:
        """Write a TLS folder and return it; the certificate became valid `age` ago."""
        folder = self.place / (out or f"{role}-{name}")
        key = new_key()
        names = ([host] if host else hosts) if role in SERVERS else []
        begins = datetime.now(UTC) - age - timedelta(minutes=1)
        made = self.authority.issue(
            role, name, key.public_key(), names, begins, begins + timedelta(minutes=1) + life
        )
        files.write(folder / files.KEY, files.key_pem(key), files.PRIVATE)
        files.write(folder / files.CERTIFICATE, files.pem(made), files.PUBLIC)
        files.write(folder / files.CA, files.pem(self.authority.certificate), files.PUBLIC)
        if role in ("controller", "dashboard"):
            self.hand_on_revoked(folder)
        return folder

    def revoke(self, folder: Path) -> None:
        self.authority.revoke(files.read_certificates(folder / files.CERTIFICATE))

    def hand_on_revoked(self, folder: Path) -> None:
        files.write(folder / files.REVOKED, files.read(self.authority.folder / files.REVOKED), files.PUBLIC)


def raw_channel(address: str, folder: Path | None, ca: Path | None = None) -> grpc.aio.Channel:
    """Connect with the files of a folder, valid or not; without a folder, present no certificate."""
    if folder is None:
        trusted = grpc.ssl_channel_credentials((ca or Path()).read_bytes()) if ca else None
        return (
            grpc.aio.secure_channel(address, trusted, CLIENT)
            if trusted
            else grpc.aio.insecure_channel(address)
        )
    given = [(folder / name).read_bytes() for name in (files.CA, files.KEY, files.CERTIFICATE)]
    trust = ca.read_bytes() if ca else given[0]
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trust, given[1], given[2]), CLIENT)


def channel(address: str, folder: Path) -> grpc.aio.Channel:
    """Connect as the caller that a valid folder names."""
    return grpc.aio.secure_channel(address, client_credentials(Credentials.load(folder)), CLIENT)


def fleet(of: grpc.aio.Channel) -> Stub:
    return Stub(of, fleet_pb2.DESCRIPTOR.services_by_name["Fleet"])


def operators(of: grpc.aio.Channel) -> Stub:
    return Stub(of, operator_pb2.DESCRIPTOR.services_by_name["Operator"])
