"""Subjects of evaluations: a community model, an update, or the mean of travelling models after a hop.

Every evaluation is a task with one of these subjects; `handlers.reports` settles all of them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from hansa.common.values.ids import TaskId


@dataclass(frozen=True)
class OfVersion:
    """A community model."""

    version: int
    kind: Literal["version"] = "version"

    @property
    def name(self) -> str:
        """The key of its reports in the job's state."""
        return f"version {self.version}"


@dataclass(frozen=True)
class OfUpdate:
    """The update that a task brought back, before it is weighed."""

    task: TaskId
    kind: Literal["update"] = "update"

    @property
    def name(self) -> str:
        """The key of its reports in the job's state."""
        return f"update {self.task}"


@dataclass(frozen=True)
class OfHop:
    """The mean of the slots after a hop in the round that leads to a version."""

    version: int
    hop: int
    kind: Literal["hop"] = "hop"

    @property
    def name(self) -> str:
        """The key of its reports in the job's state."""
        return f"hop {self.version}.{self.hop}"


Subject = Annotated[OfVersion | OfUpdate | OfHop, Field(discriminator="kind")]
