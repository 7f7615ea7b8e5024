"""A job of 3,000 rounds with 100 sites: what its history costs a controller, and what readers get of it.

The engine is played without a network. Snapshots are taken as often as a controller takes them.
"""

import argparse
import gc
import time
import zlib
from pathlib import Path
from typing import Any

from harness import machine, print_table, save

from hansa.common.job.spec import JobSpec
from hansa.common.values.ids import JobId, SiteName
from hansa.common.values.results import Evaluation, UpdateFacts
from hansa.common.values.tasks import Evaluate, Task
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, SendTask, StartOrder
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merge, Merged
from hansa.controller.jobs.views import Surroundings, history_views, job_view
from hansa.controller.rulebook.compose import compose

CLASSES = 10


class Nobody:
    """No daemon is connected."""

    def find(self, site: str, role: str) -> None:
        """Return nothing."""


class Played:
    """A job whose sites answer at once."""

    def __init__(self, rounds: int, sites: int) -> None:
        document = {"app": "app.py:app", "pace": {"rounds": rounds}, "sites": {"min": sites}}
        spec = JobSpec.model_validate(document)
        self.machine = Machine(JobId("j1"), spec, compose(spec), 0.0)
        self.now = 0.0
        self.waiting: list[Effect] = self.machine.start()
        for role in ("evaluator", "learner"):
            for number in range(sites):
                name = SiteName(f"site-{number}")
                self._do(ev.SiteJoined(at=0.0, site=name, role=role, examples=100))  # type: ignore[arg-type]

    def _do(self, event: ev.Event) -> None:
        self.waiting += self.machine.handle(event)

    def step(self) -> bool:
        """Answer what is waiting; return whether the job goes on."""
        self.now += 1.0
        batch, self.waiting = self.waiting, []
        for effect in batch:
            match effect:
                case SendTask(task):
                    self._answer(task)
                case StartOrder(number, Merge() as order):
                    merged = Merged(digest=f"{order.version:064x}", bytes_up=1, bytes_down=1)
                    self._do(ev.OrderDone(at=self.now, order=number, result=merged))
        return not self.machine.ended

    def _answer(self, task: Task) -> None:
        place = {"at": self.now, "task": task.id, "site": task.site}
        chance = (zlib.crc32(task.id.encode()) % 1000) / 1000
        if isinstance(task.work, Evaluate):
            row = (17, *(3,) * (CLASSES - 1))
            matrix = tuple(row[-each:] + row[:-each] for each in range(CLASSES))
            report = Evaluation(n=sum(map(sum, matrix)), loss_sum=300 + chance, confusion=matrix)
            self._do(ev.Reported(**place, evaluation=report))
            return
        facts = UpdateFacts(
            n_train=100, n_used=100, steps=7, epochs=1, seconds=chance, loss=chance, metrics={"norm": chance}
        )
        self._do(ev.UpdateArrived(**place, facts=facts, digest=task.id, tensors=2))


def resident() -> float:
    """Return the memory of this process in MiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


def measured(rounds: int, sites: int) -> dict[str, Any]:
    """Play a job and return the figures."""
    before, began = resident(), time.perf_counter()
    played = Played(rounds, sites)
    machine, saving, state, chapter = played.machine, 0.0, 0, 0
    while played.step():
        if machine.unsaved >= max(500, 2 * sites):
            at = time.perf_counter()
            snapshot = machine.snapshot()
            saving += time.perf_counter() - at
            state = max(state, len(snapshot.state))
            chapter = max(chapter, *map(len, snapshot.chapters.values()))
    took, grown = time.perf_counter() - began, resident() - before
    around = Surroundings(Nobody(), played.now, 0, 0, "")
    listed, shown = job_view(machine, around, people=False), job_view(machine, around)
    sizes = dict.fromkeys((False, True), 0)
    reading = time.perf_counter()
    for detail in sizes:
        sizes[detail] = sum(len(view.model_dump_json()) for view in history_views(machine, detail=detail))
    return {
        "rounds": machine.state.version,
        "sites": sites,
        "memory_mib": round(grown, 1),
        "seconds": round(took, 1),
        "ms_per_round": round(1000 * took / rounds, 2),
        "saving_share": round(saving / took, 3),
        "largest_state_kib": state >> 10,
        "largest_chapter_kib": chapter >> 10,
        "list_bytes": len(listed.model_dump_json()),
        "show_kib": len(shown.model_dump_json()) >> 10,
        "history_brief_kib": sizes[False] >> 10,
        "history_detailed_mib": round(sizes[True] / (1 << 20), 1),
        "reading_seconds": round(time.perf_counter() - reading, 1),
    }


def main() -> None:
    """Play the job, and print what it costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--sites", type=int, default=100)
    options = parser.parse_args()
    result = measured(options.rounds, options.sites)
    print_table(("what", "figure"), [(name, str(value)) for name, value in result.items()])
    save("long_history", {"machine": machine(), "result": result})


if __name__ == "__main__":
    main()
