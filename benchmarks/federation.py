"""A federation of real processes on this machine, for the benchmarks: one controller, some learners, no evaluators."""

import asyncio
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from idle_app import NOTES

from hansa.common.job import JobSpec
from hansa.common.state import READY, read_note
from hansa.common.ui.client import Client
from hansa.common.ui.nursery import Nursery
from hansa.common.views import JobView, StatusView

APP = Path(__file__).with_name("idle_app.py")


class Federation:
    """Use it as a context manager: leaving stops every process and removes every file."""

    def __init__(self, app: str, sites: int, store: str) -> None:
        self._app = f"{APP}:{app}"
        self._store = store
        self._names = [f"site-{n}" for n in range(1, sites + 1)]
        self._nursery = Nursery()
        self._exit = ExitStack()
        self.address = ""

    def __enter__(self) -> "Federation":
        with self._exit:
            self._folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="hansa-bench-")))
            self._start_controller()
            self._exit.callback(lambda: self._nursery.stop(list(self._nursery.processes)))
            for name in self._names:
                self._start_learner(name)
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._exit.close()

    def _start_controller(self) -> None:
        state = self._folder / "controller"
        store = "memory:" if self._store == "memory" else f"disk:{state / 'store'}"
        arguments = ["controller", "start", "--listen", "127.0.0.1:0", "--state", str(state), "--store", store]
        read, write = os.pipe()
        log = self._exit.enter_context((self._folder / "controller.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "hansa", *arguments],
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(write,),
            env=os.environ | {READY: str(write)},
        )
        self._exit.callback(_end, process)
        os.close(write)
        with os.fdopen(read) as answers:
            answer = answers.readline()
        if not answer.startswith("ready "):
            raise RuntimeError((self._folder / "controller.log").read_text() or "the controller did not start")
        self.address = str(read_note(state, "controller")["address"])
        self.pid = process.pid

    def _start_learner(self, name: str) -> None:
        data = self._folder / name
        data.mkdir()
        arguments = ["learner", "start", "--controller", self.address, "--site", name, "--app", self._app]
        arguments += ["--data", str(data), "--state", str(data / "state"), "--threads", "1"]
        self._nursery.start(name, arguments, self._folder / f"{name}.log")

    def run(self, rounds: int) -> JobView:
        """Run one job to its end and return its last view, history included."""
        job = JobSpec.model_validate(
            {
                "name": "bench",
                "app": self._app,
                "rule": "fedavg",
                "pace": {"kind": "sync", "rounds": rounds},
                "validation": {"fraction": 0.0},
                "sites": {"min": len(self._names), "wait": 120},
            }
        )

        async def work() -> JobView:
            async with Client(self.address) as client:
                view = await client.submit(job)
                while not view.ended:  # seldom: watching would cost the controller time
                    await asyncio.sleep(0.5)
                    view = await client.show(view.job)
                return view

        view = asyncio.run(work())
        if view.status != "completed":
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._folder.glob("*.log")))
            raise RuntimeError(f"the job {view.status}: {view.reason}\n{logs}")
        return view

    def status(self) -> StatusView:
        """Return how the controller is, as `hansa controller status --json` does."""

        async def work() -> StatusView:
            async with Client(self.address) as client:
                return await client.status()

        return asyncio.run(work())

    def notes(self) -> dict[str, list[tuple[str, int, float]]]:
        """Return every site's notes: what happened, in which round, when."""
        found = {}
        for name in self._names:
            lines = [line.split() for line in (self._folder / name / NOTES).read_text().splitlines()]
            found[name] = [(what, int(number), float(moment)) for what, number, moment in lines]
        return found


def round_seconds(view: JobView, warm_up: int) -> list[float]:
    """Return the seconds of each round after the first ones: the distances between community models."""
    moments = [entry.seconds for entry in view.history]
    return [b - a for a, b in zip(moments[warm_up:], moments[warm_up + 1 :], strict=False)]


def _end(process: "subprocess.Popen[Any]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
