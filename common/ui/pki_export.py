"""`hansa pki export --p12`: a certificate with its key in one file, as browsers import it."""

from pathlib import Path

import click

from hansa.common.values.errors import InvalidInput, Taken

SHORTEST = 8  # characters of a passphrase: somebody who finds the file can try as many as they like


@click.command("export")
@click.argument("place", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--p12",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The PKCS #12 file to write, such as alice.p12.",
)
@click.option(
    "--passphrase-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file whose first line is the passphrase of the new file (default: you are asked).",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def command(place: Path, out: Path, passphrase_file: Path | None, force: bool) -> None:
    """Write certificate and key of PLACE, a --tls folder, to one file that browsers import.

    Browsers with the certificate of an operator or a viewer may open a dashboard. The file is encrypted with
    a passphrase, which the browser asks for; delete the file when it is imported.
    """
    from hansa.common.pki import files
    from hansa.common.pki.caller import read_caller

    if out.exists() and not force:
        raise Taken(f"--p12 {out}: the file is there already; --force replaces it")
    certificate = files.read_certificates(place / files.CERTIFICATE)[0]
    caller, key = read_caller(certificate), files.read_key(place / files.KEY)
    if caller.role not in ("operator", "viewer"):
        raise InvalidInput(f"{place} is the certificate of {caller}: browsers are for operators and viewers")
    caller.require_valid()
    passphrase = _from_file(passphrase_file) if passphrase_file else _asked()
    authorities = files.read_certificates(place / files.CA)
    content = files.p12(str(caller), key, certificate, authorities, passphrase.encode())
    files.write(out, content, files.PRIVATE)
    click.echo(
        f"{out}: certificate of {caller} with its key, valid until {caller.ends:%Y-%m-%d %H:%M} UTC;"
        " import it into your browser, then delete the file"
    )


def _from_file(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise InvalidInput(f"--passphrase-file {path}: it is not text") from None
    return _long_enough(lines[0].strip() if lines else "", f"--passphrase-file {path}: its first line")


def _asked() -> str:
    text = click.prompt("Passphrase for the new file", hide_input=True, confirmation_prompt=True, err=True)
    return _long_enough(text, "the passphrase")


def _long_enough(passphrase: str, what: str) -> str:
    if len(passphrase) < SHORTEST:
        raise InvalidInput(f"{what} has {len(passphrase)} characters; at least {SHORTEST} are needed")
    return passphrase
