"""How `hansa simulate` shows a simulation: live while it runs, and with a summary at the end."""

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import click

from hansa.common.job.spec import JobSpec
from hansa.common.report.material import PAGE, REPORT, RESOLVED
from hansa.common.run.folder import MODEL
from hansa.common.run.summary import print_best, quality, quality_at_test_sites
from hansa.common.ui.job.job_warnings import warn, warn_of_shortfalls
from hansa.common.ui.job.live import show_live
from hansa.common.values.views import JobView
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import counted
from hansa.simulation.options import USUAL, Options
from hansa.simulation.run import Simulation, resumed
from hansa.simulation.sites.prepare import prepare

PAUSE = 0.1  # seconds between two pictures of the live view
SHARE = 20  # a picture is drawn only after this many times the seconds that the last one took


class Viewer:
    """Passes views of a simulation, which runs on a thread, to the live view on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._views: asyncio.Queue[JobView | None] = asyncio.Queue()
        self._next, self._since = 0.0, 0
        self.simulation: Simulation | None = None

    def changed(self) -> None:
        """Send a view, if the last one is old enough; on the simulation's thread."""
        now = time.monotonic()
        if self.simulation is not None and now >= self._next:
            self._send()
            took = time.monotonic() - now
            self._next = now + max(PAUSE, SHARE * took)

    def finish(self) -> None:
        """Send the last view."""
        self._send()
        self._loop.call_soon_threadsafe(self._views.put_nowait, None)

    def _send(self) -> None:
        assert self.simulation is not None
        view = self.simulation.view(self._since)
        self._since = max((e.version for e in view.history if e.evaluated), default=self._since)
        self._loop.call_soon_threadsafe(self._views.put_nowait, view)

    async def views(self) -> AsyncIterator[JobView]:
        """Yield views until the simulation has ended."""
        while (view := await self._views.get()) is not None:
            yield view


Make = Callable[[Callable[[], None]], Simulation]  # is told what to call after every change


def run_and_show(
    spec: JobSpec, folder: Path, sites: int | None, quiet: bool, options: Options = USUAL
) -> tuple[JobView, bool]:
    """Simulate a job and keep its results; return its last view, and whether somebody ended it early."""
    folder.mkdir(parents=True, exist_ok=True)

    def make(changed: Callable[[], None]) -> Simulation:
        return Simulation(prepare(spec, sites, folder), folder, options, changed)

    return asyncio.run(_run_and_show(make, folder, quiet, options))


def resume_and_show(folder: Path, quiet: bool, options: Options = USUAL) -> tuple[JobView, bool]:
    """Go on with a simulation that was interrupted; return the same as `run_and_show`."""
    return asyncio.run(
        _run_and_show(lambda changed: resumed(folder, options, changed), folder, quiet, options)
    )


async def _run_and_show(make: Make, folder: Path, quiet: bool, options: Options) -> tuple[JobView, bool]:
    viewer, loop = Viewer(), asyncio.get_running_loop()

    def work() -> Simulation:
        simulation = make(viewer.changed)
        viewer.simulation = simulation
        if not quiet:
            _introduce(simulation)
        try:
            simulation.run()
        finally:
            viewer.finish()
        return simulation

    with _signals(viewer):
        working = loop.run_in_executor(None, work)
        showing = asyncio.create_task(show_live(viewer.views(), quiet, tell_failure=False))
        await asyncio.wait((working, showing), return_when=asyncio.FIRST_COMPLETED)
        if working.done() and working.exception():
            showing.cancel()
        simulation = await working
        await showing
    view = simulation.keep_results(str(options))
    if not quiet:
        warn(view)
        _print_summary(view, folder, simulation, simulation.saves.seconds)
        warn_of_shortfalls(view)
    simulation.require_same()
    return view, simulation.stopping and view.status != "completed"


@contextlib.contextmanager
def _signals(viewer: Viewer) -> Iterator[None]:
    """Cancel the job at the first signal; the second ends the process at once."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if viewer.simulation is None or viewer.simulation.stopping:
            os._exit(130)
        viewer.simulation.stopping = True
        click.echo("\nstopping: the job ends with its last model; Ctrl-C again ends at once", err=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _introduce(simulation: Simulation) -> None:
    settings, recording = simulation.settings, simulation.recording
    if recording is not None:
        happened = counted(len(recording.events), "event")
        click.echo(f"replaying job {recording.record.id}: {happened} in the order of its journal")
        return
    click.echo(
        f"simulating {counted(len(simulation.driver.sites), 'site')}: a step takes"
        f" {settings.step_seconds:g} s, a transfer {settings.latency:g} s + bytes /"
        f" ({amount(int(settings.bandwidth.down))}/s down, {amount(int(settings.bandwidth.up))}/s up)"
    )


def _print_summary(view: JobView, folder: Path, simulation: Simulation, wall: float) -> None:
    where = shlex.quote(os.path.relpath(folder))
    click.echo()
    if view.status != "completed":
        how = "failed" if view.status == "failed" else "did not complete"
        click.echo(f"The simulation {how}: {view.reason}", err=True)
        click.echo(f"What exists of it is in {where}", err=True)
        if simulation.stopping and not simulation.recording:
            click.echo(f"`hansa simulate --resume {where}` goes on with it", err=True)
        return
    updates = sum(len(entry.updates) for entry in view.history)
    clock = "when it was deployed" if simulation.recording else "in virtual time"
    click.echo(
        f"Done: {counted(view.rounds, view.unit)} of {counted(len(simulation.driver.sites), 'virtual site')}"
        f" in {wall:.1f} s ({updates / wall:,.0f} updates/s); {view.seconds:,.1f} s {clock}."
    )
    click.echo(f"  result   {quality(view, simulation.split)}")
    if view.test:
        click.echo(f"  test     {quality_at_test_sites(view.test)}")
    for remark in simulation.driver.remarks:
        click.echo(f"  training {remark}")
    click.echo(f"  traffic  {amount(view.bytes_down)} to the sites, {amount(view.bytes_up)} back")
    if simulation.recording and not simulation.difference:
        click.echo(f"  replay   every version is that of job {view.job}, bit for bit")
    click.echo(f"  model    {where}/{MODEL}")
    print_best(view, where)
    click.echo(f"  report   {where}/{PAGE}, for programs {REPORT} beside it")
    click.echo(f"  job      {where}/{RESOLVED}, with every default filled in")
