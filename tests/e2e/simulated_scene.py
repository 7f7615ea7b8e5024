"""Simulations as commands, whose processes can be killed while sites are in training."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests import waiting_app
from tests.e2e.conftest import ROOT
from tests.golden.fleet import SITES
from tests.waiting import until

APP = f"{waiting_app.__file__}:app"
SAVING = (
    "from hansa.simulation.storage import saves; saves.EVERY = 0; from hansa.common.cli import hansa; hansa()"
)


class Scene:
    """A folder with a job of five sites."""

    def __init__(self, folder: Path, **job: Any) -> None:
        self.folder = folder
        for number, name in enumerate(SITES):
            (folder / name).write_text(str(number))
        files = {name: name for name in SITES}
        document = {"name": "scene", "seed": 11, "app": APP, "pace": {"rounds": 3}, "data": {"files": files}}
        (folder / "job.yaml").write_text(yaml.safe_dump(document | job))

    def words(self, out: str, *options: str, saving: bool = False) -> list[str]:
        """Return a command that simulates the job; with `saving`, it saves after every event."""
        how = ["-c", SAVING] if saving else ["-m", "hansa"]
        return [sys.executable, *how, "simulate", "job.yaml", "--out", out, "--json", *options]

    def start(
        self, out: str, *options: str, env: Mapping[str, str] | None = None, saving: bool = False
    ) -> "subprocess.Popen[str]":
        """Start a simulation in a process group of its own."""
        return subprocess.Popen(
            self.words(out, *options, saving=saving),
            cwd=self.folder,
            env=self.environment(**(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @staticmethod
    def environment(**env: str) -> dict[str, str]:
        return os.environ | {"HANSA_CONFIG": "", "PYTHONPATH": str(ROOT)} | env

    def hold(self) -> None:
        """Let training wait from now on."""
        (self.folder / "wait").touch()

    def go_on(self) -> None:
        """Let training go on."""
        (self.folder / "wait").unlink()

    def busy(self, count: int) -> list[int]:
        """Wait until this many processes are in training; return them, and forget them."""
        pids = until(lambda: self._busy(count), 90, f"fewer than {count} train")
        for path in self.folder.glob("busy-*"):
            path.unlink()
        return pids

    def _busy(self, count: int) -> list[int]:
        pids = [int(path.name.partition("-")[2]) for path in self.folder.glob("busy-*")]
        return pids if len(pids) >= count else []

    def digests(self, out: str) -> list[str]:
        """Return the digests of a simulation's versions."""
        report = json.loads((self.folder / out / "report.json").read_text())
        return [entry["digest"] for entry in report["history"]]


def alive(pid: int) -> bool:
    """Whether a process lives; one that nobody has waited for is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
