"""What a site keeps in memory of its jobs: the networks. Those of the oldest jobs are dropped."""

from typing import Any, NamedTuple, Protocol

from hansa.common.app import App
from hansa.common.data.lazy import AnyExamples
from hansa.common.torch import networks
from hansa.common.torch.resident import WHOLE, Resident, resident_of
from hansa.common.values.ids import JobId
from hansa.common.values.settings.training import Travel
from hansa.common.values.tasks import Task

KEPT = 4  # jobs whose model and data stay in memory


class Loaded(Protocol):
    """An app and the data that it sees."""

    @property
    def app(self) -> App:
        """The app."""

    @property
    def examples(self) -> AnyExamples:
        """The site's data, of the split that the daemon works on."""


class Apps(Protocol):
    """The apps of a site with their data: a daemon's shelf, or the virtual sites of a simulation."""

    def get(self, ref: str) -> Loaded:
        """Return an app and its data or raise InvalidApp."""

    def training(self, ref: str) -> AnyExamples:
        """Return the site's training data, whatever split the daemon works on, or raise InvalidData."""


class Built(NamedTuple):
    """A job's network, and what of it stays at the site, by what the job says travels."""

    travel: Travel
    network: Any
    resident: Resident


class Networks:
    """The networks of the last few jobs. They hold the weights of whatever was done with them last."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._built: dict[JobId, Built] = {}

    def get(self, app: App, task: Task) -> Built:
        """Build a job's network once, and again only for a controller that changes its mind about travel."""
        built = self._built.get(task.job)
        if built is None or built.travel != task.travel:
            built = None
            self._built.pop(task.job, None)  # there is never room for two large networks
            make_room(self._built)
            network = networks.build(app, task.seed, self._device)
            built = Built(task.travel, network, resident_of(network, task.travel))
            self._built[task.job] = built
        return built

    def anew(self, app: App, task: Task) -> Built:
        """Return the job's network as the app begins with it."""
        self._built.pop(task.job, None)
        return self.get(app, task)

    def resident(self, app: App, task: Task) -> Resident:
        """Return what of the job's model stays at the site; refuse another backbone than the job's."""
        resident = WHOLE if task.travel.whole else self.get(app, task).resident
        resident.require(task)
        return resident


def make_room(kept: dict[JobId, Any]) -> None:
    """Forget the oldest jobs to make room for one more."""
    while len(kept) >= KEPT:
        kept.pop(next(iter(kept)))
