"""The plugin points that compute: contributions become a proposal, and this becomes the next community model.

These plugins see numbers, never models: the merge (controller/community/merge.py) reads models frame by
frame, passes float64 arrays to them and writes the arrays that they return. They must therefore treat every
number alike, wherever it stands in the model, and depend on nothing but their arguments: the same merge is
computed again after a crash and by `hansa job verify`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic

import numpy as np
from pydantic import Field, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import contract
from hansa.controller.plugin.parts import Part, S
from hansa.controller.plugin.view import Contribution, View

if TYPE_CHECKING:
    from hansa.controller.plugin.composition import Composition


@contract("merge")
class Aggregator(Part[S], Generic[S]):
    """Turns contributions into a proposal: their exact weighted mean, unless a subclass says otherwise."""

    remembers: ClassVar[bool] = False  # every site's last contribution counts, not only those of this merge
    kept: ClassVar[bool] = False  # sums are kept, so that a merge costs the same however many sites there are

    @property
    def absolute(self) -> bool:
        """Whether the size of weights matters, and not only their ratios."""
        return False

    @property
    def forgets(self) -> bool:
        """Whether a site that leaves takes its contribution with it."""
        return False

    @property
    def pools(self) -> bool:
        """Whether batch-norm variances are pooled over all sites' data."""
        return False

    def taken(self, count: int) -> int:
        """Return how many of `count` contributions the proposal is made from."""
        return count


class Remembering(Aggregator[S], Generic[S]):
    """An aggregator over every site's last contribution."""

    remembers: ClassVar[bool] = True
    drop_on_leave: bool = Field(False, description="a site that leaves takes its contribution with it")

    def objections(self, spec: JobSpec, rule: "Composition") -> list[Problem]:
        """Object to dropping contributions in a job that promises a least number of sites."""
        if self.drop_on_leave and spec.sites.together > 1:
            return [
                (("merge", "drop_on_leave"), "would leave models of fewer sites than sites.together promises")
            ]
        return []

    @property
    def forgets(self) -> bool:
        """Whether a site that leaves takes its contribution with it."""
        return self.drop_on_leave


class Coordinatewise(Aggregator[S], Generic[S]):
    """An aggregator that computes each number of the proposal from the numbers at the same place."""

    @abstractmethod
    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Return one number per column of `rows`, which has a float64 row for each contribution.

        The order of the rows must not matter. `rows` may be changed.
        """

    def remark(self, count: int) -> str:
        """Return a remark on a proposal that is made from `count` contributions, or an empty text."""
        return ""


class Selecting(Aggregator[S], Generic[S]):
    """An aggregator that takes the mean of some contributions, chosen by the distances between them."""

    @abstractmethod
    def select(self, distances: np.ndarray) -> Sequence[int]:
        """Return which contributions to take, given the symmetric matrix of their squared distances.

        Raise TooFew if there are not enough to choose from.
        """


class Additive(Aggregator[S], Generic[S]):
    """An aggregator that adds what sites have changed to the current model.

    A contribution counts as its difference from the model that its site started from, which may be older than
    the current one. The proposal is current + Σ weight·difference / divisor, in float64; statistics and
    counters are those of the mean.
    """

    @abstractmethod
    def divisor(self, weights: np.ndarray) -> float:
        """Return what the weighted sum is divided by, given the weights of the contributions that count.

        The order of the weights must not matter.
        """


class TooFew(Exception):
    """There are too few contributions for an aggregator's guarantee; the community model stays as it is."""


@dataclass(frozen=True)
class MergeInfo:
    """What a server update may know about a merge besides the numbers."""

    version: int  # the new version
    staleness: int  # of the stalest contribution, in versions
    contributions: int  # how many are new in this merge
    prepared: JsonValue = None  # what `ServerUpdate.prepare` returned for it


Moments = Mapping[str, np.ndarray]


@contract("server")
class ServerUpdate(Part[S], Generic[S]):
    """Turns the proposal into the next community model."""

    plain: ClassVar[bool] = False  # the proposal is the next community model
    statistics: ClassVar[bool] = (
        False  # statistics (STAT) are updated, too, instead of taken from the proposal
    )

    @property
    def moments(self) -> Mapping[str, float]:
        """What it carries from version to version besides the model: names and initial values.

        Each moment is as large as the trained part of the model, in float64. The store keeps it as a model.
        """
        return {}

    def refuses(self, staleness: int) -> str:
        """Say why an update that is this many versions old is refused; empty if it is accepted."""
        return ""

    def prepare(
        self, state: S, contributions: Sequence[Contribution], weights: np.ndarray, view: View
    ) -> JsonValue:
        """Return what `step` must know about this merge besides its numbers, such as a step size.

        It is asked when the merge has been weighed; `weights` are what the contributions count. There may be
        no contributions, if a site is forgotten, and all weights may be 0. The result is JSON without NaN. It
        goes with the merge: `step` gets it as `info.prepared`, after a crash and in `hansa job verify`, too,
        and operators see it with the version.
        """
        return None

    @abstractmethod
    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Return the next numbers and moments, all float64. The arguments must not be changed.

        It is not called for tensors that no site contributed to: they and their moments stay as they are.
        """
