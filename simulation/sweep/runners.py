"""The ways to run the jobs of a sweep, behind one protocol: processes here, or a standing controller."""

import asyncio
import contextlib
import json
import shutil
from pathlib import Path
from typing import Protocol

import yaml

from hansa.common.job.spec import JobSpec
from hansa.common.process.state import holder
from hansa.common.rpc.channel import Endpoint
from hansa.common.run.folder import MODEL, REPORT, RESOLVED, keep_resolved, keep_results
from hansa.common.run.trial import Report, run_trial
from hansa.common.ui.client import Client
from hansa.common.ui.watching import Watching
from hansa.common.values.errors import HansaError, NotFound, Taken
from hansa.simulation.sweep.plan import Way
from hansa.simulation.sweep.records import RECORD, note_job, noted_job

JOB, LOGS = "job.yaml", "logs"
REAL = "real sites are as fast as they are"
OWN = "the sites of a standing controller have data of their own"
KEPT = (REPORT, MODEL, RESOLVED, RECORD, JOB, LOGS)  # what remains of a run that has completed


class Runner(Protocol):
    """Runs one job at a time to its end."""

    @property
    def way(self) -> Way:
        """How it runs jobs."""

    def prepare(self) -> None:
        """Raise if no job can be run this way at the moment."""

    def run(self, spec: JobSpec, folder: Path) -> Report:
        """Run a job and leave report, model and resolved job in `folder`; raise if it does not complete."""


def chosen_runner(fleet: Endpoint | None) -> Runner:
    """Return the way of running that was asked for."""
    if fleet is not None:
        return ControllerRunner(fleet)
    # Simulation becomes the default here, with the numbers of workers and Ray's address as its parameters.
    return ProcessRunner()


class ProcessRunner:
    """Every run is a `hansa run`: a controller, learners and evaluators as real processes."""

    way = Way("processes", ignored={"simulate": REAL})

    def prepare(self) -> None:
        """There is nothing that could be missing."""

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
        async with Client(self._to) as client:
            await client.status()

    def run(self, spec: JobSpec, folder: Path) -> Report:
        """Submit a job and wait for its end, or go on waiting for the one that was submitted before."""
        return asyncio.run(self._run(spec, folder))

    async def _run(self, spec: JobSpec, folder: Path) -> Report:
        job = await self._going_on(folder)
        if job is None:
            async with Client(self._to) as client:
                view = await client.submit(spec)
            job = view.job
            note_job(folder, job)
            keep_resolved(folder, view, spec)
        try:
            async for _ in Watching(self._to, job, known=True).views():
                pass
        except asyncio.CancelledError:
            await self._cancel(job)
            raise
        async with Client(self._to) as client:
            ended = await keep_results(folder, client, job, spec.model_copy(update={"data": None}))
        if ended.status != "completed":
            raise HansaError(f"job {job} {ended.status}: {ended.reason}")
        report: Report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        return report

    async def _going_on(self, folder: Path) -> str | None:
        """Return the job that an interrupted sweep has left on the controller, if it is of use."""
        job = noted_job(folder)
        if job is None:
            return None
        async with Client(self._to) as client:
            try:
                view = await client.show(job)
            except NotFound:
                return None
        return job if not view.ended or view.status == "completed" else None

    async def _cancel(self, job: str) -> None:
        """Leave nothing behind on the controller when somebody ends the sweep."""
        with contextlib.suppress(HansaError):
            async with Client(self._to) as client:
                await client.cancel(job)
