"""A federation of real processes for the benchmarks: a controller, learners and, if asked for, evaluators."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from controller_process import ControllerProcess
from harness import memory_of
from idle_app import NOTES

from hansa.common.job.spec import JobSpec
from hansa.common.run.nursery import Nursery
from hansa.common.values.views import JobView, StatusView

APP = Path(__file__).with_name("idle_app.py")


class Federation:
    """Use it as a context manager: leaving stops every process and removes every file."""

    def __init__(
        self,
        app: str,
        sites: int,
        store: str,
        slow: Mapping[str, float] | None = None,
        evaluators: bool = False,
    ) -> None:
        """Take an attribute of the idle app, or a reference, as `app`; `slow` slows sites by factors."""
        self._app = app if ":" in app else f"{APP}:{app}"
        self._slow = slow or {}
        self._evaluators = evaluators
        self._store = store
        self._names = [f"site-{n}" for n in range(1, sites + 1)]
        self._nursery = Nursery()
        self._exit = ExitStack()
        self.address = ""

    def __enter__(self) -> "Federation":
        with self._exit:
            self._folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="hansa-bench-")))
            self._controller = ControllerProcess(self._folder, self._store, self._exit)
            self.address, self.pid = self._controller.address, self._controller.pid
            self._exit.callback(lambda: self._nursery.stop(list(self._nursery.processes)))
            for name in self._names:
                self._start("learner", name, "--slow", str(self._slow.get(name, 1)))
                if self._evaluators:
                    self._start("evaluator", name)
            self._exit = self._exit.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._exit.close()

    def _start(self, role: str, name: str, *more: str) -> None:
        data = self._folder / name
        data.mkdir(exist_ok=True)
        arguments = [role, "start", "--controller", self.address, "--site", name, "--app", self._app]
        arguments += ["--data", str(data), "--state", str(data / "state"), "--threads", "1", *more]
        self._nursery.start(f"{role} {name}", arguments, self._folder / f"{name}-{role}.log")

    def run(self, rounds: int) -> JobView:
        """Run one job of synchronous rounds to its end and return its last view, history included."""
        return self.run_job(
            rule="fedavg", pace={"kind": "sync", "rounds": rounds}, validation={"fraction": 0.0}
        )

    def run_job(self, **fields: Any) -> JobView:
        """Run one job with these fields to its end and return its last view, history included."""
        sites = {"min": len(self._names), "wait": 120}
        job = JobSpec.model_validate({"name": "bench", "app": self._app, "sites": sites, **fields})
        try:
            return self._controller.run(job)
        except RuntimeError as error:
            paths = sorted(self._folder.glob("site-*.log"))
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in paths)
            raise RuntimeError(f"{error}\n{logs}") from None

    def status(self) -> StatusView:
        """Return the controller's status, like `hansa controller status --json`."""
        return self._controller.status()

    def peaks(self) -> dict[str, float]:
        """Return the peak memory of the controller and of the largest site's process so far, in MiB."""
        pids = [process.pid for process in self._nursery.processes.values() if process.pid]
        sites = max(memory_of(pid)["peak"] for pid in pids)
        return {"controller": self._controller.memory()["peak"], "site": sites}

    def notes(self) -> dict[str, list[tuple[str, int, float]]]:
        """Return every site's notes: what happened, in which round, when."""
        found = {}
        for name in self._names:
            lines = [line.split() for line in (self._folder / name / NOTES).read_text().splitlines()]
            found[name] = [(what, int(number), float(moment)) for what, number, moment in lines]
        return found


def round_seconds(view: JobView, warm_up: int) -> list[float]:
    """Return the seconds of each round after the first ones: the intervals between community models."""
    moments = [entry.seconds for entry in view.history]
    return [b - a for a, b in zip(moments[warm_up:], moments[warm_up + 1 :], strict=False)]
