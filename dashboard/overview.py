"""The fleet, the jobs and the audit log: asked for while somebody looks, once for all who do."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.values.errors import HansaError, InvalidInput, Unreachable
from hansa.common.values.views import AuditView, DaemonView, JobView, StatusView
from hansa.dashboard.screens import Pulse

EVERY = 2.0  # seconds between two questions; the controller streams single jobs, but no lists
RECORDS = 5000  # of the audit log that are remembered


class Overview:
    """What the controller knows besides single jobs."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.status: StatusView | None = None
        self.daemons: list[DaemonView] = []
        self.jobs: list[JobView] = []
        self.records: deque[AuditView] = deque(maxlen=RECORDS)
        self.lost = ""  # why the controller cannot be reached
        self.refusal = ""  # why the controller does not show its audit log
        self.pulse = Pulse()
        self._asked = -EVERY
        self._asking = asyncio.Lock()
        self._lookers = self._readers = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def looking(self, log: bool = False) -> AsyncIterator["Overview"]:
        """Keep up to date while the block runs, the audit log only if somebody reads the `log`."""
        self._lookers += 1
        self._readers += log
        try:
            await self.refresh(at_once=log)
            if self._task is None:
                self._task = asyncio.create_task(self._keep())
            yield self
        finally:
            self._lookers -= 1
            self._readers -= log
            if not self._lookers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def refresh(self, at_once: bool = False) -> None:
        """Ask; unless it must be `at_once`, not if somebody has just asked."""
        async with self._asking:
            if time.monotonic() - self._asked < EVERY / 2 and not at_once:
                return
            before = self._known
            try:
                self.status, self.daemons, self.jobs = await asyncio.gather(
                    self._client.status(), self._client.sites(), self._client.jobs()
                )
                if self._readers:
                    await self._read_log()
                self.lost = ""
            except Unreachable as error:
                self.lost = str(error)
            self._asked = time.monotonic()
            if before != self._known:
                self.pulse.beat()

    @property
    def _known(self) -> tuple[object, ...]:
        listed = (self.status, self.daemons, self.jobs)
        return (*listed, self.lost, self.refusal, len(self.records), self._newest)

    @property
    def _newest(self) -> int:
        return self.records[-1].sequence if self.records else 0

    async def _read_log(self) -> None:
        try:
            async for record in self._client.audit(after=self._newest, last=RECORDS):
                self.records.append(record)
            self.refusal = ""
        except Unreachable:
            raise
        except InvalidInput:  # the log is shorter than it was: it is that of another controller
            self.records.clear()
        except HansaError as error:
            self.refusal = str(error)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.refresh()
            except HansaError as error:  # such as a certificate that has expired; a new one may come
                self.lost = str(error)
                self.pulse.beat()

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
