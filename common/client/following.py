"""Follows a job until it ends, even if its controller restarts: its views, and each version once."""

from collections.abc import AsyncIterator, Callable

from hansa.common.client.connection import Connection
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.errors import Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView


class Following:
    """A job that is followed. If it is `known` to exist, the first failure to connect is not final.

    `lost` is called after each attempt that failed, `found` with each view.
    """

    def __init__(
        self,
        controller: Endpoint,
        job: str,
        known: bool = False,
        lost: Callable[[], None] = lambda: None,
        found: Callable[[JobView], None] = lambda _: None,
    ) -> None:
        self._to, self.job, self.known = controller, job, known
        self._lost, self._found = lost, found

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view after every change until it ends."""
        backoff = Backoff()
        while True:
            connection = Connection(self._to)  # a new one reads a renewed certificate
            try:
                async for view in connection.views(self.job):
                    self.job, self.known = view.job, True  # by now the name may also be another job's
                    self._found(view)
                    backoff.reset()
                    yield view
                    if view.ended:
                        return
            except Unreachable:
                if not self.known:
                    raise
            finally:
                await connection.close()
            self._lost()
            await backoff.rest()

    async def versions(self, after: int = 0) -> AsyncIterator[VersionView]:
        """Yield every version above `after` once, in order, as soon as its metrics are complete."""
        known: dict[int, VersionView] = {}
        async for view in self.views():
            known |= {entry.version: entry for entry in view.history if entry.version > after}
            while (entry := known.get(after + 1)) and (entry.settled or view.ended):
                yield known.pop(after := after + 1)
