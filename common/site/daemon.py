"""The loop of a site's daemon: tasks come in, one at a time is worked on, results go out."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar, TypeVarTuple

from hansa.common.process.lifetime import stop_signal
from hansa.common.site.attendance import Attendance
from hansa.common.site.connection import Identity
from hansa.common.site.failures import failure_of
from hansa.common.site.files import DiskFiles
from hansa.common.site.log_tail import LogTail
from hansa.common.site.policy import PolicyFile
from hansa.common.site.shelf import Shelf
from hansa.common.site.transfer import Fetcher
from hansa.common.values.errors import Forbidden, Refused, Stale
from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Task
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)
PERSONAL = "personal"  # in the state directory, unless --personal names another folder
LOOK = 5.0  # seconds between two looks at the apps' files and at data that could not be used
T = TypeVar("T")
Args = TypeVarTuple("Args")


@dataclass(frozen=True)
class SiteOptions:
    """The options of `hansa learner start` and `hansa evaluator start`."""

    identity: Identity
    data: Path
    apps: tuple[str, ...]
    state: Path
    split: str = "train"
    device: str = "cpu"
    threads: int | None = None
    policy: Path | None = None
    slow: float = 1.0  # learners only: the factor by which training is slowed down
    drain: float = 0.0  # seconds that the task in hand may take after a signal to stop
    launcher: str | None = None  # learners only: the command line that starts processes for training
    personal: Path | None = None  # the folder of the site's own tensors; None: in the state directory

    @property
    def own_device(self) -> str:
        """Where the daemon itself computes: with a launcher, only what that starts uses the device."""
        return "cpu" if self.launcher else self.device

    @property
    def files(self) -> DiskFiles:
        """The files that must survive a restart."""
        return DiskFiles(self.state)

    @property
    def personal_files(self) -> DiskFiles:
        """The files of the site's own tensors, which its learner and its evaluator share."""
        return DiskFiles(self.personal or self.state / PERSONAL)


@dataclass
class TaskInHand:
    """A task that is running, queued, or whose result is not acknowledged yet."""

    task: Task
    cancelled: Event
    run: "asyncio.Task[None] | None" = None


