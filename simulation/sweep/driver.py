"""Runs what is missing of a sweep, one job after another, and leaves every result in its folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa import __version__
from hansa.common.values.errors import HansaError, InvalidInput, Taken, Unreachable
from hansa.simulation.sweep.plan import Plan, Run
from hansa.simulation.sweep.progress import Progress
from hansa.simulation.sweep.records import Record, read_record, write_record
from hansa.simulation.sweep.results import Result, read_result
from hansa.simulation.sweep.runners import Runner

RUNS, LOCK = "runs", "sweep.lock"
LONGEST = 2000  # characters of a reason


class Driver:
    """The runs of one sweep, in one folder."""

    def __init__(self, plan: Plan, folder: Path, retry: bool = True) -> None:
        self._plan, self._folder, self._retry = plan, folder, retry

    def place(self, run: Run) -> Path:
        """Return the folder of a run."""
        return self._folder / RUNS / run.folder

    def results(self) -> list[Result]:
        """Return the results that there are."""
        return [self._read(run) for run in self._plan.runs]

    def _read(self, run: Run) -> Result:
        return read_result(run, self.place(run), self._plan.spec.metrics)

    def due(self, results: list[Result]) -> list[Run]:
        """Return the runs that have yet to be made: missing ones and, unless told otherwise, failed ones."""
        again = ("missing", "failed") if self._retry else ("missing",)
        return [result.run for result in results if result.status in again]

    def run(self, runs: list[Run], runner: Runner, progress: Progress) -> None:
        """Make runs; one that fails does not keep the others from being made."""
        for run in runs:
            progress.started(run)
            progress.ended(self._make(run, runner))

    def _make(self, run: Run, runner: Runner) -> Result:
        place, begin = self.place(run), time.monotonic()
        before = read_record(place)
        record = Record(
            digest=run.digest,
            status="running",
            hansa=__version__,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            job=before.job if before else "",
        )
        write_record(place, record)
        reason = ""
        try:
            runner.run(run.spec, place)
        except Unreachable:
            raise  # no other run would fare better
        except HansaError as error:
            reason = _brief(error)
        write_record(
            place,
            Record(
                digest=run.digest,
                status="failed" if reason else "completed",
                reason=reason,
                hansa=record.hansa,
                started=record.started,
                seconds=round(time.monotonic() - begin, 3),
            ),
        )
        return self._read(run)


def _brief(error: HansaError) -> str:
    """Return why a run failed, in one line: commands print each line with their name."""
    lines = [line.removeprefix("hansa: ").strip() for line in str(error).split("\n")]
    return "; ".join(line for line in lines if line)[:LONGEST] or type(error).__name__


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep a second sweep out of a folder while this one runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Taken(
                f"{folder} is in use by another sweep; wait for its end, or choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)
