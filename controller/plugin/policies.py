"""Policies: what each training task asks for, and how long it takes."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic

from hansa.common.plugins.registry import TRAIN, contract
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.parts import Part, S
from hansa.controller.plugin.view import Contribution, View


@contract("local", "layers")
class Policy(Part[S], Generic[S]):
    """Says what each training task asks for: which tensors, how long, with which plugins of the learner."""

    local_statistics: ClassVar[bool] = False  # batch-norm statistics stay at the sites, and each has its own

    @abstractmethod
    def shape(self, state: S, site: SiteName, work: Train, view: View) -> Train:
        """Return the work to be given to a site instead; policies are asked in turn."""

    def committed(self, state: S, contribution: Contribution) -> None:
        """Hear of every update that its site gets a receipt for, merged or not; before the site's next task."""

    def merged(self, state: S, contributions: Sequence[Contribution], view: View) -> None:
        """Hear of every merge, with what was merged."""

    def phase(self, state: S, contributions: Sequence[Contribution], view: View) -> str:
        """Return what the round under way, or the one that these contributions end, is called, if rounds differ."""
        return ""

    @property
    def may_restart(self) -> bool:
        """Whether version 0 must stay in the store because `restarts` may want it."""
        return False

    def restarts(self, state: S) -> bool:
        """Whether the merge that is being weighed is to give version 0 again, whatever its contributions."""
        return False

    def listens(self, state: S) -> bool:
        """Whether sites that train are to hear of every merge how many optimizer steps are committed."""
        return False


@contract(TRAIN)
class Duration(Policy[S], Generic[S]):
    """Says how long each task trains. It is asked after all other policies.

    Job files spell it as `train.epochs`, `train.batches` or `train.until`. The fields of a duration have these
    names: what it dumps is what a resolved job says under `train`.
    """

    adaptive: ClassVar[bool] = False  # sites find out themselves when they have trained enough
    windows: ClassVar[bool] = False  # a task is a window of batches, inside which no epoch ends

    @property
    @abstractmethod
    def usual_epochs(self) -> int:
        """Epochs of a task, before other policies have shaped it."""

    def shape(self, state: S, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is."""
        return work
