"""A federation on this machine, from the start of its processes to the results in its folder."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import click

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.rpc.channel import Endpoint
from hansa.common.run.folder import keep_resolved, keep_results
from hansa.common.run.interruption import Interruption
from hansa.common.run.processes import Processes
from hansa.common.run.site_data import SiteData
from hansa.common.ui.job.job_warnings import warn
from hansa.common.ui.job.live import show_live
from hansa.common.values.errors import InvalidInput, Refused
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import counted, suggestion

PATIENCE, PAUSE = 30.0, 0.05  # seconds to wait for evaluators, and between two looks


class LocalFederation:
    """Controller, learners and evaluators on this machine, for one job."""

    def __init__(
        self,
        data: SiteData,
        folder: Path,
        slow: Mapping[str, float],
        central: bool = False,
        threads: int = 1,
        device: str = "cpu",
    ) -> None:
        for name in slow:
            if name not in data.files:
                raise InvalidInput(
                    f"--slow {name}: there is no such site" + suggestion(name, list(data.files))
                )
            if name not in data.learners:
                raise InvalidInput(f"--slow {name}: the site is held out, so it does not train")
        self._data = data
        self._folder = folder
        self._slow = slow  # the factor by which each site's training is slowed down
        self._central = central  # one site holds all data
        self._threads = threads  # PyTorch's, of each learner and evaluator
        self._device = device
        self._processes = Processes(folder)
        self._stop = Interruption()

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the job early."""
        return self._stop.asked.is_set()

    async def run(self, quiet: bool) -> JobView:
        """Run the job to its end and stop all processes.

        The first Ctrl-C cancels the job; the second ends everything at once.
        """
        self._stop.listen()
        (self._folder / "logs").mkdir(exist_ok=True)
        if not quiet:
            if self._central:
                size = self._data.spec.train.batch_size
                what = "training data" if self._data.spec.holds_out else "data"
                click.echo(f"central training: one site holds all {what}, in batches of {size} examples")
            click.echo(f"starting a controller and {counted(len(self._data.files), 'site')}{self._roles()} …")
        try:
            return await self._stop.unless_again(self._work(quiet))
        finally:
            await self._processes.end(self._stop.again)

    def _roles(self) -> str:
        """Say how many sites train, validate and test, if some are held out."""
        sites = self._data.spec.sites
        if not self._data.spec.holds_out:
            return ""
        roles = {"train": self._data.learners, "validate": sites.validation, "test": sites.test}
        return f" ({', '.join(f'{len(names)} {role}' for role, names in roles.items())})"

    async def _work(self, quiet: bool) -> JobView:
        spec = self._data.spec
        address = await self._stop.unless_asked(self._start())
        async with AsyncClient(Endpoint(address)) as client:
            await self._stop.unless_asked(self._await_evaluators(client))
            submitted = (await client.submit(spec)).view
            keep_resolved(self._folder, submitted, spec, self._threads)
            warn(submitted)
            await self._watch(client, submitted.job, quiet)
            final = await keep_results(self._folder, client, submitted.job, spec, self._threads)
            warn(final, known=submitted.warnings)
            return final

    async def _start(self) -> str:
        """Start all processes; return the controller's address."""
        address = await self._processes.start_controller()
        self._processes.start_sites(address, self._data, self._slow, self._threads, self._device)
        return address

    async def _await_evaluators(self, client: AsyncClient) -> None:
        """Wait for the evaluators, so that all evaluate every version; do not wait for one that has ended."""
        waited = 0.0
        while waited < PATIENCE:
            here = {view.site for view in await client.sites() if view.role == "evaluator"}
            awaited = (name for name in self._data.evaluators if name not in here)
            if all(self._processes.has_ended("evaluator", name) for name in awaited):
                return
            await asyncio.sleep(PAUSE)
            waited += PAUSE

    async def _watch(self, client: AsyncClient, job: str, quiet: bool) -> None:
        """Show the job until it ends; raise if the controller ends first."""
        showing = asyncio.create_task(show_live(client.views(job), quiet, tell_failure=False))
        watching = asyncio.create_task(self._processes.watch())
        cancelling = asyncio.create_task(self._cancel_when_asked(client, job))
        tasks: set[asyncio.Task[JobView] | asyncio.Task[None]] = {showing, watching, cancelling}
        try:
            while not showing.done():
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (showing, watching, cancelling):
                task.cancel()
            await asyncio.gather(showing, watching, cancelling, return_exceptions=True)

    async def _cancel_when_asked(self, client: AsyncClient, job: str) -> None:
        """Cancel the job at the first signal; it then ends like any other, with a report and a model."""
        await self._stop.asked.wait()
        click.echo(
            "\nstopping: the job is cancelled and its last model kept; Ctrl-C again ends at once", err=True
        )
        with contextlib.suppress(Refused):  # it has just ended by itself
            await client.cancel(job)
