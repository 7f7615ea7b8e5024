"""A simulation from a job to the results in its folder."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hansa.common.app import load_app
from hansa.common.data.site_files import Split, loaded_split
from hansa.common.job.simulate import SimulateSpec
from hansa.common.job.spec import JobSpec
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.models.frames import pack
from hansa.common.process.memory import young_garbage_only
from hansa.common.run.folder import keep_report, keep_resolved, model_file
from hansa.common.site.source import source_of
from hansa.common.torch.threads import threads
from hansa.common.values.errors import HansaError, InvalidInput
from hansa.common.values.ids import new_job_id
from hansa.common.values.views import JobView
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.views import Surroundings, history_views, job_view, models_of, origin_of
from hansa.controller.rulebook.compose import compose, composed_again
from hansa.controller.rulebook.resolve import resolved, software
from hansa.controller.work.bench import Bench
from hansa.simulation.clock.availability import Availability, availability_of
from hansa.simulation.clock.timing import Timing
from hansa.simulation.crew.base import Crew
from hansa.simulation.crew.blocks import received
from hansa.simulation.crew.inline import Inline
from hansa.simulation.crew.ray import ray_crew
from hansa.simulation.crew.workers import Workers
from hansa.simulation.engine.driver import Driver
from hansa.simulation.engine.recording import read_recording
from hansa.simulation.engine.replay import Replay
from hansa.simulation.engine.submission import submitted
from hansa.simulation.options import USUAL, Options
from hansa.simulation.sites.data import TRAINING
from hansa.simulation.sites.desk import Desk
from hansa.simulation.sites.prepare import Prepared, prepare
from hansa.simulation.storage.history import Views
from hansa.simulation.storage.memories import Memories
from hansa.simulation.storage.models import StoredModels
from hansa.simulation.storage.saves import FORMAT, Beginning, Saves, read_beginning, read_saved, restore
from hansa.simulation.storage.store import SharedStore

MEMORY = 1 << 30  # bytes that the sums of merges may take
THREADS = 1  # PyTorch's, as those of learners are by default, so that the bits are the same
SHOWN = 20  # sites that a live view lists
RECENT = 4 << 20  # bytes of the history that are read for a live view


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
        begun: Beginning | None = None,
    ) -> None:
        """`begun` is what a simulation is of that was saved in the folder, and now goes on."""
        spec, data, self._folder = prepared.spec, prepared.data, folder
        recording = self.recording = read_recording(options.replay, options.job) if options.replay else None
        rule, job = compose(spec), begun.job if begun else new_job_id()
        if recording:
            recording.require_fit(spec, data)
            rule, job = composed_again(recording.spec), recording.record.id
        self.store = SharedStore(options.memory // 4 * 3, folder / "spilled")
        saved = read_saved(folder) if begun else None
        first = None
        if begun and saved:
            spec = begun.told
        else:
            spec, first = submitted(spec, rule, job, self.store)
        self.settings = prepared.spec.simulate or SimulateSpec()
        # Files that the job names are on this machine; the engine knows their digests.
        self.spec = prepared.spec.model_copy(update={"simulate": self.settings})
        # What a controller is not told, either.
        told = spec.model_copy(update={"made_with": software(rule), "data": None, "simulate": None})
        at = recording.record.at if recording else 0.0
        self.machine = Machine(job, recording.spec if recording else told, rule, at)
        self._prepared, self._models = prepared, StoredModels(self.store)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="arithmetic")
        self._batched = options.batched
        self._crew = self._make_crew(options)
        bench = Bench(job, rule, self.store, self._pool, MEMORY)
        self.stopping = False  # whether somebody wants it to end early
        parts = (self.machine, bench, self.store, self._crew, data)
        driver: Driver | None = None
        self.driver: Driver | Replay
        if recording:
            self.driver = Replay(*parts, recording, changed)
        else:
            self.driver = driver = Driver(*parts, prepared.app, *self._clock(), changed)
        self.driver.memories = Memories(options.memory // 4, folder / "spilled-memory")
        self.driver.tick = self._tick
        self.saves = Saves(folder, self.machine, self.store, driver.saved if driver else lambda: None, saved)
        self.machine.keep_history(self.saves.history)
        try:
            if driver:
                self._enrol_sites(driver)
            if driver and saved:
                restore(folder, saved, self.machine, self.store, self.saves.history)
                driver.restore(received(saved.driver))
                return
            if not recording:  # which is quick to begin again
                source = source_of(self.spec.app).digest
                self.saves.begin(Beginning(FORMAT, prepared.spec, spec, job, data, source))
            self.driver.begin(first)
        except BaseException:
            self.close()
            raise

    def _clock(self) -> tuple[Timing, Availability]:
        names, seed = self._prepared.data.names, self.spec.seed
        return Timing(self.settings, names, seed), availability_of(self.settings.availability, names, seed)

    def _make_crew(self, options: Options) -> Crew:
        ref, data = self.spec.app, self._prepared.data
        if options.ray is not None:
            return ray_crew(options.ray, options.workers, ref, data, self.store, options.batched)
        if options.workers:
            return Workers(options.workers, ref, data, self.store, options.batched)
        return Inline(Desk(ref, data, self._models, options.batched))

    def _enrol_sites(self, driver: Driver) -> None:
        app, data, roles = self._prepared.app, self._prepared.data, self._prepared.roles
        stated = app.stated(source_of(self.spec.app).digest)
        learners = set(roles.learners)
        for number, site in enumerate(data.names):
            if site in roles.evaluators:
                evaluated = loaded_split(roles.evaluators[site])
                driver.enrol(site, "evaluator", data.count(app, number, evaluated), stated)
            if site in learners:
                driver.enrol(site, "learner", data.count(app, number, TRAINING), stated)

    @property
    def split(self) -> Split:
        """What models are evaluated on."""
        return self._prepared.roles.split

    def run(self) -> JobView:
        """Run the job to its end."""
        try:
            with threads(THREADS), young_garbage_only():
                self.driver.run()
            return self.view()
        finally:
            self.close()

    def _tick(self) -> None:
        """Save now and then; if somebody wants the simulation to end, save it once more and end it."""
        if self.stopping:
            if not self.recording:
                self.saves.save()
            self.driver.cancel()
        elif self.recording:
            self.saves.history.settle()
        else:
            self.saves.tick()

    @property
    def difference(self) -> str:
        """The first difference between a replay and the deployed job; empty if there is none."""
        return self.driver.difference if isinstance(self.driver, Replay) else ""

    def require_same(self) -> None:
        """Raise an error if a replay did not give the models of the deployed job."""
        if self.difference:
            raise HansaError(f"the replay is not job {self.machine.job}: {self.difference}")

    def close(self) -> None:
        """End what the simulation has started."""
        self._crew.close()
        self._pool.shutdown()
        self.driver.memories.close()

    def view(self, since: int | None = None) -> JobView:
        """Return the job as operators see it, with the whole history, which is read when it is looked at.

        With `since` there are only the versions from there on, as far as they are read quickly.
        """
        around = Surroundings(
            fleet=_Nobody(),
            now=self.driver.at,
            bytes_up=self.driver.traffic.up,
            bytes_down=self.driver.traffic.down,
            trouble="",
        )
        few = len(self._prepared.data.names) <= SHOWN
        if since is None:
            view = job_view(self.machine, around, sites=few)
            return view.model_copy(update={"history": Views(self.machine)})
        recent = max(since, self.saves.history.first_of_last(RECENT))
        return job_view(self.machine, around, history=history_views(self.machine, recent), sites=few)

    def whole_view(self) -> JobView:
        """Return the job with its defaults filled in."""
        return self.view().model_copy(update={"resolved": resolved(self.machine.spec)})

    def keep_results(self, workers: str) -> JobView:
        """Write report, the models that are kept and resolved job into the folder."""
        view = self.whole_view()
        for version, key in models_of(self.machine).items():
            model = self._models.read(key)
            manifest = model.manifest.part(model.manifest.spec.own.names)
            origin = origin_of(self.machine, version, view.resolved)
            file = self._folder / model_file(version, view)
            save_checkpoint(file, manifest, pack(manifest.spec, model.arrays), origin)
        keep_resolved(self._folder, view, self.spec, THREADS)
        about: dict[str, Any] = {
            "settings": self.settings.model_dump(mode="json"),
            "sites": len(self._prepared.data.names),
            "workers": workers,
            "wall_seconds": round(self.saves.seconds, 3),
            "batched": "auto" if self._batched else "off",
            "remarks": self.driver.remarks,
        }
        if self.recording:
            about["replay"] = {"job": self.machine.job, "difference": self.difference}
        keep_report(self._folder, view, self.spec, THREADS, simulation=about)
        if view.status != "cancelled" or self.recording:
            self.saves.end()
        return view


def resumed(folder: Path, options: Options = USUAL, changed: Callable[[], None] = lambda: None) -> Simulation:
    """Return a simulation that was interrupted, to go on with; its app must not have changed."""
    begun = read_beginning(folder)
    if source_of(begun.spec.app).digest != begun.source:
        raise InvalidInput(f"--resume {folder}: the app {begun.spec.app} has changed since; simulate anew")
    prepared = Prepared(begun.spec, load_app(begun.spec.app), begun.data)
    return Simulation(prepared, folder, options, changed, begun)


def simulate(
    spec: JobSpec,
    folder: Path,
    *,
    sites: int | None = None,
    workers: int = 0,
    ray: str | None = None,
    batched: bool = True,
    go_on: bool = False,
) -> JobView:
    """Simulate a job whose files are located; its report, model and resolved job are in the folder.

    To `go_on` is to begin with the save of the same job that is in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(workers, ray, batched=batched)
    simulation = (
        resumed(folder, options) if go_on else Simulation(prepare(spec, sites, folder), folder, options)
    )
    simulation.run()
    return simulation.keep_results(str(options))
