"""Shows how long a controller with many ended jobs takes to start, with summaries and from events alone.

Every job has some events in an SQLite journal; no job is running. The cost of a start must not grow with
the events of ended jobs. The second figure is what the first start after a kill would cost if no summary had
been written: it reads all events and writes the summaries.
"""

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import machine as described_machine
from harness import print_table, save, verdict

from hansa.common.job.spec import JobSpec
from hansa.common.process.clock import SystemClock
from hansa.common.values.ids import JobId, SiteName
from hansa.common.values.results import UpdateFacts
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, SendTask, StartOrder
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merged
from hansa.controller.federation import Federation
from hansa.controller.rulebook.compose import compose
from hansa.controller.storage.journal import Entry, JobRecord, SqliteJournal
from hansa.controller.storage.stores.memory import MemoryStore

FACTS = UpdateFacts(n_train=10, n_used=10, steps=3, epochs=1, seconds=0.1, loss=0.5)
PROMISE = 0.1  # of the time that reading the events takes
STARTS = 5


def _entries(job: JobId, spec: JobSpec, submitted: float, updates: int) -> list[Entry]:
    """Let a job run to its end, and return what its journal holds."""
    machine, entries = Machine(job, spec, compose(spec), submitted), []
    machine.start()
    waiting = []

    def happen(event: ev.Event) -> list[Effect]:
        effects = machine.handle(event)
        receipt = machine.issued.model_dump_json() if machine.issued else ""
        entries.append(Entry(machine.state.sequence, event.model_dump_json(), receipt))
        waiting.extend(effect.task for effect in effects if isinstance(effect, SendTask))
        return effects

    happen(ev.ModelGiven(at=submitted, digest="given"))
    for number in range(spec.sites.min):
        happen(ev.SiteJoined(at=submitted, site=SiteName(f"site-{number}"), role="learner", examples=10))
    for number in range(updates):
        task, at = waiting.pop(0), submitted + number
        digest = f"{number:064x}"
        update = ev.UpdateArrived(at=at, task=task.id, site=task.site, facts=FACTS, digest=digest, tensors=2)
        (merge,) = (effect for effect in happen(update) if isinstance(effect, StartOrder))
        merged = Merged(digest=digest, bytes_up=5, bytes_down=7)
        happen(ev.OrderDone(at=at, order=merge.number, result=merged))
    assert machine.ended, machine.state.phase
    return entries


def _write_jobs(folder: Path, jobs: int, updates: int) -> int:
    """Fill a journal with ended jobs; return how many events one has."""
    journal, begun = SqliteJournal(folder / "journal.sqlite"), time.time() - 10_000_000
    pace = {"kind": "async", "updates": updates}
    spec = JobSpec.model_validate(
        {"app": "app.py:app", "rule": "async-fedavg", "pace": pace, "sites": {"min": 5}}
    )
    entries: list[Entry] = []
    for number in range(jobs):
        job = JobId(f"j{number:08x}")
        journal.create(JobRecord(job, spec.model_dump_json(), begun + 1000 * number))
        entries = _entries(job, spec, begun + 1000 * number, updates)
        journal.append(job, entries)
    journal.close()
    return len(entries)


async def _start(folder: Path) -> float:
    """Return how long a start takes until the jobs are listed."""
    journal = SqliteJournal(folder / "journal.sqlite")
    begun = time.perf_counter()
    async with Federation(MemoryStore(), journal, SystemClock()) as federation:
        assert all(view.status == "completed" for view in federation.jobs.views())
        seconds = time.perf_counter() - begun
        await federation.launcher.settled()  # ends are recorded, jobs are summed up
    journal.close()
    return seconds


def measure(jobs: int, updates: int) -> dict[str, Any]:
    """Start with and without summaries."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        events = _write_jobs(folder, jobs, updates)
        asyncio.run(_start(folder))
        summed_up = statistics.median(asyncio.run(_start(folder)) for _ in range(STARTS))
        with sqlite3.connect(folder / "journal.sqlite") as db:
            db.execute("delete from summaries")
        db.close()
        replayed = asyncio.run(_start(folder))
    return {
        "jobs": jobs,
        "events_per_job": events,
        "from_summaries_ms": round(1000 * summed_up, 1),
        "from_events_ms": round(1000 * replayed, 1),
        "ratio": round(summed_up / replayed, 3),
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--updates", type=int, default=40, help="of each job; an update is two events")
    parser.add_argument("--name", default="restart", help="the results' file name below results/")
    options = parser.parse_args()
    found = [measure(jobs, options.updates) for jobs in options.jobs]
    columns = ("ended jobs", "events of each", "start, ms", "from events, ms", "ratio")
    print_table(columns, [tuple(str(value) for value in case.values()) for case in found])
    print(f"start with summaries : from events, {found[-1]['jobs']} jobs = {found[-1]['ratio']}", end="; ")
    print(verdict(found[-1]["ratio"], PROMISE))
    each = (found[-1]["from_summaries_ms"] - found[0]["from_summaries_ms"]) / (
        found[-1]["jobs"] - found[0]["jobs"]
    )
    print(f"one more ended job: {each:.3f} ms")
    save(options.name, {"machine": described_machine(), "cases": found, "ms_per_ended_job": round(each, 3)})


if __name__ == "__main__":
    main()
