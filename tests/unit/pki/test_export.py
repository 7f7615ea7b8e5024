"""`hansa pki export --p12`: what a browser imports."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.serialization import pkcs12

from hansa.common.cli import hansa
from hansa.common.pki import files
from hansa.common.pki.caller import read_caller
from tests.consortium import Consortium


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path / "pki")


def export(*words: object, said: str = "") -> Result:
    return CliRunner().invoke(hansa, ["pki", "export", *map(str, words)], input=said)


def test_the_file_holds_certificate_key_and_authority_under_the_passphrase(
    consortium: Consortium, tmp_path: Path
) -> None:
    folder, out = consortium.issue("viewer", "eve"), tmp_path / "eve.p12"
    done = export(folder, "--p12", out, said="correct horse\ncorrect horse\n")
    assert done.exit_code == 0, done.output
    assert "correct horse" not in done.output
    assert out.stat().st_mode & 0o777 == files.PRIVATE
    key, certificate, more = pkcs12.load_key_and_certificates(out.read_bytes(), b"correct horse")
    assert key is not None
    assert certificate is not None
    assert str(read_caller(certificate)) == "viewer eve"
    assert key.public_key() == certificate.public_key()
    assert more == [consortium.authority.certificate]
    with pytest.raises(ValueError, match=r"[Ii]nvalid password"):
        pkcs12.load_key_and_certificates(out.read_bytes(), b"wrong")
    again = export(folder, "--p12", out, said="correct horse\ncorrect horse\n")
    assert (again.exit_code, "--force replaces it" in again.stderr) == (1, True)


def test_the_passphrase_may_come_from_a_file(consortium: Consortium, tmp_path: Path) -> None:
    folder, out, secret = consortium.issue("operator", "alice"), tmp_path / "alice.p12", tmp_path / "secret"
    secret.write_text("correct horse\n")
    assert export(folder, "--p12", out, "--passphrase-file", secret).exit_code == 0
    assert pkcs12.load_key_and_certificates(out.read_bytes(), b"correct horse")[0]
    secret.write_text("short\n")
    done = export(folder, "--p12", out, "--force", "--passphrase-file", secret)
    assert (done.exit_code, "at least 8 are needed" in done.stderr) == (2, True)


def test_daemons_have_no_browsers(consortium: Consortium, tmp_path: Path) -> None:
    done = export(consortium.issue("learner", "a"), "--p12", tmp_path / "a.p12", said="x" * 9)
    assert (done.exit_code, "for operators and viewers" in done.stderr) == (2, True)
    assert not (tmp_path / "a.p12").exists()
