"""A simulation from a job to the results in its folder."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.common.job.simulate import SimulateSpec
from hansa.common.job.spec import JobSpec
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.models.frames import pack
from hansa.common.process.memory import young_garbage_only
from hansa.common.run.folder import MODEL, keep_report, keep_resolved
from hansa.common.site.source import source_of
from hansa.common.torch.threads import threads
from hansa.common.values.ids import new_job_id
from hansa.common.values.views import JobView
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.views import Surroundings, job_view, origin_of
from hansa.controller.rulebook.compose import compose
from hansa.controller.rulebook.resolve import resolved, software
from hansa.controller.work.bench import Bench
from hansa.simulation.agenda import seconds
from hansa.simulation.crew.base import Crew
from hansa.simulation.crew.inline import Inline
from hansa.simulation.crew.workers import Workers
from hansa.simulation.data import TEST, TRAINING
from hansa.simulation.desk import Desk
from hansa.simulation.driver import Driver
from hansa.simulation.models import StoredModels
from hansa.simulation.prepare import Prepared, prepare
from hansa.simulation.store import SharedStore
from hansa.simulation.submission import submitted
from hansa.simulation.timing import Timing

MEMORY = 1 << 30  # bytes that the sums of merges may take
THREADS = 1  # PyTorch's, as those of learners are by default, so that the bits are the same
SHOWN = 20  # sites that a live view lists


@dataclass(frozen=True)
class Options:
    """Who does the work of a simulation."""

    workers: int = 0  # processes; 0: this one does everything
    memory: int = 4 << 30  # bytes of models in memory; what exceeds them is on the disk
    batched: bool = True  # small clients are trained in blocks where that gives the same bits


USUAL = Options()


class _Nobody:
    """There are no sessions: nobody reports progress while a task runs."""

    def find(self, site: str, role: str) -> None:
        return None


class Simulation:
    """One job with virtual sites."""

    def __init__(
        self,
        prepared: Prepared,
        folder: Path,
        options: Options = USUAL,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        spec, data, self._folder = prepared.spec, prepared.data, folder
        rule, job = compose(spec), new_job_id()
        self.store = SharedStore(options.memory, folder / "spilled")
        spec, first = submitted(spec, rule, job, self.store)
        self.settings = prepared.spec.simulate or SimulateSpec()
        # Files that the job names are on this machine; the engine knows their digests.
        self.spec = prepared.spec.model_copy(update={"simulate": self.settings})
        # What a controller is not told, either.
        told = {"made_with": software(rule), "data": None, "simulate": None}
        self.machine = Machine(job, spec.model_copy(update=told), rule, 0.0)
        self._prepared, self._models = prepared, StoredModels(self.store)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="arithmetic")
        self._crew = self._make_crew(options)
        bench = Bench(job, rule, self.store, self._pool, MEMORY)
        timing = Timing(self.settings, data.names, spec.seed)
        self.driver = Driver(self.machine, bench, self.store, self._crew, data, timing, changed)
        self._let_sites_join()
        self.driver.begin(first)

    def _make_crew(self, options: Options) -> Crew:
        ref, data = self.spec.app, self._prepared.data
        if options.workers:
            return Workers(options.workers, ref, data, self.store, options.batched)
        return Inline(Desk(ref, data, self._models, options.batched))

    def _let_sites_join(self) -> None:
        app, data = self._prepared.app, self._prepared.data
        stated = app.stated(source_of(self.spec.app).digest)
        evaluated = TEST if data.split == TEST else TRAINING
        for number, site in enumerate(data.names):
            self.driver.join(site, "evaluator", data.count(app, number, evaluated), stated)
            self.driver.join(site, "learner", data.count(app, number, TRAINING), stated)

    @property
    def tests(self) -> bool:
        """Whether models are evaluated on test data."""
        return self._prepared.data.split == TEST

    def run(self) -> JobView:
        """Run the job to its end."""
        try:
            with threads(THREADS), young_garbage_only():
                self.driver.run()
            return self.view()
        finally:
            self.close()

    def close(self) -> None:
        """End what the simulation has started."""
        self._crew.close()
        self._pool.shutdown()

    def view(self, since: int = 0) -> JobView:
        """Return the job as operators see it; of its history, the versions from `since` on."""
        around = Surroundings(
            fleet=_Nobody(),
            now=seconds(self.driver.now),
            bytes_up=self.driver.traffic.up,
            bytes_down=self.driver.traffic.down,
            trouble="",
        )
        return job_view(self.machine, around, since=since)

    def whole_view(self) -> JobView:
        """Return the job with its defaults filled in."""
        return self.view().model_copy(update={"resolved": resolved(self.machine.spec)})

    def keep_results(self, wall_seconds: float, workers: str) -> JobView:
        """Write report, last model and resolved job into the folder."""
        view = self.whole_view()
        state = self.machine.state
        if state.current is not None:
            model = self._models.read(state.current)
            manifest = model.manifest.part(model.manifest.spec.own.names)
            origin = origin_of(self.machine, state.version, view.resolved)
            save_checkpoint(self._folder / MODEL, manifest, pack(manifest.spec, model.arrays), origin)
        keep_resolved(self._folder, view, self.spec, THREADS)
        about: dict[str, Any] = {
            "settings": self.settings.model_dump(mode="json"),
            "sites": len(self._prepared.data.names),
            "workers": workers,
            "wall_seconds": round(wall_seconds, 3),
        }
        keep_report(self._folder, view, self.spec, THREADS, simulation=about)
        return view


def simulate(spec: JobSpec, folder: Path, *, sites: int | None = None, workers: int = 0) -> JobView:
    """Simulate a job whose files are located; its report, model and resolved job are in the folder."""
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    simulation = Simulation(prepare(spec, sites, folder), folder, Options(workers))
    simulation.run()
    return simulation.keep_results(time.monotonic() - begun, str(workers))
