"""`hansa run`: a whole federation on this machine, as real processes."""

import asyncio
import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hansa.common.job.file import load_job
from hansa.common.job.spec import DataSpec, JobSpec, SitesSpec
from hansa.common.run.central import central_name, centralised
from hansa.common.run.folder import MODEL, REPORT, RESOLVED, keep_resolved, keep_results
from hansa.common.run.interruption import Interrupted, Interruption
from hansa.common.run.nursery import Nursery
from hansa.common.ui.client import Client
from hansa.common.ui.jobs import exit_code, outcome, warn
from hansa.common.ui.live import show_live
from hansa.common.ui.options import amount, print_json
from hansa.common.ui.participation import metrics_missing, warn_of_shortfalls
from hansa.common.values.errors import HansaError, InvalidInput, InvalidJob, Refused, Taken
from hansa.common.values.views import JobView
from hansa.common.values.words import counted, in_order, listed, share_of, suggestion

if TYPE_CHECKING:
    from hansa.common.data.site_files import Split  # numpy need not be loaded to print help

# Settings for a federation elsewhere, exported or in a settings file, are not meant for this one.
ALONE = dict.fromkeys(("HANSA_TLS", "HANSA_STORE", "HANSA_POLICY", "HANSA_METRICS", "HANSA_LOG_FILE"), "")
ALONE["HANSA_CONFIG"] = os.devnull
OWN_METRICS = 3  # of an app, in the summary; the report has all
INTERRUPTED = 130  # the exit code, whichever signal it was
PATIENCE, PAUSE = 30.0, 0.05  # seconds to wait for evaluators, and between two looks


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--sites", type=click.IntRange(1, 1000), help="How many sites (default: the job file's data.sites)."
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a field, such as train.epochs=2."
)
@click.option(
    "--slow",
    "slowed",
    multiple=True,
    metavar="SITE=FACTOR",
    help="Let a site's training take so many times as long. May be repeated.",
)
@click.option(
    "--central",
    is_flag=True,
    help="Train centrally instead, to compare with: one site holds all data, its batches are as large as all sites'.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results and logs go (default: a new folder below .hansa/runs).",
)
@click.option(
    "--json", "as_json", is_flag=True, help="End with one JSON object instead of the live view and summary."
)
def run(
    file: Path,
    sites: int | None,
    changes: tuple[str, ...],
    slowed: tuple[str, ...],
    central: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a whole federation on this machine: controller, learners and evaluators as real processes.

    The job file's data: section says which data the sites hold. Results are kept in a folder that is named at
    the end: model.safetensors, report.json, and job.resolved.yaml, the job with every default filled in.
    Ctrl-C cancels the job and keeps what there is; a second one ends everything at once.
    """
    spec = load_job(file, changes, here=True)
    if spec.data is None:
        raise InvalidJob(
            f"{file}: data: is required by `hansa run`; it says what the sites hold, such as data: {{source: digits}}"
        )
    name = central_name(spec) if central else spec.name
    folder = (
        out or Path(".hansa/runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    ).absolute()
    if (folder / "controller").exists():
        raise Taken(f"--out {folder}: another run has left its results there; choose a new folder")
    federation = LocalFederation(_beside(spec, file), sites, folder, _factors(slowed), central)
    federation.part_data()
    try:
        view = asyncio.run(federation.run(quiet=as_json))
    except (Interrupted, HansaError) as error:
        if not federation.interrupted:
            raise
        if isinstance(error, HansaError):
            click.echo(f"hansa: {error}", err=True)
        click.echo(f"\nstopped; every process has ended, the state is kept in {folder}", err=True)
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        print_json(outcome(view))
    else:
        _conclude(view, folder, file, spec.data, federation.split)
        warn_of_shortfalls(view)
    if federation.interrupted and view.status != "completed":  # it may have ended by itself in that moment
        _say_what_is_left(view, folder)
        raise SystemExit(INTERRUPTED)
    raise SystemExit(exit_code(view))


def _say_what_is_left(view: JobView, folder: Path) -> None:
    """Say after Ctrl-C what there is of a job that did not come to its end."""
    model = f", its last model (version {view.version})" if view.history else ""
    click.echo(
        f"stopped; every process has ended; the job's report{model} and the job as it was run are", err=True
    )
    click.echo(f"in {folder}, where its state is kept, too", err=True)


def _factors(words: Iterable[str]) -> dict[str, float]:
    """Read SITE=FACTOR words."""
    factors = {}
    for word in words:
        site, _, number = word.partition("=")
        try:
            factors[site] = float(number)
        except ValueError:
            factors[site] = 0.0
        if not 1 <= factors[site] < math.inf:
            raise InvalidInput(
                f"--slow {word}: write SITE=FACTOR with a factor of at least 1, such as site-1=5"
            )
    return factors


def _beside(spec: JobSpec, file: Path) -> JobSpec:
    """Find the app, and data that are a file, from here or from beside the job file."""
    data = spec.data
    assert data is not None
    place, _, attribute = spec.app.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        if not (file.parent / place).is_file():
            raise InvalidJob(f"{file}: app: there is no file {place}, neither here nor beside the job file")
        spec = spec.model_copy(update={"app": f"{os.path.relpath(file.parent / place)}:{attribute}"})
    if data.files is not None:
        from hansa.common.data.site_files import found_files

        found = {site: str(path) for site, path in found_files(data.files, file.parent).items()}
        return spec.model_copy(update={"data": data.model_copy(update={"files": found})})
    from hansa.common.data.sources import SOURCES

    beside = file.parent / str(data.source)
    if data.source not in SOURCES and not Path(str(data.source)).exists() and beside.exists():
        spec = spec.model_copy(update={"data": data.model_copy(update={"source": str(beside)})})
    return spec


class LocalFederation:
    """Controller, learners and evaluators on this machine, for one job."""

    def __init__(
        self, spec: JobSpec, sites: int | None, folder: Path, slow: Mapping[str, float], central: bool = False
    ) -> None:
        self._count = sites
        self._central = central  # all data at one site
        self._slow = slow  # by which factor some sites' training is slowed down
        self._files: dict[str, Path] = {}  # of the sites, known when the data are parted
        self.split: Split = "test"  # what evaluators measure on
        self._spec = spec
        self._folder = folder
        self._nursery = Nursery()
        self._stop = Interruption()

    @property
    def _sites(self) -> list[str]:
        return list(self._files)

    async def run(self, quiet: bool) -> JobView:
        """Run the job to its end and stop everything; at the first Ctrl-C the job is cancelled, at the second nothing
        is waited for.
        """
        self._stop.listen()
        (self._folder / "logs").mkdir(exist_ok=True)
        if not quiet:
            if self._central:
                size = self._spec.train.batch_size
                click.echo(f"central training: one site holds all data, in batches of {size} examples")
            click.echo(f"starting a controller and {counted(len(self._sites), 'site')} …")
        try:
            return await self._stop.unless_again(self._work(quiet))
        finally:
            await self._end_processes()

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the job before its time."""
        return self._stop.asked.is_set()

    def part_data(self) -> None:
        """Find or write the sites' files and let the job wait for every one of the sites."""
        data = self._spec.data
        assert data is not None
        if data.files is not None:
            self._take_files(data.files)
        else:
            self._write_files(data)
        for name in self._slow:
            if name not in self._sites:
                raise InvalidInput(f"--slow {name}: there is no such site" + suggestion(name, self._sites))
        count, together = len(self._sites), self._spec.sites.together
        if together > count:
            raise InvalidInput(f"sites.together: {count} sites cannot make models of {together}")
        least = SitesSpec(min=count, together=together, wait=max(self._spec.sites.wait, 60))
        self._spec = self._spec.model_copy(update={"sites": least})

    def _write_files(self, data: DataSpec) -> None:
        """Split a data set across the sites."""
        from hansa.common.data.shards import TEST, write_pooled, write_shards
        from hansa.common.data.sources import SOURCES

        where, app = self._folder / "data", None
        if data.source not in SOURCES:
            from hansa.common.app import load_app

            # It may say which columns are meant, and what its classes are called.
            app = load_app(self._spec.app)
        if self._central or data.central:
            path, count = write_pooled(data, self._count, self._spec.seed, where, app=app)
            paths = [path]
            if not data.central:  # what a central run left behind is the job of one site already
                self._spec = centralised(self._spec, count)
        else:
            paths = write_shards(data, self._count, self._spec.seed, where, app=app)
            count = len(paths)
        made = data.model_copy(update={"sites": count, "central": self._central or data.central})
        self._spec = self._spec.model_copy(update={"data": made})
        self._files = {path.stem: path for path in paths}
        if not (where / TEST).exists():
            self.split = "validation"  # everything was parted, so there is nothing else to measure on

    def _take_files(self, files: Mapping[str, str]) -> None:
        """Take the sites' own files as they are, once they have been read and found to fit one another."""
        if self._count is not None or self._central:
            what = "--central" if self._central else "--sites"
            raise InvalidInput(f"{what}: data.files says which site holds what; {what} needs data.source")
        from hansa.common.app import load_app
        from hansa.common.data.site_files import agreed

        self._files = {site: Path(path) for site, path in files.items()}
        self.split = agreed(load_app(self._spec.app), self._files)
        self._folder.mkdir(parents=True, exist_ok=True)

    async def _work(self, quiet: bool) -> JobView:
        address = await self._stop.unless_asked(self._start_all())
        async with Client(address) as client:
            await self._stop.unless_asked(self._evaluators_attend(client))
            submitted = await client.submit(self._spec)
            keep_resolved(self._folder, submitted, self._spec)
            warn(submitted)
            await self._watch(client, submitted.job, quiet)
            final = await keep_results(self._folder, client, submitted.job, self._spec)
            warn(final, told=submitted.warnings)
            return final

    async def _start_all(self) -> str:
        """Start all processes; return the controller's address."""
        address = await self._start_controller()
        for name in self._sites:
            self._start_site("learner", name, address, "--slow", str(self._slow.get(name, 1)))
        for name in self._sites:
            self._start_site("evaluator", name, address, "--split", self.split)
        return address

    async def _watch(self, client: Client, job: str, quiet: bool) -> None:
        """Show the job until it ends; raise if the controller does before."""
        watching = asyncio.create_task(show_live(client.watch(job), quiet, tell_failure=False))
        minding = asyncio.create_task(self._mind())
        cancelling = asyncio.create_task(self._cancel_when_asked(client, job))
        tasks = {watching, minding, cancelling}
        try:
            while not watching.done():
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (watching, minding, cancelling):
                task.cancel()
            await asyncio.gather(watching, minding, cancelling, return_exceptions=True)

    async def _cancel_when_asked(self, client: Client, job: str) -> None:
        """End the job at the first signal; it then ends like any other, with a report and its last model."""
        await self._stop.asked.wait()
        click.echo(
            "\nstopping: the job is cancelled and its last model kept; Ctrl-C again ends at once", err=True
        )
        with contextlib.suppress(Refused):  # it has just ended by itself
            await client.cancel(job)

    async def _evaluators_attend(self, client: Client) -> None:
        """Wait for the evaluators, so that all measure every version; one that has ended will not come."""
        started = {f"evaluator {name}": self._nursery.processes[f"evaluator {name}"] for name in self._sites}
        waited = 0.0
        while waited < PATIENCE:
            here = {f"evaluator {view.site}" for view in await client.sites() if view.role == "evaluator"}
            if all(name in here or process.exitcode is not None for name, process in started.items()):
                return
            await asyncio.sleep(PAUSE)
            waited += PAUSE

    async def _start_controller(self) -> str:
        read, write = self._nursery.pipe()
        state = self._folder / "controller"
        arguments = ["controller", "start", "--listen", "127.0.0.1:0", "--state", str(state)]
        self._nursery.start("controller", arguments, self._log("controller"), write, environment=ALONE)
        write.close()
        loop = asyncio.get_running_loop()
        with os.fdopen(os.dup(read.fileno())) as answers:
            answer = (await loop.run_in_executor(None, answers.readline)).strip()
        read.close()
        if not answer.startswith("ready "):
            raise HansaError(
                answer.removeprefix("failed ")
                or f"the controller did not start; see {self._log('controller')}"
            )
        return str(json.loads((state / "controller.lock").read_text())["address"])

    def _start_site(self, role: str, name: str, address: str, *more: str) -> None:
        threads = max(1, (os.cpu_count() or 1) // len(self._sites))
        arguments = [role, "start", "--controller", address, "--site", name, "--app", self._spec.app]
        arguments += ["--data", str(self._files[name]), "--state", str(self._folder / name)]
        arguments += ["--threads", str(threads), "--drain", "0", "--keep-going", *more]
        self._nursery.start(f"{role} {name}", arguments, self._log(f"{role}-{name}"), environment=ALONE)

    async def _mind(self) -> JobView:
        """Raise when the controller ends; say so when another process does."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[str] = asyncio.Queue()
        for name, process in self._nursery.processes.items():
            loop.add_reader(process.sentinel, self._on_end, loop, process.sentinel, name, ended)
        try:
            while True:
                name = await ended.get()
                why = why_ended(self._nursery.processes[name].exitcode, self._log(name.replace(" ", "-")))
                if name == "controller":
                    raise HansaError(f"the controller ended unexpectedly: {why}")
                click.echo(f"hansa: {name} ended unexpectedly: {why}", err=True)
        finally:
            for process in self._nursery.processes.values():
                loop.remove_reader(process.sentinel)

    @staticmethod
    def _on_end(
        loop: asyncio.AbstractEventLoop, sentinel: int, name: str, ended: "asyncio.Queue[str]"
    ) -> None:
        loop.remove_reader(sentinel)
        ended.put_nowait(name)

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"

    async def _end_processes(self) -> None:
        """End every process: in order, or at once if somebody asks twice."""
        ending = asyncio.get_running_loop().run_in_executor(None, self._end_in_order)
        hurry = asyncio.create_task(self._stop.again.wait())
        await asyncio.wait((ending, hurry), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            self._nursery.kill()
        hurry.cancel()
        await ending

    def _end_in_order(self) -> None:
        names = list(self._nursery.processes)
        self._nursery.stop([name for name in names if name != "controller"])
        self._nursery.stop([name for name in names if name == "controller"])
        self._nursery.close()


def why_ended(code: int | None, log: Path) -> str:
    """Say what became of a process: which signal ended it, or what it said last."""
    if code is not None and code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}; its log is {log}"
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1]
    return "it left no message"


def _quality(view: JobView, split: "Split") -> str:
    """Say how good the newest model is, by what its app measures, on a part of the data: test or validation."""
    accuracy, loss = view.metrics.get("accuracy"), view.metrics.get("loss")
    if metrics_missing(view):
        return f"not measured: {metrics_missing(view)}"
    if not view.examples:
        return f"not measured{_why_not_measured(view)}"
    whole = view.examples == view.examples_total
    on = f"{view.examples if whole else share_of(view.examples, view.examples_total)} {split} examples"
    if accuracy is None and loss is None:
        return f"the loss on {on} is not a finite number"
    what = f"accuracy {accuracy:.1%}" if accuracy is not None else f"loss {loss:.4f}"
    own = [f"{n} {v:.4f}" for n, v in view.metrics.items() if n not in ("accuracy", "loss") and v is not None]
    whose = "that no site trained on" if split == "test" else "that sites kept back"
    last = view.metrics_version == view.version
    of = f"; this is version {view.metrics_version}, the last one was not measured{_why_not_measured(view)}"
    return f"{', '.join([what, *own[:OWN_METRICS]])} on {on} {whose}{'' if last else of}"


def _why_not_measured(view: JobView) -> str:
    """Say why versions since the one whose metrics are shown have none that count."""
    since = [entry for entry in view.history if entry.version > (view.metrics_version or 0)]
    last = next((entry for entry in reversed(since) if entry.unevaluated or entry.examples), None)
    if last is None:
        return ""
    some = (
        f" on enough examples, only on {share_of(last.examples, last.examples_total)}"
        if last.examples
        else ""
    )
    missing = [f"{site}: {last.unevaluated[site]}" for site in sorted(last.unevaluated, key=in_order)]
    return f"{some}; missing: {listed(missing, 3)}"


def suits_ten_sites(data: DataSpec) -> bool:
    """Whether the data can be parted among ten sites as well: not if they are natural ones, or named one by one."""
    return (
        data.files is None
        and set(data.partition) <= {"kind", "labels"}
        and data.partition.get("kind", "iid") in ("iid", "non-iid-l")
    )


def _conclude(view: JobView, folder: Path, file: Path, data: DataSpec, split: "Split") -> None:
    where = shlex.quote(os.path.relpath(folder))
    click.echo()
    if view.status != "completed":
        how = "failed" if view.status == "failed" else "did not complete"
        click.echo(f"The federation {how}: {view.reason}", err=True)
        click.echo(f"Logs of every process: {where}/logs", err=True)
        return
    sites = len(
        {site for e in view.history for site in (*e.contributions, *(s for hop in e.hops for s in hop.sites))}
    )
    work = f"{counted(view.rounds, view.unit)}, {view.seconds:.1f} s"
    click.echo(
        f"Done: {counted(sites, 'site')} trained one model {'together ' if sites > 1 else ''}in {work}."
    )
    click.echo(f"  result   {_quality(view, split)}")
    click.echo(
        f"  traffic  {amount(view.bytes_down)} to the sites, {amount(view.bytes_up)} back; no data left a site"
    )
    click.echo(f"  model    {where}/{MODEL}")
    click.echo(f"  report   {where}/{REPORT}, logs in {where}/logs")
    click.echo(f"  job      {where}/{RESOLVED}, with every default filled in")
    click.echo()
    click.echo("Next:")
    here = "" if shutil.which("hansa") else os.path.relpath(Path(sys.executable).parent) + "/"
    predict = file.parent / "predict.py"
    if predict.exists():
        click.echo(f"  {here}python {shlex.quote(os.path.relpath(predict))} {where}/{MODEL}")
    else:
        click.echo(f"  load {where}/{MODEL} with safetensors.torch.load_file")
    words = "--sites 10 --set seed=1" if suits_ten_sites(data) else "--set seed=1"
    click.echo(f"  {here}hansa run {shlex.quote(str(file))} {words}     change the federation")
    click.echo('  README.md, "Five minutes on two terminals": controller and learners as daemons')
