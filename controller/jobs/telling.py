"""What readers of a job's history get: chapters of it, and whatever is new or has changed since."""

import asyncio
from collections.abc import AsyncIterator

from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.jobs.views import history_views

CHAPTER = 256  # versions in one reply
LARGEST = 1 << 20  # characters of versions in one reply, unless it is a single version
TURN = 16  # versions that are read until others have their turn: old ones must be unpacked
WATCH_PAUSE = 0.1  # seconds between two views of a watched job


async def chapters(runner: JobRunner, first: int, limit: int, detail: bool) -> AsyncIterator[list[str]]:
    """Yield versions from `first` on as JSON, a reply's worth at a time; a limit of 0 is none."""
    texts: list[str] = []
    machine, size = runner.machine, 0
    last = machine.state.version
    if limit:
        last = min(last, first + limit - 1)
    for version in range(first, last + 1):
        (view,) = history_views(machine, versions=[version], detail=detail)
        texts.append(view.model_dump_json())
        size += len(texts[-1])
        if size >= LARGEST or len(texts) == CHAPTER:
            yield texts
            texts, size = [], 0
        if version % TURN == 0:
            await asyncio.sleep(0)
    if texts:
        yield texts


class Watcher:
    """Somebody who watches a job: nobody is sent the same version twice unless it has changed."""

    def __init__(self, runner: JobRunner, first: int, detail: bool) -> None:
        self._runner, self._first, self._detail = runner, first, detail
        self._machine, self._mark, self._greeted = runner.machine, -1, False

    async def views(self) -> AsyncIterator[JobView]:
        """Yield the job's view now, after every change, and once more when it has ended."""
        ended = False
        while not ended:
            change, ended = self._runner.next_change(), self._runner.machine.ended
            async for view in self._views():
                yield view
            if not ended:
                await change.wait()
                await asyncio.sleep(WATCH_PAUSE)

    async def _views(self) -> AsyncIterator[JobView]:
        """Yield one view, or several if there are too many versions for one."""
        runner = self._runner
        if runner.machine is not self._machine:  # it was restored, and its marks count anew
            self._machine, self._mark = runner.machine, -1
        versions = self._machine.changes.since(self._mark)
        if self._mark < 0:
            versions = [version for version in versions if version >= self._first]
        self._mark = self._machine.changes.mark
        chapter: list[VersionView] = []
        size = 0
        for view in history_views(self._machine, versions=versions, detail=self._detail):
            chapter.append(view)
            if view.version % TURN == 0:
                await asyncio.sleep(0)
            size += len(view.model_dump_json())  # one with confusion matrices and hops can have a megabyte
            if size >= LARGEST or len(chapter) == CHAPTER:
                yield self._view(chapter)
                chapter, size = [], 0
        if chapter or not versions:
            yield self._view(chapter)

    def _view(self, chapter: list[VersionView]) -> JobView:
        survey = not self._greeted or self._machine.state.version < 1
        self._greeted = True
        return self._runner.view_with(chapter, survey)
