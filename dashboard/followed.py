"""Jobs that somebody looks at: one `Watch` at the controller for each, however many look."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.client.following import Seen
from hansa.common.rpc.backoff import Backoff
from hansa.common.values.errors import Forbidden, HansaError, NotFound, Unproven, Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import EventView, JobView
from hansa.dashboard.screens import Pulse, Screen

log = logging.getLogger(__name__)
LINGER = 15.0  # seconds that a job is still watched when nobody looks any more
KEPT = 8  # jobs that are remembered when nobody looks
DETAILS = 20_000  # updates of a job that are remembered one by one
EVENTS = 300  # of a job that are remembered
FINAL = (NotFound, Forbidden, Unproven)  # asking again will not help
CATCH_UP = 10.0  # seconds that a page waits for a long history; its stream brings the rest


class FollowedJob:
    """A job as it is now, with its whole history, of which the newest part has the sites' details."""

    def __init__(self, client: AsyncClient, view: JobView) -> None:
        self._client, self.job = client, view.job
        self.view = view
        self.versions: dict[int, VersionView] = {}
        self.events: deque[EventView] = deque(maxlen=EVENTS)
        self.told = 0  # the newest event
        self.lost = ""  # why the controller does not answer
        self.pulse = Pulse()
        self.screen: Screen | None = None  # what all viewers see; the first one has it made
        self._heard = False  # the controller has said how the job is
        self._seen = Seen()

    async def follow(self) -> None:
        """Keep the job up to date until it ends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._insist(self._watch))
            group.create_task(self._insist(self._listen, quiet=True))

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.view.ended and self.caught_up

    @property
    def caught_up(self) -> bool:
        """Whether the history is here up to the newest version; a job that has just begun has none."""
        return self._heard and max(self.versions, default=0) >= self.view.version

    async def catch_up(self) -> None:
        """Wait for the history, but not for ever, and not for a controller that is away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP):
                while not (self.caught_up or self.lost):
                    await self.pulse.after(self.pulse.count)

    @property
    def recent(self) -> int:
        """How many of the newest versions have details."""
        return max(20, min(400, DETAILS // max(1, len(self.view.sites))))

    def give_up(self, why: str) -> None:
        """Note that the controller will not answer any more."""
        log.warning("job %s is no longer followed: %s", self.job, why)
        self.lost = why
        self.pulse.beat()

    def whole(self) -> JobView:
        """Return the job with the history that is here."""
        history = tuple(self.versions[number] for number in sorted(self.versions))
        return self.view.model_copy(update={"history": history})

    async def _insist(self, ask: Callable[[], AsyncIterator[None]], quiet: bool = False) -> None:
        """Take what the controller streams; whenever the connection is lost, ask again from there.

        Unless `quiet`, viewers are told: one of two streams is enough for that.
        """
        backoff = Backoff()
        while True:
            try:
                async for _ in ask():
                    backoff.reset()
                    self.pulse.beat()
            except FINAL:
                raise
            except HansaError as error:  # perhaps too many jobs are watched at the moment
                if not (self.lost or quiet):
                    self.lost = str(error)
                    self.pulse.beat()
            else:
                if self.view.ended:
                    return
            await backoff.rest()

    async def _watch(self) -> AsyncIterator[None]:
        view = await self._client.show(self.job, history=False)
        older, have = view.version - self.recent, self._seen.after
        missing = older - (-1 if have is None else have)
        if older > 0 and missing > 0:
            async for version in self._client.history(self.job, have, missing, detail=False):
                self._take(version)
        async for seen in self._client.views(self.job, self._seen.after, detail=True):
            for version in seen.history:
                self._take(version)
            self.view = seen.model_copy(update={"history": (), "resolved": view.resolved})
            self._heard, self.lost = True, ""
            yield

    async def _listen(self) -> AsyncIterator[None]:
        async for event in self._client.events(self.job, self.told, follow=True):
            self.events.append(event)
            self.told = event.sequence
            yield

    def _take(self, version: VersionView) -> None:
        """Remember a version, and forget the details of one that is no longer among the newest."""
        self.versions[version.version] = version
        self._seen.note([version])
        old = self.versions.get(version.version - self.recent)
        if old and old.detailed and old.final:
            self.versions[old.version] = old.brief()


class FollowedJobs:
    """All jobs that somebody looks at, or has recently looked at."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._jobs: dict[str, FollowedJob] = {}  # the one that was looked at last is the last
        self._lookers: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._leaving: dict[str, asyncio.TimerHandle] = {}

    @asynccontextmanager
    async def looking(self, words: str) -> AsyncIterator[FollowedJob]:
        """Follow a job while the block runs; NotFound if there is none."""
        view = await self._find(words)
        followed = self._jobs.pop(view.job, None) or FollowedJob(self._client, view)
        job = followed.job
        self._jobs[job] = followed
        self._lookers[job] = self._lookers.get(job, 0) + 1
        if leaving := self._leaving.pop(job, None):
            leaving.cancel()
        if job not in self._tasks and not followed.ended:
            self._tasks[job] = asyncio.create_task(self._follow(followed))
        try:
            yield followed
        finally:
            self._lookers[job] -= 1
            if not self._lookers[job]:
                self._leaving[job] = asyncio.get_running_loop().call_later(LINGER, self._leave, job)

    async def _find(self, words: str) -> JobView:
        """Ask for a job; one that is known is shown as it was if the controller is away."""
        try:
            return await self._client.show(words, history=False)
        except Unreachable:
            if words in self._jobs:
                return self._jobs[words].view
            raise

    async def _follow(self, followed: FollowedJob) -> None:
        try:
            await followed.follow()
        except* HansaError as errors:
            followed.give_up(str(errors.exceptions[0]))
        finally:
            if self._tasks.get(followed.job) is asyncio.current_task():
                del self._tasks[followed.job]

    def _leave(self, job: str) -> None:
        """Stop watching a job at which nobody looks."""
        self._leaving.pop(job, None)
        self._lookers.pop(job, None)
        if task := self._tasks.pop(job, None):  # at once: somebody who comes while it ends needs another one
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()
        idle = [each for each in self._jobs if each not in self._lookers]
        for each in idle[:-KEPT]:
            del self._jobs[each]

    async def close(self) -> None:
        """Stop watching."""
        for leaving in self._leaving.values():
            leaving.cancel()
        tasks = [*self._tasks.values(), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
