"""Simulates a job in a process of its own and notes when each version was made: JOB OPTIONS, both as JSON.

The last line of its output is JSON: those moments, by the clock that all processes share, how many updates
each version has, the memory of this process and of its workers in MiB, and what was said about training.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import memory_of

from hansa.common.job.spec import JobSpec
from hansa.common.torch.threads import wait_without_spinning

EVERY = 1.0  # seconds between two looks at the memory: they take longer than a small round


def main() -> None:
    """Run the simulation."""
    job, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    wait_without_spinning()
    from hansa.simulation.options import Options
    from hansa.simulation.run import Simulation
    from hansa.simulation.sites.prepare import prepare

    moments: list[float] = []
    memory: dict[str, float] = {}
    weighed = 0.0  # when the memory was last looked at

    def changed() -> None:
        nonlocal weighed
        if simulation.machine.state.version >= len(moments):
            moments.append(time.monotonic())
            last = simulation.machine.state.version == simulation.machine.rule.rounds_asked
            if moments[-1] >= weighed + EVERY or last:
                _raise(memory)
                weighed = time.monotonic()

    with tempfile.TemporaryDirectory(prefix="hansa-bench-") as folder:
        place = Path(folder)
        prepared = prepare(JobSpec.model_validate(job), None, place)
        simulation = Simulation(prepared, place, Options(**options), changed)
        view = simulation.run()
        evaluated: dict[str, float] = {}  # all sites have evaluated the last version
        _raise(evaluated)
        if view.status != "completed":
            raise SystemExit(f"the job {view.status}: {view.reason}")
    updates = [len(entry.updates) for entry in view.history]
    found = {
        "moments": moments,
        "updates": updates,
        "memory": memory,
        "memory_at_end": evaluated,
        "remarks": simulation.driver.remarks,
    }
    print(json.dumps(found), flush=True)


def _raise(memory: dict[str, float]) -> None:
    """Note the largest memory so far: of this process, and of all its descendants together with it."""
    own = memory_of("self")
    children = [memory_of(pid) for pid in _descendants()]
    now: dict[str, Any] = {
        "anonymous": own["anonymous"],
        "with_workers": own["anonymous"] + sum(each["anonymous"] for each in children),
        "peak": own["peak"],
    }
    for name, value in now.items():
        memory[name] = round(max(memory.get(name, 0.0), value), 1)


def _descendants() -> list[int]:
    """Return the processes that this one has started, and theirs: workers belong to a fork server."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # gone meanwhile
    known: set[int] = {int(Path("/proc/self").resolve().name)}
    found: list[int] = []
    while more := [pid for pid, parent in parents.items() if parent in known and pid not in known]:
        known.update(more)
        found += more
    return found


if __name__ == "__main__":
    main()
