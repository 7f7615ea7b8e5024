"""`hansa pki`: the files that it writes, what it refuses to issue, and who can read them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hansa.common.cli import hansa
from hansa.common.pki import files
from hansa.common.pki.authority import Authority, check_request, new_key
from hansa.common.pki.caller import read_caller
from hansa.common.rpc.tls import Credentials, ServerTls
from hansa.common.values.errors import InvalidInput, Unproven


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "CliRunner":
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    assert runner.invoke(hansa, ["pki", "init"]).exit_code == 0
    return runner


def pki(run: CliRunner, *words: str) -> Result:
    return run.invoke(hansa, ["pki", *words])


def issued(run: CliRunner, role: str, name: str, *more: str) -> Path:
    done = pki(run, "issue", "--role", role, "--site", name, *more)
    assert done.exit_code == 0, done.output
    return Path("pki") / f"{role}-{name}"


def test_keys_are_for_their_owner_only(run: CliRunner) -> None:
    folder = issued(run, "learner", "a")
    for key in (Path("pki/ca.key"), folder / files.KEY):
        assert key.stat().st_mode & 0o777 == 0o600
    for place in (Path("pki"), folder):
        assert place.stat().st_mode & 0o777 == 0o700


def test_an_authority_is_not_made_twice(run: CliRunner) -> None:
    before = Path("pki/ca.key").read_bytes()
    assert pki(run, "init").exit_code == 1
    assert Path("pki/ca.key").read_bytes() == before


def test_certificates_say_role_and_name_and_last_as_long_as_asked(run: CliRunner) -> None:
    folder = issued(run, "evaluator", "st-mary", "--days", "7")
    certificate = files.read_certificates(folder / files.CERTIFICATE)[0]
    caller = read_caller(certificate)
    assert str(caller) == "evaluator st-mary"
    assert abs(caller.ends - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=1)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert Credentials.load(folder, ("evaluator",), "st-mary").caller == caller


def test_only_a_controllers_certificate_can_be_a_servers(run: CliRunner) -> None:
    hub = issued(run, "controller", "hub", "--host", "hub.example.org", "--host", "10.0.0.5")
    for folder, uses in (
        (hub, True),
        (issued(run, "learner", "a"), False),
        (issued(run, "operator", "b"), False),
    ):
        held = files.read_certificates(folder / files.CERTIFICATE)[0].extensions
        usage = held.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usage) is uses
        names = held.get_extension_for_class(x509.SubjectAlternativeName).value
        assert bool(names.get_values_for_type(x509.DNSName)) is uses
    assert ServerTls(hub)


@pytest.mark.parametrize(
    "words",
    [
        ["--role", "controller", "--site", "hub"],  # which host?
        ["--role", "learner", "--site", "a", "--host", "a.example.org"],
        ["--role", "learner", "--site", "../../etc"],
        ["--role", "learner", "--site", "a:b"],
        ["--role", "learner", "--site", ""],
        ["--role", "king", "--site", "a"],
        ["--role", "learner", "--site", "a", "--days", "0"],
        ["--role", "learner", "--site", "a", "--days", "3650"],  # longer than the authority itself
        ["--role", "controller", "--site", "hub", "--host", "*"],
        ["--role", "controller", "--site", "hub", "--host", "a b"],
    ],
)
def test_invalid_certificates_are_not_issued(run: CliRunner, words: list[str]) -> None:
    assert pki(run, "issue", *words).exit_code == 2
    assert not list(Path("pki/issued").glob("*"))


def test_a_certificate_is_replaced_only_on_purpose(run: CliRunner) -> None:
    folder = issued(run, "learner", "a")
    before = Credentials.load(folder).caller.serial
    assert pki(run, "issue", "--role", "learner", "--site", "a").exit_code == 1
    assert Credentials.load(folder).caller.serial == before
    issued(run, "learner", "a", "--renew")
    assert Credentials.load(folder).caller.serial != before


def test_a_sites_key_need_never_leave_it(run: CliRunner) -> None:
    assert pki(run, "request", "--role", "learner", "--site", "a", "--out", "site").exit_code == 0
    key = Path("site/key.pem").read_bytes()
    issued(run, "learner", "a", "--csr", "site/request.csr", "--out", "back")
    assert sorted(path.name for path in Path("back").iterdir()) == [files.CA, files.CERTIFICATE]
    for name in (files.CA, files.CERTIFICATE):
        Path("back", name).rename(Path("site", name))
    assert str(Credentials.load(Path("site")).caller) == "learner a"
    assert pki(run, "request", "--role", "learner", "--site", "a", "--out", "site").exit_code == 0
    assert Path("site/key.pem").read_bytes() == key  # a renewal keeps it


def test_a_request_gets_only_what_the_authoritys_owner_says(run: CliRunner) -> None:
    """A request may carry any names and extensions; none of them reaches the certificate."""
    key = new_key()
    greedy = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "learner a")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.UniformResourceIdentifier("urn:hansa:operator:root"), x509.DNSName("hub.example.org")]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    Path("greedy.csr").write_bytes(files.pem(greedy))
    issued(run, "learner", "a", "--csr", "greedy.csr", "--out", "back")
    made = files.read_certificates(Path("back") / files.CERTIFICATE)[0]
    assert str(read_caller(made)) == "learner a"
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert not names.get_values_for_type(x509.DNSName)
    with pytest.raises(InvalidInput, match="not for 'operator a'"):
        check_request(greedy, "operator", "a")


def test_a_request_that_was_tampered_with_is_refused(run: CliRunner) -> None:
    pki(run, "request", "--role", "learner", "--site", "a", "--out", "site")
    honest = files.read_request(Path("site/request.csr"))
    der = bytearray(honest.public_bytes(Encoding.DER))
    der[der.index(b"learner a") + 8] = ord("b")
    forged = x509.load_der_x509_csr(bytes(der))
    with pytest.raises(InvalidInput, match="its own key"):
        check_request(forged, "learner", "b")


@pytest.mark.parametrize("kind", ["rsa-1024", "ed25519", "p-192"])
def test_weak_and_unusual_keys_are_refused(run: CliRunner, kind: str) -> None:
    key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
    match kind:
        case "rsa-1024":
            key = rsa.generate_private_key(65537, 1024)
        case "ed25519":
            key = ed25519.Ed25519PrivateKey.generate()
        case _:
            key = ec.generate_private_key(ec.SECP192R1())
    now = datetime.now(UTC)
    with pytest.raises(InvalidInput):
        Authority(Path("pki")).issue("learner", "a", key.public_key(), [], now, now + timedelta(days=1))


def test_revocation_by_name_and_by_serial(run: CliRunner) -> None:
    issued(run, "learner", "a")
    issued(run, "evaluator", "a")
    issued(run, "learner", "b")
    assert pki(run, "revoke", "--site", "a", "--role", "learner").exit_code == 0
    rows = {(row["role"], row["name"]): row for row in json.loads(pki(run, "show", "--json").output)}
    assert {key: row["state"] for key, row in rows.items()} == {
        ("learner", "a"): "revoked",
        ("evaluator", "a"): "valid",
        ("learner", "b"): "valid",
    }
    assert pki(run, "revoke", rows["learner", "b"]["serial"][:12]).exit_code == 0
    assert "(1 already revoked)" in pki(run, "revoke", rows["learner", "b"]["serial"]).output
    assert pki(run, "revoke", "ffff").exit_code == 1
    assert pki(run, "revoke").exit_code == 2
    assert len(Authority(Path("pki")).revoked()) == 2


def test_the_authoritys_key_can_have_a_passphrase(run: CliRunner) -> None:
    Path("secret").write_text("correct horse\n")
    Path("wrong").write_text("incorrect\n")
    assert pki(run, "init", "--dir", "locked", "--passphrase-file", "secret").exit_code == 0
    words = ["issue", "--dir", "locked", "--role", "learner", "--site", "a"]
    assert pki(run, *words).exit_code == 2
    assert pki(run, *words, "--passphrase-file", "wrong").exit_code == 2
    assert pki(run, *words, "--passphrase-file", "secret").exit_code == 0


def test_a_folder_that_peers_would_refuse_is_refused_at_home(run: CliRunner) -> None:
    a, b = issued(run, "learner", "a"), issued(run, "learner", "b")
    with pytest.raises(InvalidInput, match="the certificate is for learner a, not for"):
        Credentials.load(a, ("operator",))
    (a / files.KEY).write_bytes((b / files.KEY).read_bytes())
    with pytest.raises(InvalidInput, match="is not the key"):
        Credentials.load(a)
    pki(run, "init", "--dir", "other")
    (b / files.CA).write_bytes(Path("other/ca.pem").read_bytes())
    with pytest.raises(InvalidInput, match="was not issued by"):
        Credentials.load(b)
    (b / files.CA).write_text("nonsense")
    with pytest.raises(InvalidInput, match="does not hold a valid certificate"):
        Credentials.load(b)
    with pytest.raises(InvalidInput, match="cannot be read"):
        Credentials.load(Path("nowhere"))


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["urn:hansa:learner"],
        ["urn:hansa:king:a"],
        ["urn:hansa:learner:../a"],
        ["urn:hansa:learner:a", "urn:hansa:operator:a"],
        ["urn:hansa:learner:a\nb"],
        ["https://example.org"],
    ],
)
def test_a_certificate_speaks_for_exactly_one_name(uris: list[str]) -> None:
    key, name = new_key(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "learner a")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = (
        builder.serial_number(1).not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2050, 1, 1))
    )
    if uris:
        names = [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    with pytest.raises(Unproven):
        read_caller(builder.sign(key, hashes.SHA256()))


def test_a_controller_without_a_list_of_revoked_certificates_does_not_start(run: CliRunner) -> None:
    hub = issued(run, "controller", "hub", "--host", "hub")
    (hub / files.REVOKED).unlink()
    with pytest.raises(InvalidInput, match=r"crl\.pem"):
        ServerTls(hub)
