"""What plugins see: contributions, and a view of the job."""

import zlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from hansa.common.values.bounds import Value
from hansa.common.values.ids import ModelKey, SiteName
from hansa.common.values.results import Evaluation, UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.controller.plugin.outline import Outline


class Contribution(Value):
    """An update as rules see it: where it is, and what its learner reported about it."""

    task: Task
    model: ModelKey
    digest: str  # of the update as it is stored
    facts: UpdateFacts
    bytes_up: int = 0  # as it was sent
    # The following are known only when it is weighed.
    # Other sites' evaluations, if the weigher asked for them
    reports: Mapping[SiteName, Evaluation] = Field(default_factory=dict)
    # The sites that did not report, and why
    unevaluated: Mapping[SiteName, str] = Field(default_factory=dict)
    staleness: tuple[int, int] = (0, 0)  # in versions and in optimizer steps (metis-dvw §5)
    factor: float = 1.0  # the pacer's factor on the weigher's weight
    weight: float = 0.0  # that it counted with; known only when it is merged

    @property
    def site(self) -> SiteName:
        """The site whose update it is."""
        return self.task.site

    @property
    def base(self) -> ModelKey | None:
        """The model under a partial update: the one that its site started from, or that one's base."""
        return self.task.models[0] if isinstance(self.task.work, Train) and self.task.work.tensors else None


@dataclass(frozen=True)
class View:
    """A read-only view of the job for one call."""

    sites: Sequence[SiteName]  # with a connected learner that has examples; sorted
    busy: AbstractSet[SiteName]  # with an open task
    # What connected learners state: all examples of their training data, with the part that the job holds out
    # for validation. An update's `facts.n_train` counts without that part.
    examples: Mapping[SiteName, int]
    # With a connected evaluator; sorted. An evaluation plan sees those that evaluate community models, a
    # weigher those that may evaluate updates. They differ only if the job holds sites out.
    evaluators: Sequence[SiteName]
    version: int
    round: int
    steps: int  # committed so far
    seed: int
    now: float
    together: int = 1  # the least number of sites whose updates make a community model
    # The sites whose last updates go on counting, if the aggregator remembers.
    standing: AbstractSet[SiteName] = frozenset()
    common: bool = True  # whether rounds are common to all sites; if not, each site has cycles of its own
    outline: Outline | None = None  # of the model, if a part of the rule needs it and version 0 is known
    turn: int = 0  # of a task: the hop within the whole job, if models travel
    draw: tuple[int, ...] = ()  # which draw of the round this is, if a pacer makes several

    def rng(self, name: str, *more: int) -> np.random.Generator:
        """Return a plugin's random stream for this draw: a function of seed, name, round and draw alone."""
        words = [self.seed, zlib.crc32(name.encode()), self.round, *more]
        return np.random.default_rng(np.random.SeedSequence(words, spawn_key=self.draw))
