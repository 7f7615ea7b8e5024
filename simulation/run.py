"""A simulation from a job to the results in its folder."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hansa.common.app import load_app
from hansa.common.job.simulate import SimulateSpec
from hansa.common.job.spec import JobSpec
from hansa.common.site.source import source_of
from hansa.common.values.ids import new_job_id
from hansa.common.values.views import JobView
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.views import Surroundings, job_view
from hansa.controller.rulebook.compose import compose
from hansa.controller.rulebook.resolve import resolved, software
from hansa.controller.storage.stores import Store
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.work.bench import Bench
from hansa.simulation.agenda import seconds
from hansa.simulation.crew.inline import Inline
from hansa.simulation.data import TRAINING, VirtualData
from hansa.simulation.desk import Desk
from hansa.simulation.driver import Driver
from hansa.simulation.models import StoredModels
from hansa.simulation.timing import Timing

MEMORY = 1 << 30  # bytes that the sums of merges may take


class _Nobody:
    """There are no sessions: nobody reports progress while a task runs."""

    def find(self, site: str, role: str) -> None:
        return None


class Simulation:
    """One job with virtual sites."""

    def __init__(self, spec: JobSpec, data: VirtualData, folder: Path) -> None:
        rule = compose(spec)
        self.spec = spec.model_copy(update={"made_with": software(rule)})
        self.store: Store = MemoryStore()
        job = new_job_id()
        self.machine = Machine(job, self.spec, rule, 0.0)
        self._pool = ThreadPoolExecutor(1)
        self._data = data
        bench = Bench(job, rule, self.store, self._pool, MEMORY)
        crew = Inline(Desk(spec.app, data, StoredModels(self.store), folder / "sites"))
        timing = Timing(spec.simulate or SimulateSpec(), data.names, spec.seed)
        self.driver = Driver(self.machine, bench, self.store, crew, data, timing)

    def run(self) -> JobView:
        """Run it to its end."""
        app = load_app(self.spec.app)
        stated = app.stated(source_of(self.spec.app).digest)
        for number, site in enumerate(self._data.names):
            split = "test" if self._data.split == "test" else TRAINING
            self.driver.join(site, "evaluator", self._data.count(app, number, split), stated)
            self.driver.join(site, "learner", self._data.count(app, number, TRAINING), stated)
        self.driver.begin()
        self.driver.run()
        return self.view()

    def view(self) -> JobView:
        """Return the job as operators see it."""
        around = Surroundings(
            fleet=_Nobody(),
            now=seconds(self.driver.now),
            bytes_up=self.driver.traffic.up,
            bytes_down=self.driver.traffic.down,
            trouble="",
        )
        return job_view(self.machine, around).model_copy(update={"resolved": resolved(self.spec)})
