"""Orders: what worker threads compute for a job, and what they bring back.

    StartOrder ──► worker thread ──► OrderDone, with a result of the order's kind, or OrderFailed

An order is open, in the job's state, until one of the two events has come. As long as it is open, the store
keeps everything that it reads, and after a restart it is started again: the same order gives the same result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AllowInfNan, Field, JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.ids import ModelKey
from hansa.controller.plugin.view import Contribution
from hansa.controller.values.members import Member


@dataclass(frozen=True)
class Merge:
    """Compute community model `version` from the current one by a change of what counts."""

    version: int
    current: ModelKey
    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    kept: bool  # the sums go on from the version before
    staleness: int = 0  # of the stalest contribution, in versions
    reweighed: tuple[Member, ...] = ()  # that counted before, with weights that have changed
    still: bool = False  # the model before is the next one, and so are its moments
    moments: Mapping[str, ModelKey] = field(default_factory=dict)  # of the version before, by name
    reference: ModelKey | None = None  # what the version is compared with, too
    kind: Literal["merge"] = "merge"

    @property
    def scope(self) -> frozenset[str] | None:
        """The tensors whose contributions change; None: all."""
        names: frozenset[str] = frozenset()
        for member in (*self.added, *self.removed, *self.reweighed):
            if member.tensors is None:
                return None
            names |= member.tensors
        return names

    @property
    def reads(self) -> list[ModelKey]:
        """The models that it reads, beside those of members that go on counting as they are."""
        others = [self.current, *self.moments.values(), *([self.reference] if self.reference else [])]
        return [member.model for member in (*self.added, *self.removed, *self.reweighed)] + others


class Merged(Value):
    """The next community model is durable in the store."""

    kind: Literal["merge"] = "merge"
    digest: str
    moments: Mapping[str, str] = {}  # digests of what the server update carries on, by name
    note: str = ""  # what the aggregator has to say
    distance: Annotated[float, AllowInfNan()] | None = None  # from the job's reference, if it has one
    bytes_up: int = 0  # of models, since the version before
    bytes_down: int = 0


@dataclass(frozen=True)
class Examine:
    """Have a part of the rule look at the contributions of a merge, which waits for it."""

    point: str
    question: JsonValue
    contributions: tuple[Contribution, ...]
    current: ModelKey
    kept: Mapping[str, ModelKey]  # by the part from earlier examinations, by name
    kind: Literal["examine"] = "examine"

    @property
    def reads(self) -> list[ModelKey]:
        """The models that it may read."""
        models = [self.current, *self.kept.values()]
        for c in self.contributions:
            models += [c.model, c.base] if c.base else [c.model]
        return models


class Examined(Value):
    """A part of the rule has looked at updates; what it keeps is durable in the store."""

    kind: Literal["examine"] = "examine"
    facts: JsonValue = None
    kept: Mapping[str, str] = {}  # digests of arrays by name; empty: nothing is kept under the name any more


@dataclass(frozen=True)
class ExamineHop:
    """Look at the models of a hop: how far apart they are, and what their mean is. Training does not wait for it."""

    version: int  # that the round leads to
    hop: int
    current: ModelKey
    members: tuple[Member, ...] = ()  # the slots, if their mean is wanted
    compared: tuple[tuple[ModelKey, ModelKey | None], ...] = ()  # updates, and what to subtract from each
    kind: Literal["hop"] = "hop"

    @property
    def reads(self) -> list[ModelKey]:
        """The models that it reads."""
        pairs = [key for pair in self.compared for key in pair if key is not None]
        return [self.current, *(member.model for member in self.members), *pairs]


class HopExamined(Value):
    """The models of a hop were looked at."""

    kind: Literal["hop"] = "hop"
    divergence: float | None = None  # mean of 1 − cos over all pairs; None: fewer than two, or not asked for
    digest: str = ""  # of the mean of the slots, if it was asked for; it is durable in the store


@dataclass(frozen=True)
class Compare:
    """Compare version 0 with the job's reference. Later versions are compared when they are merged."""

    model: ModelKey
    reference: ModelKey
    kind: Literal["compare"] = "compare"

    @property
    def reads(self) -> list[ModelKey]:
        """The models that it reads."""
        return [self.model, self.reference]


class Compared(Value):
    """Version 0 was compared with the job's reference."""

    kind: Literal["compare"] = "compare"
    distance: Annotated[float, AllowInfNan()]


Order = Annotated[Merge | Examine | ExamineHop | Compare, Field(discriminator="kind")]
Result = Annotated[Merged | Examined | HopExamined | Compared, Field(discriminator="kind")]