class SiteDaemon(ABC):
    """A learner or an evaluator: the session's loop and one thread for PyTorch."""

    def __init__(self, options: SiteOptions, shelf: Shelf) -> None:
        self.options = options
        self.shelf = shelf
        self.policy = PolicyFile(options.policy)
        self.log_tail = LogTail()
        self.attendance = Attendance(options.identity, self._report_apps, read_log=self._read_log)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="torch")  # the only thread that computes
        self._helpers = ThreadPoolExecutor(2, thread_name_prefix="io")
        self.fetcher = Fetcher(self.attendance, self._helpers)
        self._in_hand: dict[TaskId, TaskInHand] = {}
        self._queue: asyncio.Queue[TaskInHand] = asyncio.Queue()
        self._draining = False
        self._reported: list[fleet.AppState] = []  # what the controller knows

    async def compute(self, work: Callable[[*Args], T], *args: *Args) -> T:
        """Run code of an app or a plugin on the thread that computes."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, _completing, work, *args)

    @abstractmethod
    async def perform(self, task: Task, cancelled: Event) -> None:
        """Do a task and submit its result."""

    async def run(self, ready: Callable[[str], None]) -> None:
        """Stay connected and work until told to stop."""
        self.log_tail.open()
        work = asyncio.create_task(self._work())
        attend = asyncio.create_task(self.attendance.attend(self, ready))
        stop = asyncio.create_task(stop_signal())
        watch = asyncio.create_task(self._watch_apps())
        try:
            await asyncio.wait((work, attend, stop), return_when=asyncio.FIRST_COMPLETED)
            for ended in (work, attend):
                if ended.done():
                    ended.result()
            await self._drain()
        finally:
            for held in self._in_hand.values():
                held.cancelled.set()
            for task in (work, attend, stop, watch):
                if task is not attend or not stop.done():
                    task.cancel()
            await self.attendance.leave()
            attend.cancel()
            await asyncio.gather(work, attend, stop, watch, return_exceptions=True)
            self.thread.shutdown(wait=True, cancel_futures=True)
            self._helpers.shutdown(wait=True, cancel_futures=True)
            self.log_tail.close()

    async def _drain(self) -> None:
        """Finish the task in hand, if it does not take too long; a second signal ends that, too."""
        running = [
            (each.task.id, each.run) for each in self._in_hand.values() if each.run and not each.run.done()
        ]
        if not running or not self.options.drain:
            return
        self._draining = True
        log.info(
            "finishing task %s, for at most %g s; a second signal stops at once",
            running[0][0],
            self.options.drain,
        )
        again = asyncio.create_task(stop_signal())
        runs = [run for _, run in running]
        await asyncio.wait((*runs, again), timeout=self.options.drain, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()

    def _read_log(self, operator: str, lines: int) -> list[str]:
        """Return the last lines of the log, as many as the site's policy shows to operators."""
        policy = self.policy.current()
        policy.require_readable(operator)
        return self.log_tail.last(min(lines or policy.logs, policy.logs))

    def in_hand(self) -> list[TaskId]:
        """Return the tasks that are running, queued or not yet acknowledged."""
        return list(self._in_hand)

    def take(self, task: Task) -> None:
        """Queue a task; a task that is in hand already is ignored."""
        if task.id not in self._in_hand:
            self._in_hand[task.id] = taken = TaskInHand(task, Event())
            self._queue.put_nowait(taken)

    def cancel(self, task: TaskId, reason: str) -> None:
        """Drop a task."""
        dropped = self._in_hand.pop(task, None)
        if dropped:
            log.info("task %s is cancelled: %s", task, reason)
            dropped.cancelled.set()
            if dropped.run:
                dropped.run.cancel()

    def require_usable(self) -> None:
        """Refuse to start if no app can be used."""
        states = self._app_states()
        if any(not state.error and state.examples for state in states):
            return
        why = (
            f"app {state.ref} cannot be used: {state.error or 'the data hold no examples'}"
            for state in states
        )
        raise Refused(
            f"{'; '.join(why)}. With --keep-going the daemon starts anyway and waits until an app can be used"
        )

    def _report_apps(self) -> list[fleet.AppState]:
        self._reported = self._app_states()
        return self._reported

    async def _watch_apps(self) -> None:
        """Retry apps that could not be used, notice edits, and tell the controller what has changed."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK)
            try:
                for ref in await loop.run_in_executor(self._helpers, self.shelf.due):
                    await self.compute(self.shelf.load, ref)
                await loop.run_in_executor(self._helpers, self.shelf.look)
            except Exception:  # files come and go, and apps raise anything: the daemon works with what it has
                log.exception("the apps could not be checked for changes")
            if self._app_states() != self._reported:
                self.attendance.enrol_again()

    def _app_states(self) -> list[fleet.AppState]:
        """Return the apps as enrolment names them: usable, unusable, or not allowed by the policy."""
        try:
            allowed, reason = self.policy.current().apps, "the site's policy does not allow it"
        except Forbidden as error:
            allowed, reason = (), str(error)
        states = self.shelf.states()
        return [
            state if allowed is None or state.ref in allowed else fleet.AppState(ref=state.ref, error=reason)
            for state in states
        ]

    async def _work(self) -> None:
        while True:
            current = await self._queue.get()
            if current.cancelled.is_set():
                continue
            current.run = asyncio.create_task(self._perform(current.task, current.cancelled))
            await asyncio.wait([current.run])
            self._in_hand.pop(current.task.id, None)
            if self._draining:
                return

    async def _perform(self, task: Task, cancelled: Event) -> None:
        try:
            self.policy.current().require(task, len(self.shelf.get(task.app).examples))
            await self.perform(task, cancelled)
        except Stale as error:
            log.info("task %s: %s", task.id, error)
        except asyncio.CancelledError:
            if not cancelled.is_set():
                raise
        except (Exception, SystemExit) as error:  # an app or a plugin may raise anything
            failure = failure_of(error)
            if not failure.final and not failure.unfit:
                log.exception("task %s failed", task.id)
            await self.attendance.report_failure(task.id, failure)


def _completing(work: Callable[[*Args], T], *args: *Args) -> T:
    """Call `work`; StopIteration becomes a RuntimeError, since a future that held it would never be done."""
    try:
        return work(*args)
    except StopIteration as error:
        raise RuntimeError("StopIteration was raised").with_traceback(error.__traceback__) from None
