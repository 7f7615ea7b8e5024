"""Orders: what worker threads compute for a job, and the results that they return.

    StartOrder ──► worker thread ──► OrderDone, with a result of the order's kind, or OrderFailed

An order stays open in the job's state until one of these two events arrives. Meanwhile the store keeps every
model that the order reads. After a restart, open orders are started again and give the same results.
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
    """Compute community model `version` from the current one and a change in the contributions that count."""

    version: int
    current: ModelKey
    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    kept: bool  # the sums of the version before are updated instead of computed again
    staleness: int = 0  # of the stalest contribution, in versions
    reweighed: tuple[Member, ...] = ()  # that counted before and go on counting with other weights
    still: bool = False  # the model and its moments stay as they are
    moments: Mapping[str, ModelKey] = field(default_factory=dict)  # of the version before, by name
    reference: ModelKey | None = None  # what the new version is compared with
    sites: int = 1  # of the job, for auxiliary tensors that are added up
    resets: tuple[str, ...] = ()  # auxiliary tensors that start from zero again
    prepared: JsonValue = None  # what the server update computed for its step
    kind: Literal["merge"] = "merge"

    @property
    def scope(self) -> frozenset[str] | None:
        """The tensors whose contributions change; None means all."""
        names: frozenset[str] = frozenset()
        for member in (*self.added, *self.removed, *self.reweighed):
            if member.tensors is None:
                return None
            names |= member.tensors
        return names

    @property
    def reads(self) -> list[ModelKey]:
        """The models that it reads, except those of members that go on counting unchanged."""
        others = [self.current, *self.moments.values(), *([self.reference] if self.reference else [])]
        members = (*self.added, *self.removed, *self.reweighed)
        return [key for member in members for key in member.models] + others


class Merged(Value):
    """The result of a merge: the next community model, which is durable in the store."""

    kind: Literal["merge"] = "merge"
    digest: str
    auxiliary: str = ""  # digest of the tensors beside it
    moments: Mapping[str, str] = {}  # digests of what the server update carries on, by name
    note: str = ""  # the aggregator's remark
    prepared: JsonValue = None  # what the server update's step was given, so that the journal has it
    distance: Annotated[float, AllowInfNan()] | None = None  # from the job's reference, if it has one
    bytes_up: int = 0  # of models transferred since the version before
    bytes_down: int = 0


@dataclass(frozen=True)
class Examine:
    """Have a part of the rule examine the contributions of a merge, which waits for it."""

    point: str
    question: JsonValue
    contributions: tuple[Contribution, ...]
    current: ModelKey
    kept: Mapping[str, ModelKey]  # what the part keeps from earlier examinations, by name
    kind: Literal["examine"] = "examine"

    @property
    def reads(self) -> list[ModelKey]:
        """The models that it may read."""
        models = [self.current, *self.kept.values()]
        for c in self.contributions:
            models += [c.model, c.base] if c.base else [c.model]
        return models


class Examined(Value):
    """The result of an examination; the arrays that the part keeps are durable in the store."""

    kind: Literal["examine"] = "examine"
    facts: JsonValue = None
    kept: Mapping[str, str] = {}  # digests of arrays by name; an empty digest: nothing is kept any longer


@dataclass(frozen=True)
class ExamineHop:
    """Find out how far apart the models of a hop are, and compute their mean. Training does not wait."""

    version: int  # the one that the round leads to
    hop: int
    current: ModelKey
    members: tuple[Member, ...] = ()  # the models to average, if the mean is wanted
    compared: tuple[
        tuple[ModelKey, ModelKey | None], ...
    ] = ()  # updates, and the model to subtract from each
    kind: Literal["hop"] = "hop"

    @property
    def reads(self) -> list[ModelKey]:
        """The models that it reads."""
        pairs = [key for pair in self.compared for key in pair if key is not None]
        return [self.current, *(member.model for member in self.members), *pairs]


class HopExamined(Value):
    """The result of examining a hop."""

    kind: Literal["hop"] = "hop"
    divergence: float | None = None  # mean of 1 − cos over all pairs; None: fewer than two, or not wanted
    digest: str = ""  # of the mean of the slots, which is durable in the store; empty: not wanted


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
    """The result of comparing version 0 with the job's reference."""

    kind: Literal["compare"] = "compare"
    distance: Annotated[float, AllowInfNan()]


Order = Annotated[Merge | Examine | ExamineHop | Compare, Field(discriminator="kind")]
Result = Annotated[Merged | Examined | HopExamined | Compared, Field(discriminator="kind")]
