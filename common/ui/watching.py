"""Follows a job until it ends, even if its controller restarts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import click

from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.client import Client
from hansa.common.values.errors import Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView

REMINDER = 60.0  # seconds until the first reminder that the controller is still away; later ones take longer


class Seen:
    """Which versions a reader has seen in their last form."""

    def __init__(self) -> None:
        self._newest = -1
        self._unsettled: set[int] = set()

    def note(self, versions: Iterable[VersionView]) -> None:
        """Note the versions that have arrived."""
        for each in versions:
            self._newest = max(self._newest, each.version)
            (self._unsettled.discard if each.settled else self._unsettled.add)(each.version)

    @property
    def after(self) -> int | None:
        """The version after which to go on so that nothing is missed; None: from the beginning."""
        last = min(self._unsettled, default=self._newest + 1) - 1
        return last if last >= 0 else None


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
        self._seen = Seen()

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view after every change until it ends; report when the controller is away."""
        backoff = Backoff()
        while True:
            try:
                async with Client(self._to) as client:
                    ended = False
                    async for view in client.watch(self._job, after=self._seen.after):
                        self._here(view)
                        backoff.reset()
                        self._seen.note(view.history)
                        ended = view.ended
                        yield view
                    if ended:
                        return
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

    def _here(self, view: JobView) -> None:
        if self._lost is not None:
            self._tell(f"connected to {self._to} again after {self._seconds():.0f} s")
        self._job, self._known, self._lost = view.job, True, None  # by now the name may also be another job's

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
