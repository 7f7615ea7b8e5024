"""`hansa pki init|request|issue|show|revoke`; `export` has its own module."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hansa.common.ui.options import Measure, Site, json_option, print_json, print_table
from hansa.common.ui.pki_export import command as export_command
from hansa.common.values.errors import InvalidInput, NotFound, Taken

if TYPE_CHECKING:
    from cryptography import x509

    from hansa.common.pki.authority import Authority

ROLES = ("learner", "evaluator", "controller", "operator", "viewer", "dashboard", "store")
LOCAL = ("localhost", "127.0.0.1", "::1")  # operators on the controller's own machine

directory_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="HANSA_PKI",
    default="pki",
    show_default=True,
    help="The authority's folder.",
)
passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file whose first line is the passphrase of the authority's key.",
)
role_option = click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="What the holder may act as: a viewer only reads, a store is a Redis server.",
)
name_option = click.option(
    "--site",
    "--name",
    "name",
    type=Site(),
    required=True,
    help="The site's name; for an operator or a viewer, the person's.",
)


@click.group()
def pki() -> None:
    """Issue certificates for controller, sites, operators and viewers."""


pki.add_command(export_command)


@pki.command()
@directory_option
@click.option("--name", default="Hansa", show_default=True, help="The authority's name, for people.")
@click.option(
    "--days", type=click.IntRange(1, 36_500), default=3650, show_default=True, help="How long it is valid."
)
@passphrase_option
def init(folder: Path, name: str, days: int, passphrase_file: Path | None) -> None:
    """Create a private certificate authority."""
    from hansa.common.pki.authority import KEY, Authority

    authority = Authority.create(folder, name, days, _passphrase(passphrase_file))
    until = authority.certificate.not_valid_after_utc
    click.echo(f"{folder}: certificate authority {name!r}, valid until {until:%Y-%m-%d}")
    click.echo(f"keep {folder / KEY} secret and off the controller: anyone who has it can act as anybody")


@pki.command()
@role_option
@name_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder for key and request.",
)
def request(role: Any, name: str, out: Path) -> None:
    """Create a key and a request for its certificate; the key never leaves this machine.

    A folder that already has a key keeps it, so the same command requests a renewal.
    """
    from hansa.common.pki import authority, files

    key: files.PrivateKey
    if (out / files.KEY).exists():
        key = files.read_key(out / files.KEY)
    else:
        key = authority.new_key()
        files.write(out / files.KEY, files.key_pem(key), files.PRIVATE)
    files.write(out / files.REQUEST, files.pem(authority.request(role, name, key)), files.PUBLIC)
    click.echo(
        f"send {out / files.REQUEST} to the authority; put the cert.pem and ca.pem that come back into {out}"
    )


@pki.command()
@directory_option
@role_option
@name_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="A name or address by which a controller, dashboard or store is reached. May be repeated.",
)
@click.option(
    "--days", type=Measure(0, 3650, min_open=True), default=365, show_default=True, help="Validity."
)
@click.option(
    "--csr",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A request made with `hansa pki request`: the key stays at the site.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the files (default: ROLE-NAME in the authority's folder).",
)
@click.option("--renew", is_flag=True, help="Replace the certificate that --out holds.")
@passphrase_option
def issue(
    folder: Path,
    role: Any,
    name: str,
    hosts: tuple[str, ...],
    days: float,
    csr: Path | None,
    out: Path | None,
    renew: bool,
    passphrase_file: Path | None,
) -> None:
    """Issue a certificate for a role under a name.

    Daemons and commands take the folder with the certificate as --tls. Without --csr a key is created, too.
    """
    from hansa.common.pki import authority, files

    if role in authority.SERVERS and not hosts:
        raise InvalidInput(
            f"the certificate of a {role} needs --host, the name or address by which it is reached"
        )
    if role not in authority.SERVERS and hosts:
        raise InvalidInput(f"--host is for {', '.join(authority.SERVERS)}: nothing connects to a {role}")
    out = out or folder / f"{role}-{name}"
    if (out / files.CERTIFICATE).exists() and not renew:
        raise Taken(f"{out} already holds a certificate; --renew replaces it")
    issuer = authority.Authority(folder, _passphrase(passphrase_file))
    key = authority.new_key() if csr is None else None
    public = key.public_key() if key else authority.check_request(files.read_request(_given(csr)), role, name)
    now = datetime.now(UTC)
    names = [*hosts, *(host for host in LOCAL if role == "controller" and host not in hosts)]
    certificate = issuer.issue(role, name, public, names, now - authority.SKEW, now + timedelta(days=days))
    if key:
        files.write(out / files.KEY, files.key_pem(key), files.PRIVATE)
    files.write(out / files.CERTIFICATE, files.pem(certificate), files.PUBLIC)
    files.write(out / files.CA, files.pem(issuer.certificate), files.PUBLIC)
    if role in ("controller", "dashboard"):
        files.write(out / files.REVOKED, files.read(folder / files.REVOKED), files.PUBLIC)
    until = certificate.not_valid_after_utc
    click.echo(f"{out}: certificate of {role} {name}, valid until {until:%Y-%m-%d %H:%M} UTC")
    if key and role not in ("operator", "viewer"):
        click.echo("move the folder to its machine over a secure connection, and remove it here")


@pki.command()
@click.argument("place", type=click.Path(path_type=Path), required=False)
@directory_option
@json_option
def show(place: Path | None, folder: Path, as_json: bool) -> None:
    """List the authority's certificates, or show the certificate in PLACE, a file or a --tls folder."""
    from hansa.common.pki import files
    from hansa.common.pki.authority import Authority

    if place is not None:
        path = place / files.CERTIFICATE if place.is_dir() else place
        rows = [_row(certificate, {}) for certificate in files.read_certificates(path)[:1]]
    else:
        authority = Authority(folder)
        revoked = authority.revoked()
        rows = [_row(certificate, revoked) for certificate in authority.certificates()]
    if as_json:
        print_json(rows)
        return
    columns = ("role", "name", "state", "until", "hosts", "serial")
    print_table(
        columns, [tuple(str(row[column]) for column in columns) for row in rows], "no certificates yet"
    )


