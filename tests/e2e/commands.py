"""Runs hansa commands in real processes that start in milliseconds.

They are forked from the server that the nursery starts, which has imported everything. `hansa run` forks its
sites from the same server, too: one of its own would import PyTorch first, which takes seconds. Tests of how
a command begins start a fresh Python instead.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from hansa.common.process import faults
from hansa.common.run.nursery import PRELOADED, ensure_fork_server

CONTEXT = multiprocessing.get_context("forkserver")


def run_command(
    arguments: Sequence[str], cwd: Path, environment: dict[str, str], timeout: float
) -> "subprocess.CompletedProcess[str]":
    """Run a hansa command to its end."""
    if environment.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):  # only a new interpreter reads it
        words = [sys.executable, "-m", "hansa", *arguments]
        return subprocess.run(
            words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    CONTEXT.set_forkserver_preload(PRELOADED)
    ensure_fork_server()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        place = (cwd, environment, _server()._forkserver_address)
        process = CONTEXT.Process(target=_become, args=(arguments, outputs, *place), name="hansa")
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        stdout, stderr = (path.read_text(encoding="utf-8") for path in outputs)
    return subprocess.CompletedProcess(list(arguments), process.exitcode, stdout, stderr)


def _become(
    arguments: Sequence[str], outputs: Sequence[Path], folder: Path, environment: dict[str, str], address: str
) -> None:
    """Run a command in a new process, with its output in two files."""
    gc.freeze()  # what the server loaded never becomes garbage, and stays shared
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    faults.arm(environment)
    _share_server(address)
    sys.argv = ["hansa", *arguments]
    from hansa.common.cli import hansa

    hansa.main(args=list(arguments), standalone_mode=True)


def _share_server(address: str) -> None:
    """Let this process fork from the server that it was forked from: multiprocessing would start another."""
    server = _server()
    server._forkserver_address = address
    server.ensure_running = lambda: None
    forkserver.ensure_running = server.ensure_running


def _server() -> Any:
    return forkserver._forkserver
