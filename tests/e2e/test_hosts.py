"""Separate hosts: controller, Redis and three sites in network namespaces, each site on a link of its own.

site a ── 10.77.1.0/30 ──┐
site b ── 10.77.2.0/30 ──┼── controller ── 10.77.9.0/30 ── redis
site c ── 10.77.3.0/30 ──┘   (forwards nothing; the operator is here, too)
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hansa.common.models.frames import FRAME
from hansa.common.pki import files
from tests.consortium import Consortium
from tests.e2e.conftest import weights, write_data
from tests.e2e.hosts import Hosts, missing
from tests.redis_server import redis_binary, tls_redis_binary
from tests.waiting import until

PASSWORD = "correct-horse-battery"
APP_TEXT = """
from torch import nn
from hansa import App
app = App(model=lambda: nn.Sequential(nn.Linear(2, 150_000), nn.ReLU(), nn.Linear(150_000, 2)), classes=2)
"""
OUTAGE = 3  # seconds for which a link is down
MODEL = (150_000 * 3 + 150_000 * 2 + 2) * 4  # bytes
JOB_TEXT = """
name: hosts
seed: 7
app: app.py:app
pace: {kind: sync, rounds: 2}
train: {epochs: 1, batch_size: 60, optimizer: {kind: sgd, lr: 0.001}}
sites: {min: 3, wait: 60}
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    why = missing()
    if why:
        pytest.skip(why)
    network = Hosts(tmp_path)
    try:
        for name in ("hub", "a", "b", "c", "redis"):
            network.add(name)
        for number, name in ((1, "a"), (2, "b"), (3, "c"), (9, "redis")):
            network.link("hub", name, number)
        yield network
    finally:
        network.close()


def start_redis(hosts: Hosts, pki: Consortium) -> str:
    """Start Redis on its host, over TLS if it can; return the controller's --store."""
    hub, binary = pki.place / "controller-hub", tls_redis_binary()
    (hosts.folder / "secret").write_text(PASSWORD)
    words = ["--bind", "10.77.9.2", "--requirepass", PASSWORD, "--save", "", "--appendonly", "no"]
    words += ["--dir", str(hosts.folder)]
    if binary is None:
        hosts.start("redis", "redis", redis_binary(), "--port", "6379", *words)
        return f"redis://10.77.9.2:6379/0?password_file={hosts.folder}/secret"
    tls = pki.issue("store", "redis", host="10.77.9.2")
    words += [
        "--port",
        "0",
        "--tls-port",
        "6379",
        "--tls-auth-clients",
        "yes",
        "--tls-ca-cert-file",
        str(tls / files.CA),
    ]
    words += ["--tls-cert-file", str(tls / files.CERTIFICATE), "--tls-key-file", str(tls / files.KEY)]
    hosts.start("redis", "redis", binary, *words)
    mine = (
        f"ssl_ca_certs={hub / files.CA}&ssl_certfile={hub / files.CERTIFICATE}&ssl_keyfile={hub / files.KEY}"
    )
    return f"rediss://10.77.9.2:6379/0?password_file={hosts.folder}/secret&{mine}"


@pytest.mark.timeout(400)
def test_a_federation_of_separate_hosts_survives_its_links(hosts: Hosts) -> None:
    folder, pki = hosts.folder, Consortium(hosts.folder / "pki")
    (folder / "app.py").write_text(APP_TEXT)
    (folder / "job.yaml").write_text(JOB_TEXT)
    pki.issue("controller", "hub", hosts=["10.77.1.1", "10.77.2.1", "10.77.3.1", "127.0.0.1"])
    operator = pki.issue("operator", "alice")
    store = start_redis(hosts, pki)
    start = (
        "-m",
        "hansa",
        "controller",
        "start",
        "--listen",
        "0.0.0.0:7300",
        "--state",
        "hub",
        "--store",
        store,
    )
    hosts.start(
        "hub",
        "controller",
        sys.executable,
        *start,
        "--tls",
        str(pki.place / "controller-hub"),
        "--grace",
        "60",
    )
    for number, (name, role) in enumerate(
        (("a", "learner"), ("b", "learner"), ("c", "learner"), ("a", "evaluator"))
    ):
        write_data(folder / f"{name}.npz", number)
        mine = pki.issue(role, name)  # type: ignore[arg-type]
        address = f"10.77.{'abc'.index(name) + 1}.1:7300"
        words = ["--controller", address, "--site", name, "--data", f"{name}.npz", "--app", "app.py:app"]
        words += ["--tls", str(mine), "--state", f"{role}-{name}", "--threads", "1"]
        hosts.start(name, f"{role}-{name}", sys.executable, "-m", "hansa", role, "start", *words)

    def ask(*words: str) -> Any:
        done = hosts.hansa("hub", *words, "--controller", "127.0.0.1:7300", "--tls", str(operator), "--json")
        return json.loads(done.stdout) if done.stdout else None

    def logs() -> str:
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in folder.glob("*.log"))

    until(lambda: len(ask("site", "list") or ()) == 4, 120, logs)

    # Sites see the controller and nobody else, and nobody can connect to them.
    for other in ("10.77.2.2", "10.77.9.2", "10.77.2.1"):
        probe = f"import socket; socket.create_connection(('{other}', 7300), 2)"
        assert hosts.inside("a", sys.executable, "-c", probe, check=False).returncode != 0, other
    for name in "abc":
        assert not hosts.inside(name, "ss", "-Hltun").stdout.strip()

    # Site c hangs on a slow link, which is cut twice in mid-upload: once for a while, once with its
    # connections.
    hosts.slow(3)
    job = ask("job", "submit", "job.yaml")["job"]
    before = hosts.received(3)
    until(lambda: hosts.received(3) > before + FRAME // 2, 90, logs)
    hosts.inside("c", "ip", "link", "set", hosts.device(3, "y"), "down")
    cut = time.monotonic()
    until(lambda: time.monotonic() > cut + OUTAGE)
    hosts.inside("c", "ip", "link", "set", hosts.device(3, "y"), "up")
    killed = hosts.inside("c", "ss", "-HK", "dst", "10.77.3.1", check=False).stdout.strip()
    until(lambda: ask("job", "show", job)["status"] in ("completed", "failed"), 200, logs)
    found = ask("job", "show", job)
    assert found["status"] == "completed", found["reason"] + logs()
    rounds = [entry for entry in found["history"] if entry["version"]]
    assert [sorted(weights(entry)) for entry in rounds] == [["a", "b", "c"]] * 2
    assert not any(entry["lost"] for entry in rounds)
    extra = found["bytes_up"] - 7 * MODEL  # the first model, and three in each of two rounds
    assert -1000 < extra < 3 * FRAME, f"{extra} bytes were sent again"
    assert hosts.packets_lost() != 0
    if killed:  # where the kernel cannot do that, TCP has bridged the gap
        assert "learner c lost its connection" in (folder / "controller.log").read_text()
    assert re.search(
        r"learner c", hosts.hansa("hub", "audit", "show", "--state", "hub", "--store", store).stdout
    )
