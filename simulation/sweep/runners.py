"""The ways to run the jobs of a sweep, behind one protocol: simulation, processes, a standing controller."""

import asyncio
import contextlib
import json
import shutil
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.plugins.check import ANYTHING
from hansa.common.process.state import holder
from hansa.common.report.material import PAGE, REPORT, RESOLVED
from hansa.common.rpc.channel import Endpoint
from hansa.common.run.folder import MODEL, keep_resolved, keep_results
from hansa.common.run.trial import Report, run_trial
from hansa.common.site.source import source_of
from hansa.common.torch.installed import require_torch
from hansa.common.torch.threads import wait_without_spinning
from hansa.common.ui.job.watching import Watching
from hansa.common.values.errors import HansaError, InvalidInput, NotFound, Taken, one_line
from hansa.common.values.views import JobView
from hansa.simulation.sweep.plan import Way
from hansa.simulation.sweep.records import RECORD, note_job, noted_job

JOB, LOGS, TRACEBACK = "job.yaml", "logs", "traceback.txt"
REAL = "real sites are as fast as they are"
OWN = "the sites of a standing controller have data of their own"
KEPT = (REPORT, PAGE, MODEL, RESOLVED, RECORD, JOB, LOGS)  # what remains of a run that has completed


class Runner(Protocol):
    """Runs one job at a time to its end."""

    @property
    def way(self) -> Way:
        """How it runs jobs."""

    def prepare(self) -> None:
        """Raise if no job can be run this way at the moment."""

    def run(self, spec: JobSpec, folder: Path) -> Report:
        """Run a job and leave report, model and resolved job in `folder`; raise if it does not complete."""


@dataclass(frozen=True)
class Choice:
    """The way of running that somebody asked for; simulation unless they say otherwise."""

    workers: int = 0  # processes of a simulation or, on Ray, actors; 0: this process, or one for each CPU
    ray: str | None = None  # the address of a Ray cluster for simulations, or "auto"
    processes: bool = False
    fleet: Endpoint | None = None

    def runner(self) -> Runner:
        """Return the runner; refuse a choice of two."""
        if self.processes and self.fleet:
            raise InvalidInput("--processes runs jobs on this machine: leave out --fleet and --controller")
        if (self.workers or self.ray) and (self.processes or self.fleet):
            option = "--workers" if self.workers else "--ray"
            raise InvalidInput(
                f"{option} is for simulations: leave out --processes, --fleet and --controller"
            )
        if self.fleet is not None:
            return ControllerRunner(self.fleet)
        return ProcessRunner() if self.processes else SimulationRunner(self.workers, self.ray)


class SimulationRunner:
    """Every run is a simulation: virtual sites, in this process, in some workers or on a Ray cluster."""

    way = Way("simulation")  # who does the work makes no difference to results

    def __init__(self, workers: int, ray: str | None) -> None:
        self._workers, self._ray = workers, ray

    def prepare(self) -> None:
        """Get ready to load PyTorch."""
        require_torch("a sweep by simulation")
        wait_without_spinning()
        if self._ray is not None:
            from hansa.simulation.crew.cluster import require_ray

            require_ray(self._ray)

    def run(self, spec: JobSpec, folder: Path) -> Report:
        """Simulate a job, or go on with it; its data and models are removed when it has completed."""
        from hansa.simulation.run import simulate  # loads PyTorch
        from hansa.simulation.storage.saves import is_saved

        # The folder's name says what decides the result, so a save in it is one of this job.
        go_on = is_saved(folder)
        if not go_on:
            _remove_all_but((RECORD,), folder)  # what an earlier attempt has left
        try:
            view = simulate(spec, folder, workers=self._workers, ray=self._ray, go_on=go_on)
        except HansaError:
            raise
        except ANYTHING as error:  # the app runs in this process, and may fail in any way
            (folder / TRACEBACK).write_text(traceback.format_exc(), encoding="utf-8")
            raise HansaError(f"{one_line(error)}; see {folder / TRACEBACK}") from error
        finally:
            source_of(spec.app).forget()  # modules of its own: the next app may have others of the same name
        if view.status != "completed":
            raise HansaError(f"the simulation {view.status}: {view.reason}")
        _remove_all_but(KEPT, folder)
        return read_report(folder)


class ProcessRunner:
    """Every run is a `hansa run`: a controller, learners and evaluators as real processes."""

    way = Way("processes", ignored={"simulate": REAL})

    def prepare(self) -> None:
        """Require what the processes need."""
        require_torch("a sweep with --processes")

    def run(self, spec: JobSpec, folder: Path) -> Report:
        """Run a job; its data, states and stored models are removed when it has completed."""
        pid = holder(folder / "controller", "controller")
        if pid is not None:
            raise Taken(
                f"{folder} is in use by an earlier attempt that is still running (controller: pid {pid})"
            )
        _remove_all_but((RECORD,), folder)  # what an earlier attempt has left
        document = spec.model_dump(mode="json", exclude_unset=True)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        (folder / JOB).write_text(text, encoding="utf-8")
        report = run_trial(folder / JOB, folder)
        _remove_all_but(KEPT, folder)
        return report


def _remove_all_but(names: tuple[str, ...], folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def read_report(folder: Path) -> Report:
    """Read the report that a run has left."""
    report: Report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    return report


class ControllerRunner:
    """Every run is a job of a standing controller, whose sites have their own data."""

    def __init__(self, controller: Endpoint) -> None:
        self._to = controller
        # Other controllers have other sites.
        ignored = {"simulate": REAL, "data": OWN}
        self.way = Way(f"controller {controller.address}", here=False, ignored=ignored)

    def prepare(self) -> None:
        """Raise if the controller cannot be reached or does not know us."""
        asyncio.run(self._status())

    async def _status(self) -> None:
        async with AsyncClient(self._to) as client:
            await client.status()

    def run(self, spec: JobSpec, folder: Path) -> Report:
        """Submit a job and wait for its end, or go on waiting for the one that was submitted before."""
        return asyncio.run(self._run(spec, folder))

    async def _run(self, spec: JobSpec, folder: Path) -> Report:
        job = await self._going_on(folder)
        view: JobView | None = None
        if job is None:
            async with AsyncClient(self._to) as client:
                view = (await client.submit(spec)).view
            job = view.job
        try:
            if view is not None:
                note_job(folder, job)
                keep_resolved(folder, view, spec)
            async for _ in Watching(self._to, job, known=True).views():
                pass
        except (asyncio.CancelledError, KeyboardInterrupt):  # the latter in the midst of writing
            await self._cancel(job)
            raise
        async with AsyncClient(self._to) as client:
            ended = await keep_results(folder, client, job, spec.model_copy(update={"data": None}))
        if ended.status != "completed":
            raise HansaError(f"job {job} {ended.status}: {ended.reason}")
        return read_report(folder)

    async def _going_on(self, folder: Path) -> str | None:
        """Return the job that an interrupted sweep has left on the controller, if it is of use."""
        job = noted_job(folder)
        if job is None:
            return None
        async with AsyncClient(self._to) as client:
            try:
                view = await client.show(job)
            except NotFound:
                return None
        return job if not view.ended or view.status == "completed" else None

    async def _cancel(self, job: str) -> None:
        """Leave nothing behind on the controller when somebody ends the sweep."""
        with contextlib.suppress(HansaError):
            async with AsyncClient(self._to) as client:
                await client.cancel(job)
