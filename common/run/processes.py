"""The processes of a federation on one machine: started, watched and ended together."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import click

from hansa.common.run.nursery import Nursery
from hansa.common.run.site_data import SiteData
from hansa.common.values.errors import HansaError

# Settings for another federation, exported or in a settings file, are not meant for this one.
ALONE = dict.fromkeys(
    (
        "HANSA_TLS",
        "HANSA_STORE",
        "HANSA_POLICY",
        "HANSA_METRICS",
        "HANSA_LOG_FILE",
        "HANSA_PERSONAL",
        "HANSA_LAUNCHER",
    ),
    "",
)
ALONE["HANSA_CONFIG"] = os.devnull


class Processes:
    """A controller and the daemons of its sites, with their logs and states in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nursery = Nursery()

    async def start_controller(self) -> str:
        """Start the controller; return its address."""
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

    def start_sites(
        self, address: str, data: SiteData, slow: Mapping[str, float], threads: int, device: str
    ) -> None:
        """Start the learners and evaluators of the sites."""
        learners = [("learner", name, ["--slow", str(slow.get(name, 1))]) for name in data.learners]
        evaluators = [("evaluator", name, ["--split", split]) for name, split in data.evaluators.items()]
        for role, name, more in (*learners, *evaluators):
            arguments = [role, "start", "--controller", address, "--site", name, "--app", data.spec.app]
            arguments += ["--data", str(data.files[name]), "--state", str(self._folder / name)]
            arguments += ["--threads", str(threads), "--device", device]
            arguments += ["--drain", "0", "--keep-going", *more]
            log = self._log(f"{role}-{name}")
            self._nursery.start(f"{role} {name}", arguments, log, environment=ALONE)

    def has_ended(self, role: str, name: str) -> bool:
        """Whether a site's daemon has ended."""
        return self._nursery.processes[f"{role} {name}"].exitcode is not None

    async def watch(self) -> None:
        """Raise when the controller ends; print it when another process does."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[str] = asyncio.Queue()
        for name, process in self._nursery.processes.items():
            loop.add_reader(process.sentinel, _on_end, loop, process.sentinel, name, ended)
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

    async def end(self, at_once: asyncio.Event) -> None:
        """End every process in order, or `at_once` when that is asked for."""
        ending = asyncio.get_running_loop().run_in_executor(None, self._end_in_order)
        hurry = asyncio.create_task(at_once.wait())
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

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"


def _on_end(loop: asyncio.AbstractEventLoop, sentinel: int, name: str, ended: "asyncio.Queue[str]") -> None:
    loop.remove_reader(sentinel)
    ended.put_nowait(name)


def why_ended(code: int | None, log: Path) -> str:
    """Describe how a process ended: the signal that killed it, or its last message."""
    if code is not None and code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}; its log is {log}"
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1]
    return "it left no message"