@pki.command()
@click.argument("serials", nargs=-1, metavar="[SERIAL]...")
@directory_option
@click.option("--role", type=click.Choice(ROLES), help="Revoke every certificate of this role …")
@click.option("--site", "--name", "name", type=Site(), help="… and name.")
@passphrase_option
def revoke(
    serials: tuple[str, ...], folder: Path, role: str | None, name: str | None, passphrase_file: Path | None
) -> None:
    """Revoke certificates, by serial number or by name.

    The controller refuses them as soon as the authority's new crl.pem is in its --tls folder; it need not be
    restarted.
    """
    from hansa.common.pki import files
    from hansa.common.pki.authority import Authority

    if bool(serials) == bool(name):
        raise InvalidInput(
            "say what to revoke: serial numbers, or --site NAME (with --role for one of its daemons)"
        )
    authority = Authority(folder, _passphrase(passphrase_file))
    chosen = [authority.find(serial) for serial in serials] if serials else _named(authority, role, name)
    count = authority.revoke(chosen)
    click.echo(
        f"{count} revoked ({len(chosen) - count} already revoked);"
        f" copy {folder / files.REVOKED} to the controller"
    )


def _named(authority: "Authority", role: str | None, name: str | None) -> "list[x509.Certificate]":
    from hansa.common.pki.caller import read_caller

    pairs = [(certificate, read_caller(certificate)) for certificate in authority.certificates()]
    certificates = [cert for cert, caller in pairs if caller.name == name and role in (None, caller.role)]
    if not certificates:
        raise NotFound(f"no certificate was issued to {role or 'anybody'} {name}")
    return certificates


def _row(certificate: "x509.Certificate", revoked: "dict[int, datetime]") -> dict[str, Any]:
    from cryptography import x509

    from hansa.common.pki.authority import serial_text
    from hansa.common.pki.caller import read_caller

    caller = read_caller(certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    now = datetime.now(UTC)
    state = "expired" if now >= caller.ends else "valid" if caller.begins <= now else "not yet valid"
    return {
        "role": caller.role,
        "name": caller.name,
        "state": "revoked" if caller.serial in revoked else state,
        "until": caller.ends.isoformat(timespec="seconds"),
        "hosts": ", ".join(hosts) or "-",
        "serial": serial_text(caller.serial),
    }


def _passphrase(path: Path | None) -> bytes | None:
    if path is None:
        return None
    first = path.read_bytes().splitlines()[:1]
    if not first or not first[0].strip():
        raise InvalidInput(f"--passphrase-file {path}: its first line is empty")
    return first[0].strip()


def _given(path: Path | None) -> Path:
    assert path is not None
    return path
