"""Starts processes quickly: heavy modules are imported once, then each process is forked.

A fork server imports PyTorch and the daemons' modules. Every daemon is a real process, forked from it in
milliseconds.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from hansa.common.process import faults
from hansa.common.process.logs import set_up_brief

PRELOADED = [
    "torch",
    "torch._dynamo",  # the first optimizer of a process imports it, which takes seconds
    "hansa.common.run.nursery",
    "hansa.controller.server",
    "hansa.learner.daemon",
    "hansa.evaluator.daemon",
]

set_up_brief()  # the fork server imports this module, too, before others that may print warnings


def _become(
    arguments: Sequence[str], log: Path, answer: Connection | None, folder: Path, environment: dict[str, str]
) -> None:
    """Run a hansa command in a new process, with its output in a log file."""
    gc.freeze()  # what the fork server loaded never becomes garbage, and stays shared
    os.chdir(folder)  # the fork server has the folder and environment of its own start
    os.environ.clear()
    os.environ.update(environment)
    faults.arm(environment)
    from hansa.common.cli import hansa
    from hansa.common.process.state import READY

    os.setpgid(0, 0)  # Ctrl-C is for the process that started the federation, which then stops us in order
    _restore_signals()
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if answer is not None:
        os.environ[READY] = str(os.dup(answer.fileno()))
        answer.close()
    sys.argv = ["hansa", *arguments]
    hansa.main(args=list(arguments), standalone_mode=True)


def ensure_fork_server() -> None:
    """Start the fork server if there is none; it blocks Ctrl-C, which would end its imports with a traceback.

    SIGINT is blocked here meanwhile, not ignored: the new process inherits this, and a signal for us is
    delivered afterwards.
    """
    resource_tracker.ensure_running()  # the fork server's start would start it, and unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _restore_signals() -> None:
    """Unblock SIGINT; ignore one that came before we left the terminal's process group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class Nursery:
    """Starts hansa commands as processes, and ends them."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self.processes: dict[str, ForkServerProcess] = {}

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        answer: Connection | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a command under a name, in this or another folder, with additions to our environment."""
        place = (folder or Path.cwd(), dict(os.environ) | dict(environment or {}))
        ensure_fork_server()
        process = self._context.Process(target=_become, args=(arguments, log, answer, *place), name=name)
        process.start()
        self.processes[name] = process

    def pipe(self) -> tuple[Connection, Connection]:
        """Return the two ends of a pipe: read, write."""
        return self._context.Pipe(duplex=False)

    def close(self) -> None:
        """End the fork server, too; otherwise it would end a moment after us."""
        with contextlib.suppress(Exception):
            forkserver._forkserver._stop()  # type: ignore[attr-defined]

    def kill(self) -> None:
        """Kill every process; `stop` then has nothing to wait for."""
        for process in self.processes.values():
            process.kill()

    def stop(self, names: Sequence[str], patience: float = 5.0) -> None:
        """Terminate processes, and kill those that do not end in time."""
        for name in names:
            self.processes[name].terminate()
        for name in names:
            process = self.processes[name]
            process.join(patience)
            if process.exitcode is None:
                process.kill()
                process.join()
