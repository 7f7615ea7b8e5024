"""Follows a job until it ends, even if its controller restarts: its views, versions and events, each once."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from hansa.common.client.connection import Connection
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.errors import Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import EventView, JobView

T = TypeVar("T")


class Seen:
    """Which versions a reader has seen in their last form."""

    def __init__(self, newest: int = -1) -> None:
        self._newest = newest
        self._changing: set[int] = set()

    def note(self, versions: Iterable[VersionView]) -> None:
        """Note the versions that have arrived."""
        for each in versions:
            self._newest = max(self._newest, each.version)
            (self._changing.discard if each.final else self._changing.add)(each.version)

    @property
    def after(self) -> int | None:
        """The version after which to go on so that nothing is missed; None: from the beginning."""
        last = min(self._changing, default=self._newest + 1) - 1
        return last if last >= 0 else None


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
        self._seen, self._detail = Seen(), False

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view after every change until it ends."""

        async def ask(connection: Connection) -> AsyncIterator[JobView | None]:
            ended = False
            async for view in connection.views(self.job, self._seen.after, self._detail):
                yield view
                ended = view.ended
            if ended:
                yield None  # a job that has ended may have several last views

        async for view in self._going_on(ask):
            if view is None:
                return
            self.job = view.job  # by now the name may also be another job's
            self._seen.note(view.history)
            yield view

    async def versions(self, after: int = 0) -> AsyncIterator[VersionView]:
        """Yield every version above `after` once, in order, as soon as its metrics are complete."""
        known: dict[int, VersionView] = {}
        self._seen, self._detail = Seen(after), True
        async for view in self.views():
            known |= {entry.version: entry for entry in view.history if entry.version > after}
            while (entry := known.get(after + 1)) and (entry.settled or view.ended):
                yield known.pop(after := after + 1)

    async def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """Yield what happened in the job after an event and what happens until it ends, each once."""
        told = after

        async def ask(connection: Connection) -> AsyncIterator[EventView | None]:
            self.job = (await connection.show(self.job, history=False)).job
            async for event in connection.events(self.job, told, follow=True):
                yield event
            if (await connection.show(self.job, history=False)).ended:
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
