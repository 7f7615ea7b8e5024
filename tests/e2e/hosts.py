"""Separate hosts on one machine: network namespaces, links between them, and the processes inside."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.conftest import ROOT
from tests.waiting import until


def run(
    *words: str, check: bool = True, timeout: float = 60, **more: Any
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **more)


def missing() -> str:
    """Return why there can be no hosts here; empty if there can."""
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
