"""Separate hosts: controller, Redis and three sites in network namespaces, each site on a link of its own.

site a ── 10.77.1.0/30 ──┐
site b ── 10.77.2.0/30 ──┼── controller ── 10.77.9.0/30 ── redis
site c ── 10.77.3.0/30 ──┘   (forwards nothing; the operator is here, too)
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hansa.common.models.frames import FRAME
from hansa.common.pki import files
from tests.consortium import Consortium
from tests.e2e.conftest import ROOT, weights, write_data
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


def run(
    *words: str, check: bool = True, timeout: float = 60, **more: Any
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **more)


def _missing() -> str:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "ss"))):
        return "network namespaces need root and iproute2"
    probe = f"hansa-probe-{os.getpid()}"
    made = run("ip", "netns", "add", probe, check=False)
    if made.returncode == 0:
        run("ip", "netns", "del", probe)
    return "" if made.returncode == 0 else f"no network namespaces here: {made.stderr.strip()}"


class Hosts:
    """Namespaces, links between them, and the processes inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"h{os.getpid() % 100_000:05d}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names: list[str] = []

    def add(self, name: str) -> None:
        run("ip", "netns", "add", self.space(name))
        self.names.append(name)
        self.inside(name, "ip", "link", "set", "lo", "up")

    def space(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def link(self, one: str, other: str, number: int) -> None:
        """Join two hosts: 10.77.N.1 is `one`, 10.77.N.2 is `other`."""
        ends = [f"{self.mark}v{number}{end}" for end in "xy"]
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for host, end, last in ((one, ends[0], 1), (other, ends[1], 2)):
            run("ip", "link", "set", end, "netns", self.space(host))
            self.inside(host, "ip", "addr", "add", f"10.77.{number}.{last}/30", "dev", end)
            self.inside(host, "ip", "link", "set", end, "up")

    def device(self, number: int, end: str) -> str:
        return f"{self.mark}v{number}{end}"

    def inside(
        self, name: str, *words: str, check: bool = True, **more: Any
    ) -> "subprocess.CompletedProcess[str]":
        return run("ip", "netns", "exec", self.space(name), *words, check=check, **more)

    def start(self, host: str, name: str, *words: str, **env: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["ip", "netns", "exec", self.space(host), *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | {"HANSA_CONFIG": "", "PYTHONPATH": str(ROOT), "HANSA_DRAIN": "0"} | env,
            )

    def hansa(self, host: str, *words: str) -> "subprocess.CompletedProcess[str]":
        env = os.environ | {"HANSA_CONFIG": "", "PYTHONPATH": str(ROOT)}
        return self.inside(host, sys.executable, "-m", "hansa", *words, check=False, cwd=self.folder, env=env)

    def slow(self, number: int) -> None:
        """Give a link 8 Mbit/s and 10 ms each way, and let it lose one packet in 200."""
        ends = [(host, self.device(number, end)) for host, end in (("hub", "x"), (self.names[number], "y"))]
        for host, device in ends:
            words = ["tc", "qdisc", "replace", "dev", device, "root", "netem", "rate", "8mbit"]
            if self.inside(host, *words, "delay", "10ms", "loss", "0.5%", check=False).returncode:
                return self._slow_without_netem(number, ends)
        return None

    def _slow_without_netem(self, number: int, ends: list[tuple[str, str]]) -> None:
        """Put a process of our own in the place of the link: not every kernel can delay and lose packets."""
        self.inside("hub", "ip", "link", "del", ends[0][1])
        words: list[str] = []
        for last, (host, device) in enumerate(ends, 1):
            words += [self.space(host), device, f"10.77.{number}.{last}/30"]
        written = self.folder / "link.txt"
        link = [sys.executable, str(Path(__file__).with_name("lossy_link.py")), *words, str(written)]
        self.processes["link"] = subprocess.Popen(link)
        until(written.exists, 10, "the slow link did not come up")

    def packets_lost(self) -> int | None:
        """Stop a link's process and return how many packets it lost; None if the kernel was the link."""
        if "link" not in self.processes:
            return None
        self.processes["link"].terminate()
        self.processes["link"].wait(10)
        return int((self.folder / "link.txt").read_text().split()[1])

    def received(self, number: int) -> int:
        """Return how many bytes the hub has got over a link."""
        shown = self.inside("hub", "ip", "-s", "-j", "link", "show", "dev", self.device(number, "x")).stdout
        return int(json.loads(shown)[0]["stats64"]["rx"]["bytes"])

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in self.names:
            run("ip", "netns", "del", self.space(name), check=False)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    why = _missing()
    if why:
        pytest.skip(why)
    held = Hosts(tmp_path)
    try:
        for name in ("hub", "a", "b", "c", "redis"):
            held.add(name)
        for number, name in ((1, "a"), (2, "b"), (3, "c"), (9, "redis")):
            held.link("hub", name, number)
        yield held
    finally:
        held.close()


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
