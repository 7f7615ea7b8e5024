"""What plugins see: contributions, and a picture of the job."""

import zlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from hansa.common.values.bounds import Value
from hansa.common.values.ids import ModelKey, SiteName
from hansa.common.values.results import Evaluation, UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.controller.plugin.outline import Outline


class Contribution(Value):
    """An update as rules see it: where it is, and what its learner said of it."""

    task: Task
    model: ModelKey
    digest: str
    facts: UpdateFacts
    # Known when it is weighed.
    reports: Mapping[SiteName, Evaluation] = {}  # what other sites found of it, if the weigher asked
    unevaluated: Mapping[SiteName, str] = {}  # who did not answer, and why
    staleness: tuple[int, int] = (0, 0)  # in versions and in optimizer steps (metis-dvw §5)
    factor: float = 1.0  # by which the pacer multiplies the weigher's weight

    @property
    def site(self) -> SiteName:
        """Whose update it is."""
        return self.task.site

    @property
    def base(self) -> ModelKey | None:
        """What a partial update is to be laid over: the model that its site started from, or the one below that."""
        return self.task.models[0] if isinstance(self.task.work, Train) and self.task.work.tensors else None


@dataclass(frozen=True)
class View:
    """A read-only picture of the job for one call."""

    sites: Sequence[SiteName]  # learners that attend, sorted
    busy: AbstractSet[SiteName]  # those with an open task
    examples: Mapping[SiteName, int]
    evaluators: Sequence[SiteName]  # that attend, sorted
    version: int
    round: int
    steps: int  # committed so far
    seed: int
    now: float
    together: int = 1  # sites whose updates make a community model, at least
    standing: AbstractSet[SiteName] = (
        frozenset()
    )  # sites whose last updates go on counting, where merges remember
    common: bool = True  # rounds are common to all sites; otherwise each site is in a cycle of its own
    outline: Outline | None = None  # of the model, if a part of the rule needs it and version 0 is here
    turn: int = 0  # of a task: hops of the whole job up to it, where models travel
    draw: tuple[int, ...] = ()  # which of several draws of the round this is, if a pacer makes several

    def rng(self, name: str, *more: int) -> np.random.Generator:
        """Return the random stream of a plugin for this draw: a function of seed, name, round and draw alone."""
        words = [self.seed, zlib.crc32(name.encode()), self.round, *more]
        return np.random.default_rng(np.random.SeedSequence(words, spawn_key=self.draw))
