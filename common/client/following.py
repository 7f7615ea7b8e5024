"""Follows a job until it ends, even if its controller restarts: its views, versions and events, each once."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from hansa.common.client.connection import Connection
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.errors import Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import EventView, JobView

T = TypeVar("T")


class Following:
    """A job that is followed. If it is `known` to exist, the first failure to connect is not final.

    `lost` is called after each attempt that failed, `found` with each answer.
    """

    def __init__(
        self,
        controller: Endpoint,
        job: str,
        known: bool = False,
        lost: Callable[[], None] = lambda: None,
        found: Callable[[], None] = lambda: None,
    ) -> None:
        self._to, self.job, self.known = controller, job, known
        self._lost, self._found = lost, found

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view after every change until it ends."""
        async for view in self._going_on(lambda connection: connection.views(self.job)):
            self.job = view.job  # by now the name may also be another job's
            yield view
            if view.ended:
                return

    async def versions(self, after: int = 0) -> AsyncIterator[VersionView]:
        """Yield every version above `after` once, in order, as soon as its metrics are complete."""
        known: dict[int, VersionView] = {}
        async for view in self.views():
            known |= {entry.version: entry for entry in view.history if entry.version > after}
            while (entry := known.get(after + 1)) and (entry.settled or view.ended):
                yield known.pop(after := after + 1)

    async def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """Yield what happened in the job after an event and what happens until it ends, each once."""
        told = after

        async def ask(connection: Connection) -> AsyncIterator[EventView | None]:
            self.job = (await connection.show(self.job)).job
            async for event in connection.events(self.job, told, follow=True):
                yield event
            if (await connection.show(self.job)).ended:
                yield None

        async for event in self._going_on(ask):
            if event is None:
                return
            told = event.sequence
            yield event

    async def _going_on(self, ask: Callable[[Connection], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Yield what a controller streams, and ask again whenever the connection is lost."""
        backoff = Backoff()
        while True:
            connection = Connection(self._to)  # a new one reads a renewed certificate
            try:
                async for answer in ask(connection):
                    self.known = True
                    self._found()
                    backoff.reset()
                    yield answer
            except Unreachable:
                if not self.known:
                    raise
            finally:
                await connection.close()
            self._lost()
            await backoff.rest()
