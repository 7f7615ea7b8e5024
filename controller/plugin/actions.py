"""Actions: what pacers want done."""

from collections.abc import Mapping
from dataclasses import dataclass

from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.plugin.view import Contribution


@dataclass(frozen=True)
class Ask:
    """Give a site a training task on the current community model, or on the model of a slot."""

    site: SiteName
    cycle: int | None = None  # which of the site's tasks this is, if there are no common rounds
    steps: int = 0  # optimizer steps to make; 0: the job's epochs
    start: Contribution | None = None  # whose model to start from, if not from the community model
    hop: int = 0  # the hop within the round, from 1 on, if models travel from site to site
    slot: int = 0  # which of the travelling models, from 1 on
    turn: int = 0  # the hop within the whole job, from 1 on


@dataclass(frozen=True)
class NextRound:
    """Begin the next round, or wait until enough sites are connected."""


@dataclass(frozen=True)
class NextHop:
    """Call `on_hop`, where the pacer can draw sites within a round.

    By then the sampler has observed the update that just arrived.
    """


@dataclass(frozen=True)
class Release:
    """Stop keeping an update that will not be merged, because another one was trained from it."""

    model: ModelKey


@dataclass(frozen=True)
class HopEnded:
    """Enter a hop, whose slots were all trained or skipped, into the history, and examine it if wanted.

    `trained` are the updates of this hop, each with the model that it was trained from. `slots` are the
    updates that would be merged now.
    """

    hop: int
    trained: tuple[tuple[Contribution, ModelKey | None], ...]
    slots: tuple[Contribution, ...]
    skipped: int  # slots that no site trained
    lost: Mapping[SiteName, str]
    divergence: str = (
        "none"  # what to compare: the models (weights), their changes (delta), or nothing (none)
    )
    last: bool = False  # whether a merge follows


@dataclass(frozen=True)
class Withdraw:
    """Withdraw a task that the pacer no longer waits for."""

    task: TaskId
    reason: str


@dataclass(frozen=True)
class Prepare:
    """Have an update evaluated now, if the weigher wants it evaluated, instead of when it is to be merged."""

    contribution: Contribution


@dataclass(frozen=True)
class MergeNow:
    """Merge contributions into the next community model; `lost` says which sites are missing, and why."""

    contributions: tuple[Contribution, ...]
    lost: Mapping[SiteName, str]
    steps: int = 0  # optimizer steps in these contributions in addition to those of their own tasks


@dataclass(frozen=True)
class Wake:
    """Call `on_alarm` after this many seconds."""

    seconds: float
    alarm: str


@dataclass(frozen=True)
class Stop:
    """Stop training; the job is completed, or has failed."""

    reason: str
    failed: bool = False


Action = Ask | NextRound | NextHop | Release | HopEnded | Withdraw | Prepare | MergeNow | Wake | Stop
