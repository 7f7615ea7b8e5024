"""Following a job for as long as it lasts, also over restarts of its controller."""

import asyncio
from collections.abc import AsyncIterator, Callable

import click

from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.client import Client
from hansa.common.values.errors import Unreachable
from hansa.common.values.views import JobView

REMINDER = 60.0  # seconds until it is said that the controller is away still; twice as long from time to time


def tell(text: str) -> None:
    """Say something to people; programs that read standard output are not disturbed."""
    click.echo(f"hansa: {text}", err=True)


class Watching:
    """A job that is watched. `known` says that there is such a job, so that a first failure is not the last word."""

    def __init__(
        self, controller: Endpoint, job: str, known: bool = False, tell: Callable[[str], None] = tell
    ) -> None:
        self._to, self._job, self._known, self._tell = controller, job, known, tell
        self._lost: float | None = None  # when the connection was lost, on the loop's clock
        self._reminded = REMINDER

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view after every change until it has ended; say when the controller is away, and go on."""
        backoff = Backoff()
        while True:
            try:
                async with Client(self._to) as client:
                    async for view in client.watch(self._job):
                        self._here(view)
                        backoff.reset()
                        yield view
                        if view.ended:
                            return
            except Unreachable:
                if not self._known:
                    raise
            self._away()
            await backoff.rest()

    def farewell(self) -> str:
        """Say what becomes of the job when somebody stops watching it."""
        if not self._known:
            return ""
        ways = f"`hansa job watch {self._job}` follows it again, `hansa job cancel {self._job}` ends it"
        if self._lost is not None:
            return (
                f"stopped watching job {self._job}, which goes on as soon as its controller is back; {ways}"
            )
        return f"stopped watching; job {self._job} goes on: {ways}"

    def _here(self, view: JobView) -> None:
        if self._lost is not None:
            self._tell(f"connected to {self._to} again after {self._seconds():.0f} s")
        self._job, self._known, self._lost = view.job, True, None  # a name may be another job's, too, by now

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
