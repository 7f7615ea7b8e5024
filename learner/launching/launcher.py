"""The learner's side: it has tasks trained by processes that the site's launcher starts."""

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from uuid import uuid4

import numpy as np

from hansa.common.app import App
from hansa.common.models.model import Manifest
from hansa.common.process.state import READY
from hansa.common.site.daemon import SiteOptions
from hansa.common.values.errors import HansaError, Unequipped, Unfit
from hansa.common.values.ids import JobId
from hansa.common.values.results import Failure, Progress
from hansa.common.values.tasks import Task, Train
from hansa.learner.jobs import JobStock
from hansa.learner.launching.parcel import Order, Parcel
from hansa.learner.launching.template import COMMAND
from hansa.learner.memory.finished import Update
from hansa.learner.training.slow import Cancelled

log = logging.getLogger(__name__)
FOLDER = "launched"  # in the state directory
LOOK = 0.2  # seconds between two looks at a process
MERCY = 10.0  # seconds that a process may take to stop when its task is withdrawn
OWN = (READY, "HANSA_LOG_FILE")  # variables that belong to this process alone
LAST = 20  # lines of its output that are logged if it fails


class TrainingFailed(HansaError):
    """The training process ended without a result."""


class Launcher:
    """Starts a process for every training task, one at a time."""

    def __init__(self, options: SiteOptions, jobs: JobStock, pulse: Callable[[JobId], int | None]) -> None:
        assert options.launcher is not None
        self._words = shlex.split(options.launcher)
        self._options, self._jobs, self._pulse = options, jobs, pulse
        self._folder = options.state / FOLDER
        shutil.rmtree(self._folder, ignore_errors=True)  # processes of an earlier learner stop

    def train(
        self,
        app: App,
        task: Task,
        work: Train,
        base: Manifest,
        arrays: dict[str, np.ndarray],
        cancelled: Event,
        report: Callable[[Progress], None],
    ) -> Update:
        """Have a task trained; the result is that of the learner's own trainer."""
        # A name that no earlier process has: it looks for its own folder to see whether to go on.
        parcel = Parcel(self._folder / f"{task.id}-{uuid4().hex[:8]}")
        try:
            parcel.put_order(self._order(), task, base, arrays, self._jobs.memory(task.job))
            code, output = self._run(parcel, task, cancelled, report)
            if cancelled.is_set():
                raise Cancelled("the task was withdrawn")
            if (result := parcel.update()) is None:
                raise _error(parcel.failure(), code, output)
        finally:
            parcel.delete()
        update, memory = result
        self._jobs.put_memory(task.job, memory)
        return update

    def _order(self) -> Order:
        options = self._options
        return Order(
            site=options.identity.site,
            data=options.data.absolute(),
            state=options.state,
            personal=options.personal,
            policy=options.policy.absolute() if options.policy else None,
            split=options.split,
            device=options.device,
            threads=options.threads,
            slow=options.slow,
        )

    def _run(
        self, parcel: Parcel, task: Task, cancelled: Event, report: Callable[[Progress], None]
    ) -> tuple[int, list[str]]:
        """Run a process to its end; return its exit code and the last lines of its output."""
        command = [sys.executable, "-P", "-m", "hansa", "learner", "task", str(parcel.folder)]
        words = [each for word in self._words for each in (command if word == COMMAND else [word])]
        log.info("task %s: started %s", task.id, shlex.join(words))
        output = parcel.folder / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in OWN},
            )
        try:
            self._watch(process, parcel, task, cancelled, report)
        finally:
            with suppress(ProcessLookupError):  # it may have left children, or have been withdrawn
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode, _last_lines(output)

    def _watch(
        self,
        process: "subprocess.Popen[bytes]",
        parcel: Parcel,
        task: Task,
        cancelled: Event,
        report: Callable[[Progress], None],
    ) -> None:
        """Return when a process has ended; pass on what it reports and what it must know."""
        known: Progress | None = None
        told: object = self  # anything but a number of steps
        stopping, ended = 0.0, False
        while True:
            if (steps := self._pulse(task.job)) != told:
                told = steps
                parcel.put_pulse(steps)
            if (progress := parcel.progress()) is not None and progress != known:
                known = progress
                report(progress)
            if ended:
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)
                ended = True
            if cancelled.is_set() and not stopping:
                stopping = time.monotonic()
                parcel.cancel()
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)  # schedulers pass it on
            if stopping and time.monotonic() - stopping > MERCY:
                return


def _last_lines(output: Path) -> list[str]:
    return output.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST:]


def _error(failure: Failure | None, code: int, output: list[str]) -> HansaError:
    """Return why there is no result, as the learner's own trainer would have raised it."""
    if failure is not None:
        kind = Unfit if failure.unfit else Unequipped if failure.final else TrainingFailed
        return kind(failure.reason)
    for line in output:
        log.error("training process: %s", line)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    memory = " (out of memory?)" if -code == signal.SIGKILL else ""
    last = f"; its last line: {output[-1].strip()[:300]}" if output else ""
    return TrainingFailed(f"the process of --launcher {how}{memory} and left no result{last}")
