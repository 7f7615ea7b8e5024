"""The plugin points that compute: how contributions become a proposal, and the proposal the next community model.

Plugins here see numbers, never models: the merge (controller/community/merge.py) reads models frame by frame,
hands float64 arrays over and writes what comes back. They must therefore treat every number alike, wherever
it stands, and depend on nothing but their arguments: the same merge is computed again after a crash and by
`hansa job verify`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import contract
from hansa.controller.plugin.parts import Part, S

if TYPE_CHECKING:
    from hansa.controller.plugin.composition import Composition


@contract("merge")
class Aggregator(Part[S], Generic[S]):
    """Says which contributions make up the proposal, which is their exact weighted mean unless a subclass says more."""

    remembers: ClassVar[bool] = False  # every site's last contribution counts, not only this merge's
    kept: ClassVar[bool] = False  # the sums are kept: a merge costs the same however many sites there are

    @property
    def forgets(self) -> bool:
        """Whether a site that leaves takes its contribution with it."""
        return False

    @property
    def pools(self) -> bool:
        """Whether batch-norm variances are those of all sites' data together."""
        return False

    def taken(self, count: int) -> int:
        """Return how many of `count` contributions the proposal is made of."""
        return count


class Remembering(Aggregator[S], Generic[S]):
    """An aggregator over every site's last contribution."""

    remembers: ClassVar[bool] = True
    drop_on_leave: bool = Field(False, description="a site that leaves takes its contribution with it")

    def objections(self, spec: JobSpec, rule: "Composition") -> list[Problem]:
        """Refuse to take contributions out where sites were promised not to be left with few."""
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
    """An aggregator that makes each number of the proposal from the contributions' numbers at the same place."""

    @abstractmethod
    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Return one number per column; a row per contribution, float64, and `rows` may be changed.

        The order of the rows must not matter.
        """

    def remark(self, count: int) -> str:
        """Return what is to be said of a proposal that is made of so many contributions, if anything."""
        return ""


class Selecting(Aggregator[S], Generic[S]):
    """An aggregator that takes the mean of some contributions, chosen by how far they are from one another."""

    @abstractmethod
    def select(self, distances: np.ndarray) -> Sequence[int]:
        """Return which contributions to take, from their squared distances (square, symmetric).

        Raise TooFew if there are not enough to choose from.
        """


class TooFew(Exception):
    """There are not enough contributions for what an aggregator promises; the community model stays as it is."""


@dataclass(frozen=True)
class MergeInfo:
    """What a server update may know of a merge beside the numbers."""

    version: int  # that is made
    staleness: int  # of the stalest contribution, in versions
    contributions: int  # that are new in this merge


Moments = Mapping[str, np.ndarray]


@contract("server")
class ServerUpdate(Part[S], Generic[S]):
    """Says how the proposal becomes the next community model."""

    plain: ClassVar[bool] = False  # the proposal is the next community model
    statistics: ClassVar[bool] = False  # statistics (STAT) are updated, too, not taken from the proposal

    @property
    def moments(self) -> Mapping[str, float]:
        """What it carries from version to version beside the model: names, and the numbers to start from.

        Each moment is as large as the trained part of the model, in float64, and kept in the store as a
        model.
        """
        return {}

    def refuses(self, staleness: int) -> str:
        """Say why an update that is so many versions old is not taken at all; empty: it is."""
        return ""

    @abstractmethod
    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Return the next numbers and moments, all float64. Nothing that is given may be changed.

        It is not called for tensors that nobody contributed to: they and their moments stay as they are.
        """
