"""Other frameworks doing the same idle rounds on this machine, each in a virtual environment of its own.

Optional and never part of CI: it needs a package index. Flower runs on its simulation engine
(`run_simulation`, Ray actors), NVFLARE in its simulator with as many threads as sites. Both are the projects'
own ways to run a whole federation on one machine. They are not their deployments (SuperLink and
SuperNodes, POC mode), whose figures differ.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "peers"
PEERS = {
    "flower": ("flwr", "flwr[simulation]", "flower_app.py"),
    "nvflare": ("nvflare", "nvflare", "nvflare_job.py"),
}
PATIENCE = 900  # seconds for a run


def run_peer(name: str, sites: int, parameters: int, rounds: int) -> dict[str, Any]:
    """Install a peer, run it once and return the seconds of its rounds."""
    package, wanted, script = PEERS[name]
    with tempfile.TemporaryDirectory(prefix="hansa-peer-", ignore_cleanup_errors=True) as folder:
        home = os.environ.get(f"HANSA_PEER_{name.upper()}")  # an environment that has it already
        python = Path(home or folder) / "bin" / "python"
        if not home:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", wanted], check=True)
        asking = f"from importlib.metadata import version; print(version({package!r}))"
        version = subprocess.run(
            [python, "-c", asking], check=True, capture_output=True, text=True
        ).stdout.strip()
        work = Path(folder) / "work"
        work.mkdir()
        shutil.copytree(SCRIPTS, work / "scripts")
        arguments = [str(value) for value in (python, work / "scripts" / script, sites, parameters, rounds)]
        moments = json.loads(_output(arguments, work).splitlines()[-1])
    return {"peer": name, "version": version, "seconds": [b - a for a, b in pairwise(moments)]}


def _output(arguments: list[str], folder: Path) -> str:
    """Run a command in a session of its own and return its output; end what it leaves behind."""
    quiet = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(folder)}
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
