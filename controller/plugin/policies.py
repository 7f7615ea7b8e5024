"""Policies: what each training task asks for, and how long it takes."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, Generic

from hansa.common.plugins.registry import TRAIN, contract
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import Travel
from hansa.common.values.tasks import Train
from hansa.controller.plugin.parts import Part, S
from hansa.controller.plugin.view import Contribution, View


@contract("local", "layers", "transfer")
class Policy(Part[S], Generic[S]):
    """Shapes training tasks: which tensors to train, for how long, with which plugins of the learner."""

    local_statistics: ClassVar[bool] = False  # batch-norm statistics stay at the sites; each site has its own
    alternates: ClassVar[bool] = False  # rounds differ in the parameters that they train
    own_models: ClassVar[bool] = False  # each site trains a model of its own beside the community's

    @property
    def travel(self) -> Travel:
        """Which tensors of the app's model travel. Only that of the part `layers` counts."""
        return Travel()

    @abstractmethod
    def shape(self, state: S, site: SiteName, work: Train, view: View) -> Train:
        """Return the work to give to a site in place of `work`; policies are asked one after another."""

    def round_begins(self, state: S, view: View) -> None:
        """Take note that a common round begins, before its tasks are shaped."""

    def resets(self, state: S) -> Collection[str]:
        """Return which auxiliary tensors start from zero again, in the next tasks and in the next merge."""
        return ()

    def committed(self, state: S, contribution: Contribution) -> None:
        """Take note of an update for which its site gets a receipt, before the site's next task is shaped."""

    def merged(self, state: S, contributions: Sequence[Contribution], view: View) -> None:
        """Take note of a merge and its contributions, whose weights are known by now."""

    def phase(self, state: S, contributions: Sequence[Contribution], view: View) -> str:
        """Return the name of the current round, or of the one that contributions end, if rounds differ."""
        return ""

    @property
    def may_restart(self) -> bool:
        """Whether `restarts` may return true, so that version 0 must stay in the store."""
        return False

    def restarts(self, state: S) -> bool:
        """Whether the merge being weighed is to result in version 0 again, whatever its contributions."""
        return False

    def listens(self, state: S) -> bool:
        """Whether sites in training are told after every merge how many optimizer steps are committed."""
        return False


@contract(TRAIN)
class Duration(Policy[S], Generic[S]):
    """Sets how long each task trains. It is asked after all other policies.

    Job files spell it as `train.epochs`, `train.batches` or `train.until`. The fields of a duration have the
    same names, so that a dump of it is what a resolved job says under `train`.
    """

    adaptive: ClassVar[bool] = False  # sites decide themselves when they have trained enough
    windows: ClassVar[bool] = False  # a task is a window of batches within an epoch

    @property
    @abstractmethod
    def usual_epochs(self) -> int:
        """The epochs of a task before policies have shaped it."""

    def shape(self, state: S, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is."""
        return work
