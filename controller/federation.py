"""The composition root: puts the controller together, except for its network.

It decides which object is handed which others, and in which order they close. One event loop owns all of
them. Nothing below this module knows it.
"""

import asyncio
from contextlib import AsyncExitStack

from hansa import __version__
from hansa.common.process.clock import Clock
from hansa.controller.audit.log import Audit
from hansa.controller.engine.machine import Machine
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.jobs.admission import Admission
from hansa.controller.jobs.archive import Archive
from hansa.controller.jobs.attendance import Attendance
from hansa.controller.jobs.deletion import Deletion
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.keys import Keys
from hansa.controller.jobs.launcher import Launcher
from hansa.controller.jobs.reading import Reader
from hansa.controller.jobs.records import Records
from hansa.controller.jobs.resuming import Resumption
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.journal import Journal
from hansa.controller.storage.stores import Store
from hansa.controller.storage.stores.recent import with_recent
from hansa.controller.transfers.downloads import Downloads
from hansa.controller.transfers.gate import Gate
from hansa.controller.transfers.intake import Intake
from hansa.controller.transfers.manifests import Manifests
from hansa.controller.transfers.uploads import Uploads
from hansa.controller.work.workers import Workers

LAST_RECORDS = 5.0  # seconds to write the last records of the audit log when the controller stops


class Federation:
    """The composition root. Use it as an async context manager: entering it resumes the journal's jobs."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        clock: Clock,
        heartbeat: float = 5.0,
        grace: float = 15.0,
        memory: int = 1 << 30,
        keep_days: float | None = None,  # of jobs that have ended; None: for ever
    ) -> None:
        self.clock = clock
        self.memory = memory  # bytes that models in transit and sums may take
        self.store = with_recent(store, memory)
        self.workers = workers = Workers(self._show_store_trouble)
        self.records = Records(journal, workers, clock)
        self.audit = Audit(journal, workers, clock)
        reader = Reader(self._make_runner, self.records, clock)
        self.jobs = Jobs(Archive(reader.load))
        self.fleet = Fleet(clock, Attendance(self.jobs, self.audit), heartbeat, grace)
        self.launcher = Launcher(self.jobs, self.records, self.audit, lambda: workers.trouble)
        self.gate = Gate(memory)
        self.uploads = Uploads(workers)
        manifests = Manifests(self.store, workers)
        self.intake = Intake(self.jobs, self.uploads, self.gate, manifests, self.store, workers)
        self.downloads = Downloads(self.store, workers, memory)
        self.admission = Admission(
            self._make_runner,
            self.launcher,
            self.store,
            workers,
            clock,
            self.fleet,
            self.audit,
            self.records,
            Keys(self.jobs),
        )
        self.deletion = Deletion(
            self.jobs, self.launcher, self.records, self.store, workers, self.audit, clock, keep_days
        )
        self._resumption = Resumption(
            self._make_runner,
            reader,
            self.jobs,
            self.launcher,
            self.store,
            workers,
            clock,
            self.fleet,
            self.audit,
            self.records,
        )
        self._exit = AsyncExitStack()

    def _show_store_trouble(self) -> None:
        """Show everybody who watches a job that it is waiting for the store, or no longer is."""
        self.jobs.changed()

    def _make_runner(self, machine: Machine) -> JobRunner:
        return JobRunner(
            machine,
            store=self.store,
            workers=self.workers,
            clock=self.clock,
            fleet=self.fleet,
            records=self.records,
            memory=self.memory,
            discard=self.uploads.discard,
        )

    async def __aenter__(self) -> "Federation":
        try:
            await self._open()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exit.aclose()

    async def _open(self) -> None:
        """Open everything; what is opened last is closed first."""
        self._exit.callback(self.workers.close)
        await self.workers.io(self.store.sweep)
        tasks = await self._exit.enter_async_context(asyncio.TaskGroup())
        self.audit.note("controller", "started", __version__, await self.audit.open())
        writer = tasks.create_task(self.audit.write())
        self._exit.push_async_callback(self._close_audit, writer)
        await self._exit.enter_async_context(self.launcher)
        self._exit.callback(self.admission.close)
        self._exit.callback(tasks.create_task(self.fleet.watch()).cancel)
        self._exit.callback(self.fleet.close)
        await self.deletion.finish()
        await self._resumption.resume_all()
        self._exit.push_async_callback(self.deletion.close)
        self._exit.callback(tasks.create_task(self.deletion.watch()).cancel)

    async def _close_audit(self, writer: "asyncio.Task[None]") -> None:
        self.audit.note("controller", "stopped", __version__)
        self.audit.close()
        await asyncio.wait((writer,), timeout=0 if self.workers.trouble else LAST_RECORDS)
        writer.cancel()  # the store is away: records that it has not taken are lost
