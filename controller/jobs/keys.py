"""Submissions with a key: the same job, submitted again even at the same time or after a restart, is one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from hansa.common.job.spec import JobSpec
from hansa.common.values.documents import flat_fields
from hansa.common.values.errors import Taken
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.runner import JobRunner

APART = {"operator", "made_with", "key"}  # no part of the job itself
SHOWN = 3  # differences in a message


class Keys:
    """Finds the job that an operator has submitted with a key. The journal has it as a part of the job."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._entering: dict[tuple[str, str], asyncio.Task[JobRunner]] = {}

    @asynccontextmanager
    async def turn(self, spec: JobSpec) -> AsyncIterator[JobRunner | None]:
        """Let one submission of a key in at a time, with the job that the one before has become."""
        if not spec.key:
            yield None
            return
        name = (spec.operator, spec.key)
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            yield await self._find(spec)

    def note(self, spec: JobSpec, entering: asyncio.Task[JobRunner]) -> None:
        """Note a job that is being made durable, and will be whatever happens to its submission."""
        if spec.key:
            name = (spec.operator, spec.key)
            self._entering[name] = entering
            entering.add_done_callback(lambda _: self._entering.pop(name, None))

    async def _find(self, spec: JobSpec) -> JobRunner | None:
        entering = self._entering.get((spec.operator, spec.key))
        if entering:
            runner = await asyncio.shield(entering)
        elif job := self._jobs.keyed(spec.operator, spec.key):
            runner = await self._jobs.recall(job)
        else:
            return None
        other = list(differences(runner.machine.spec, spec))
        if other:
            more = " …" if len(other) > SHOWN else ""
            whose = f"{runner.id} ({runner.machine.spec.name})"
            what = "; ".join(other[:SHOWN]) + more
            raise Taken(
                f"the key {spec.key!r} belongs to job {whose}, which is another job: {what}; use another key"
            )
        return runner


def differences(first: JobSpec, second: JobSpec) -> Iterator[str]:
    """Yield the fields in which two jobs differ, with both values."""
    one, other = (dict(flat_fields(spec.model_dump(mode="json", exclude=APART))) for spec in (first, second))
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            yield f"{name} is {one.get(name)} there and {other.get(name)} here"
