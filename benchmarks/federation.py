"""A federation of real processes on this machine, for the benchmarks: one controller, some learners, no evaluators."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from controller_process import ControllerProcess
from idle_app import NOTES

from hansa.common.job import JobSpec
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
            self._controller = ControllerProcess(self._folder, self._store, self._exit)
            self.address, self.pid = self._controller.address, self._controller.pid
            self._exit.callback(lambda: self._nursery.stop(list(self._nursery.processes)))
            for name in self._names:
                self._start_learner(name)
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._exit.close()

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

        try:
            return self._controller.run(job)
        except RuntimeError as error:
            paths = sorted(self._folder.glob("site-*.log"))
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in paths)
            raise RuntimeError(f"{error}\n{logs}") from None

    def status(self) -> StatusView:
        """Return how the controller is, as `hansa controller status --json` does."""
        return self._controller.status()

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
