"""The fleet and the jobs: asked for while somebody looks, once for all who do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.values.errors import Unreachable
from hansa.common.values.views import DaemonView, JobView, StatusView
from hansa.dashboard.screens import Pulse

EVERY = 2.0  # seconds between two questions; the controller streams single jobs, but no lists


class Overview:
    """What the controller knows besides single jobs."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.status: StatusView | None = None
        self.daemons: list[DaemonView] = []
        self.jobs: list[JobView] = []
        self.lost = ""  # why the controller cannot be reached
        self.pulse = Pulse()
        self._asked = -EVERY
        self._asking = asyncio.Lock()
        self._lookers = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def looking(self) -> AsyncIterator["Overview"]:
        """Keep up to date while the block runs."""
        self._lookers += 1
        try:
            await self.refresh()
            if self._task is None:
                self._task = asyncio.create_task(self._keep())
            yield self
        finally:
            self._lookers -= 1
            if not self._lookers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def refresh(self) -> None:
        """Ask, unless somebody has just asked."""
        async with self._asking:
            if time.monotonic() - self._asked < EVERY / 2:
                return
            before = (self.status, self.daemons, self.jobs, self.lost)
            try:
                self.status, self.daemons, self.jobs = await asyncio.gather(
                    self._client.status(), self._client.sites(), self._client.jobs()
                )
                self.lost = ""
            except Unreachable as error:
                self.lost = str(error)
            self._asked = time.monotonic()
            if before != (self.status, self.daemons, self.jobs, self.lost):
                self.pulse.beat()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self.refresh()

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
