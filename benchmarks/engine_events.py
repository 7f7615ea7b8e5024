"""Shows how fast a job's engine handles events of asynchronous commits, without network, store or journal.

Each update is two events (it arrived, it was merged). The cost of an event must not grow with the number of
sites.
"""

import argparse
import time
from typing import Any

from harness import machine as described_machine
from harness import print_table, save

from hansa.common.job.spec import JobSpec
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.results import UpdateFacts
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, SendTask, StartOrder
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merged
from hansa.controller.rulebook.compose import compose

FACTS = UpdateFacts(n_train=10, n_used=10, steps=3, epochs=1, seconds=0.1, loss=0.5)
MERGED = Merged(digest="v", bytes_up=5, bytes_down=7)


def _machine(sites: int, updates: int) -> tuple[Machine, list[tuple[TaskId, SiteName]]]:
    """Return a job in which every site has a task, and these tasks."""
    spec = JobSpec.model_validate(
        {
            "app": "app.py:app",
            "rule": "async-fedavg",
            "pace": {"kind": "async", "updates": updates},
            "sites": {"min": sites},
        }
    )
    machine = Machine(JobId("j1"), spec, compose(spec), 0.0)
    machine.start()
    machine.handle(ev.ModelGiven(at=0.0, digest="given"))
    effects: list[Effect] = []
    for number in range(sites):
        joined = ev.SiteJoined(at=0.0, site=SiteName(f"site-{number}"), role="learner", examples=10)
        effects = machine.handle(joined)
    return machine, [(effect.task.id, effect.task.site) for effect in effects if isinstance(effect, SendTask)]


def measure(sites: int, updates: int) -> dict[str, Any]:
    """Let sites answer in turn until the job is done; the first answer of each is not counted."""
    machine, waiting = _machine(sites, updates + sites)
    snapshots = 0.0
    begun = time.process_time()
    for number in range(updates + sites):
        if number == sites:
            begun, snapshots = time.process_time(), 0.0
        task, site = waiting.pop(0)
        update = ev.UpdateArrived(at=1.0, task=task, site=site, facts=FACTS, digest="d", tensors=2)
        (merge,) = (effect for effect in machine.handle(update) if isinstance(effect, StartOrder))
        merged = ev.OrderDone(at=1.0, order=merge.number, result=MERGED)
        waiting += [(e.task.id, e.task.site) for e in machine.handle(merged) if isinstance(e, SendTask)]
        if number % 250 == 249:
            before = time.process_time()
            machine.snapshot()
            snapshots += time.process_time() - before
    seconds = time.process_time() - begun - snapshots
    return {
        "sites": sites,
        "events_per_second": round(2 * updates / seconds),
        "microseconds_per_event": round(1e6 * seconds / (2 * updates), 1),
        "snapshot_ms_per_500_events": round(1000 * snapshots / (updates / 250), 1),
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--name", default="engine_events", help="the results' file name below results/")
    options = parser.parse_args()
    found = [measure(sites, options.updates) for sites in options.sites]
    columns = ("sites", "events/s", "µs/event", "snapshot ms per 500 events")
    print_table(columns, [tuple(str(value) for value in case.values()) for case in found])
    print(f"cost of an event, {found[-1]['sites']} sites : {found[0]['sites']} sites = ", end="")
    print(f"{found[-1]['microseconds_per_event'] / found[0]['microseconds_per_event']:.2f}")
    save(options.name, {"machine": described_machine(), "cases": found})


if __name__ == "__main__":
    main()
