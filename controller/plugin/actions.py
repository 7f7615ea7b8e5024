"""What pacers want to be done."""

from collections.abc import Mapping
from dataclasses import dataclass

from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.plugin.view import Contribution


@dataclass(frozen=True)
class Ask:
    """Give a site a training task on the current community model, or on the model of a slot."""

    site: SiteName
    cycle: int | None = None  # which of the site's tasks this is, where there are no common rounds
    steps: int = 0  # optimizer steps to make; 0: the job's epochs
    start: Contribution | None = None  # whose model to start from, if it is not the community model
    hop: int = 0  # of the round, from 1 on, where models travel from site to site
    slot: int = 0  # which of the travelling models, from 1 on
    turn: int = 0  # hops of the whole job up to this one


@dataclass(frozen=True)
class NextRound:
    """Begin the next round, if enough sites are here."""


@dataclass(frozen=True)
class NextHop:
    """Call `on_hop`, where a pacer can draw sites within a round; what just came is known to the sampler by then."""


@dataclass(frozen=True)
class Release:
    """An update will not be merged: another one was made from it."""

    model: ModelKey


@dataclass(frozen=True)
class HopEnded:
    """All slots of a hop were served, or skip it: enter it into the history, and have it looked at if that is wanted.

    `trained` are the updates of this hop with what each was trained from, `slots` what would be merged now.
    """

    hop: int
    trained: tuple[tuple[Contribution, ModelKey | None], ...]
    slots: tuple[Contribution, ...]
    skipped: int  # slots that nobody trained
    lost: Mapping[SiteName, str]
    divergence: str = "none"  # of what to measure how far the updates are apart: weights, delta
    last: bool = False  # a merge follows


@dataclass(frozen=True)
class Withdraw:
    """Nobody waits for this task any more."""

    task: TaskId
    reason: str


@dataclass(frozen=True)
class Prepare:
    """Have an update evaluated now, if the weigher wants that; otherwise it is evaluated when it is to be merged."""

    contribution: Contribution


@dataclass(frozen=True)
class MergeNow:
    """Merge these contributions into the next community model. `lost` says whose is missing and why."""

    contributions: tuple[Contribution, ...]
    lost: Mapping[SiteName, str]
    steps: int = 0  # optimizer steps that are in these contributions beside those of their own tasks


@dataclass(frozen=True)
class Wake:
    """Call `on_alarm` in so many seconds."""

    seconds: float
    alarm: str


@dataclass(frozen=True)
class Stop:
    """No further training; the job completes, or fails."""

    reason: str
    failed: bool = False


Action = Ask | NextRound | NextHop | Release | HopEnded | Withdraw | Prepare | MergeNow | Wake | Stop
