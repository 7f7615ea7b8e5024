"""Follows a job until it ends, even if its controller restarts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import click

from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.client import Client
from hansa.common.values.errors import Unreachable
from hansa.common.values.views import EventView, JobView

T = TypeVar("T")
REMINDER = 60.0  # seconds until the first reminder that the controller is still away; later ones take longer


def tell(text: str) -> None:
    """Print a message to standard error, so that programs can read standard output."""
    click.echo(f"hansa: {text}", err=True)


class Watching:
    """A job that is watched. If it is `known` to exist, the first failure to connect is not final."""

    def __init__(
        self, controller: Endpoint, job: str, known: bool = False, tell: Callable[[str], None] = tell
    ) -> None:
        self._to, self._job, self._known, self._tell = controller, job, known, tell
        self._lost: float | None = None  # when the connection was lost, on the loop's clock
        self._reminded = REMINDER

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view after every change until it ends; report when the controller is away."""
        async for view in self._going_on(lambda client: client.watch(self._job)):
            self._job = view.job  # by now the name may also be another job's
            yield view
            if view.ended:
                return

    async def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """Yield what happened in the job after an event and what happens until it ends, each once."""
        async with Client(self._to) as client:
            self._job = (await client.show(self._job)).job
        told = after

        async def ask(client: Client) -> AsyncIterator[EventView | None]:
            async for event in client.events(self._job, told, follow=True):
                yield event
            if (await client.show(self._job)).ended:
                yield None

        async for event in self._going_on(ask):
            if event is None:
                return
            told = event.sequence
            yield event

    async def _going_on(self, ask: Callable[[Client], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Yield what a controller streams, and ask again whenever the connection is lost."""
        backoff = Backoff()
        while True:
            try:
                async with Client(self._to) as client:
                    async for answer in ask(client):
                        self._here()
                        backoff.reset()
                        yield answer
            except Unreachable:
                if not self._known:
                    raise
            self._away()
            await backoff.rest()

    def farewell(self) -> str:
        """Return what happens to the job when somebody stops watching it."""
        if not self._known:
            return ""
        ways = f"`hansa job watch {self._job}` follows it again, `hansa job cancel {self._job}` ends it"
        if self._lost is not None:
            return f"stopped watching job {self._job}, which continues when its controller is back; {ways}"
        return f"stopped watching; job {self._job} continues: {ways}"

    def _here(self) -> None:
        if self._lost is not None:
            self._tell(f"connected to {self._to} again after {self._seconds():.0f} s")
        self._known, self._lost = True, None

    def _away(self) -> None:
        if self._lost is None:
            self._lost, self._reminded = asyncio.get_running_loop().time(), REMINDER
            self._tell(
                f"lost the connection to {self._to}; trying again (Ctrl-C stops watching, not the job)"
            )
        elif self._seconds() >= self._reminded:
            self._reminded *= 2
            self._tell(f"no controller has answered at {self._to} for {self._seconds():.0f} s; still trying")

    def _seconds(self) -> float:
        assert self._lost is not None
        return asyncio.get_running_loop().time() - self._lost
