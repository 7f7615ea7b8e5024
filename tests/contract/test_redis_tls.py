"""Redis over TLS with a password: a job's models and journal, and callers that must be kept out."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as client

from hansa.common.pki import files
from hansa.common.values.errors import InvalidInput, Unreachable
from hansa.controller.storage.redis.space import RedisSpace
from tests.consortium import Consortium
from tests.redis_server import RedisServer, tls_redis_binary
from tests.support import LightSite, ended, job, nothing, serving

PASSWORD = "correct-horse-battery"


BINARY = tls_redis_binary()

pytestmark = pytest.mark.skipif(BINARY is None, reason="no redis-server here was built with TLS")


class TlsRedis(RedisServer):
    """A Redis that speaks only TLS, only to certificates of our authority, only with the password."""

    def __init__(self, folder: Path, tls: Path, mine: Path) -> None:
        super().__init__(folder, durable=False)
        assert BINARY
        self.mine, self.binary = mine, BINARY
        words = ["--tls-port", str(self.port), "--port", "0", "--requirepass", PASSWORD]
        words += ["--tls-cert-file", str(tls / files.CERTIFICATE), "--tls-key-file", str(tls / files.KEY)]
        self.options = (*words, "--tls-ca-cert-file", str(tls / files.CA), "--tls-auth-clients", "yes")

    def client(self) -> "client.Redis":
        return client.Redis(
            port=self.port,
            ssl=True,
            ssl_cert_reqs="none",
            ssl_certfile=str(self.mine / files.CERTIFICATE),
            ssl_keyfile=str(self.mine / files.KEY),
            password=PASSWORD,
        )


@pytest.fixture
def pki(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path / "pki")


@pytest.fixture
def server(tmp_path: Path, pki: Consortium) -> Iterator[TlsRedis]:
    held = TlsRedis(tmp_path / "redis", pki.issue("store", "redis"), pki.issue("operator", "tester"))
    try:
        held.start()
        yield held
    finally:
        held.kill()


def url(server: TlsRedis, mine: Path, **changed: str) -> str:
    (mine / "password").write_text(f"{PASSWORD}\n")
    words = {
        "password_file": str(mine / "password"),
        "ssl_ca_certs": str(mine / files.CA),
        "ssl_certfile": str(mine / files.CERTIFICATE),
        "ssl_keyfile": str(mine / files.KEY),
    } | changed
    return f"rediss://127.0.0.1:{server.port}/0?" + "&".join(
        f"{name}={value}" for name, value in words.items() if value
    )


async def test_a_job_runs_on_a_redis_over_tls(tmp_path: Path, server: TlsRedis, pki: Consortium) -> None:
    store = url(server, pki.issue("controller", "hub"))
    async with serving(tmp_path / "state", store) as served, LightSite(served.address, "a").attending():
        runner = await ended(await served.submit(job(), None, nothing()))
        assert runner.machine.state.status == "completed"
        assert PASSWORD not in served.federation.store.url


def test_strangers_stay_outside(server: TlsRedis, pki: Consortium, tmp_path: Path) -> None:
    mine = pki.issue("controller", "hub")
    (tmp_path / "wrong").write_text("guess\n")
    with pytest.raises(InvalidInput, match=r"(?i)password|auth"):
        RedisSpace(url(server, mine, password_file=str(tmp_path / "wrong")))
    with pytest.raises((InvalidInput, Unreachable), match=r"(?i)auth|password|permission"):
        RedisSpace(url(server, mine, password_file=""))
    with pytest.raises(Unreachable):
        RedisSpace(url(server, mine, ssl_certfile="", ssl_keyfile=""))
    with pytest.raises(Unreachable):
        RedisSpace(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0")


def test_a_redis_of_another_authority_or_host_is_not_believed(
    server: TlsRedis, pki: Consortium, tmp_path: Path
) -> None:
    other = Consortium(tmp_path / "other").issue("controller", "hub")
    with pytest.raises(Unreachable, match=r"(?i)certificate"):
        RedisSpace(url(server, pki.issue("controller", "hub"), ssl_ca_certs=str(other / files.CA)))
    theirs = pki.issue("store", "elsewhere", host="redis.example.org")
    elsewhere = TlsRedis(tmp_path / "elsewhere", theirs, pki.issue("operator", "tester"))
    try:
        elsewhere.start()
        with pytest.raises(Unreachable, match=r"(?i)certificate|hostname|match"):
            RedisSpace(url(elsewhere, pki.issue("controller", "hub")))
    finally:
        elsewhere.kill()


def test_a_password_file_must_hold_one(server: TlsRedis, pki: Consortium, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for path in ("/nonexistent", str(tmp_path / "empty")):
        with pytest.raises(InvalidInput, match="password_file"):
            RedisSpace(url(server, pki.issue("controller", "hub"), password_file=path))
