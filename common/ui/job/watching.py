"""Follows a job until it ends, even if its controller restarts."""

import asyncio
from collections.abc import AsyncIterator, Callable

import click

from hansa.common.client.following import Following
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.history import VersionView
from hansa.common.values.views import EventView, JobView

REMINDER = 60.0  # seconds until the first reminder that the controller is still away; later ones take longer


def tell(text: str) -> None:
    """Print a message to standard error, so that programs can read standard output."""
    click.echo(f"hansa: {text}", err=True)


class Watching:
    """A job that is watched. If it is `known` to exist, the first failure to connect is not final."""

    def __init__(
        self, controller: Endpoint, job: str, known: bool = False, tell: Callable[[str], None] = tell
    ) -> None:
        self._to, self._tell = controller, tell
        self._following = Following(controller, job, known, lost=self._away, found=self._here)
        self._lost: float | None = None  # when the connection was lost, on the loop's clock
        self._reminded = REMINDER

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view after every change until it ends; report when the controller is away."""
        async for view in self._following.views():
            yield view

    async def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """Yield what happened in the job after an event and what happens until it ends, each once."""
        async for event in self._following.events(after):
            yield event

    async def versions(self, job: str, after: int) -> AsyncIterator[VersionView]:
        """Yield every version of a job that exists above `after` once, in order, until the job ends."""
        self._following.job, self._following.known = job, True
        async for version in self._following.versions(after):
            yield version

    def farewell(self) -> str:
        """Return what happens to the job when somebody stops watching it."""
        if not self._following.known:
            return ""
        job = self._following.job
        ways = f"`hansa job watch {job}` follows it again, `hansa job cancel {job}` ends it"
        if self._lost is not None:
            return f"stopped watching job {job}, which continues when its controller is back; {ways}"
        return f"stopped watching; job {job} continues: {ways}"

    def _here(self) -> None:
        if self._lost is not None:
            self._tell(f"connected to {self._to} again after {self._seconds():.0f} s")
        self._lost = None

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
