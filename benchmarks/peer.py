"""Other frameworks doing the same work on this machine, each in a virtual environment of its own.

Optional and never part of CI: it needs a package index. Flower runs on its simulation engine
(`run_simulation`, Ray actors), NVFLARE in its simulator with as many threads as sites, pfl in its simulated
backend. These are the projects' own ways to run a whole federation on one machine. They are not deployments
(SuperLink and SuperNodes, POC mode), whose figures differ.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "peers"
PEERS = {  # by name: the package, and what to install
    "flower": ("flwr", "flwr[simulation]"),
    "nvflare": ("nvflare", "nvflare"),
    "pfl": ("pfl", "pfl"),
}
IDLE = {"flower": "flower_app.py", "nvflare": "nvflare_job.py"}  # scripts of rounds without training
PATIENCE = 900  # seconds for a run


@dataclass(frozen=True)
class Peer:
    """Another framework that is installed."""

    name: str
    version: str
    python: Path

    def run(self, script: str, *arguments: object, launcher: Sequence[str] = ()) -> Any:
        """Run a script of `peers/` and return the JSON in the last line of its output."""
        with tempfile.TemporaryDirectory(prefix="hansa-peer-", ignore_cleanup_errors=True) as folder:
            work = Path(folder)
            shutil.copytree(SCRIPTS, work / "scripts")
            words = [str(self.python), *launcher, str(work / "scripts" / script), *map(str, arguments)]
            return json.loads(_output(words, work).splitlines()[-1])


@contextmanager
def installed(name: str, *more: str) -> Iterator[Peer]:
    """Install a peer, and more packages beside it, for as long as it is needed."""
    package, wanted = PEERS[name]
    with tempfile.TemporaryDirectory(prefix="hansa-peer-", ignore_cleanup_errors=True) as folder:
        home = os.environ.get(f"HANSA_PEER_{name.upper()}")  # an environment that has it already
        python = Path(home or folder) / "bin" / "python"
        if not home:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", wanted, *more], check=True)
        asking = f"from importlib.metadata import version; print(version({package!r}))"
        version = subprocess.run([python, "-c", asking], check=True, capture_output=True, text=True)
        yield Peer(name, version.stdout.strip(), python)


def run_peer(name: str, sites: int, parameters: int, rounds: int) -> dict[str, Any]:
    """Install a peer, run rounds without training once and return their seconds."""
    with installed(name) as peer:
        moments = peer.run(IDLE[name], sites, parameters, rounds)
    return {"peer": name, "version": peer.version, "seconds": [b - a for a, b in pairwise(moments)]}


def _output(arguments: list[str], folder: Path) -> str:
    """Run a command in a session of its own and return its output; end what it leaves behind."""
    quiet = os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(folder),
    }
    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=quiet,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            _end_session(process.pid)
            process.wait()
        if process.returncode:
            raise RuntimeError(f"{arguments[1]} failed:\n{(folder / 'errors').read_text()[-2000:]}")
    return said


def _end_session(session: int) -> None:
    """End every process of a session that we started, in whatever process group."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, IndexError):
            continue  # gone meanwhile
