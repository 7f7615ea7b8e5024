"""Shows how one controller serves 1000 connected learners: asynchronous commits of a tiny model.

First every site answers at once (saturated: the updates per second that the controller can take). Then sites
pretend to train for so long that they produce half of that; the latencies of this part are those of a
controller that keeps up.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from controller_process import ControllerProcess, redis_server
from harness import end_in_order, machine, print_table, save
from light_sites import APP, LightSites

from hansa.common.job.spec import JobSpec
from hansa.common.values.views import JobView


def _job(sites: int, updates: int) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "bench",
            "app": APP,
            "rule": "async-fedavg",
            "pace": {"kind": "async", "updates": updates},
            "sites": {"min": sites, "wait": 120},
        }
    )


def _rate(view: JobView, sites: int) -> float:
    """Return updates per second after the first wave, in which every site begins at once."""
    moments = [entry.seconds for entry in view.history][min(sites, len(view.history) // 3) :]
    return (len(moments) - 1) / (moments[-1] - moments[0])


def _cpu(pid: int) -> float:
    """Return the processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(store: str, sites: int, parameters: int, updates: int, processes: int) -> dict[str, Any]:
    """Run the saturated job and the one at half load with the same sites."""
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="hansa-bench-")))
        url = (
            leaving.enter_context(redis_server(folder / "redis", durable=True)) if store == "redis" else store
        )
        controller = ControllerProcess(folder, url, leaving)
        idle = controller.memory()
        started = time.monotonic()
        clients = leaving.enter_context(LightSites(controller.address, sites, parameters, processes))
        attended, gathering = controller.memory(), time.monotonic() - started
        loads = []
        rate = 0.0
        for name in ("saturated", "half load"):
            clients.think.value = 2 * sites / rate if rate else 0.0
            begun, burnt = time.monotonic(), _cpu(controller.pid)
            count = updates if name == "saturated" else max(updates // 3, 2)
            view = controller.run(_job(sites, count), 2.0, clients.check)
            seconds, burnt = time.monotonic() - begun, _cpu(controller.pid) - burnt
            waits = np.array(clients.waits())
            this = _rate(view, sites)
            rate = rate or this
            loads.append(
                {
                    "load": name,
                    "think_seconds": round(clients.think.value, 3),
                    "updates": count,
                    "updates_per_second": round(this, 1),
                    "latency_p50_ms": round(1000 * float(np.percentile(waits, 50)), 1),
                    "latency_p99_ms": round(1000 * float(np.percentile(waits, 99)), 1),
                    "latencies": len(waits),
                    "controller_cores": round(burnt / seconds, 2),
                    "controller_cpu_ms_per_update": round(1000 * burnt / count, 2),
                    "controller_mib": controller.memory(),
                }
            )
    return {
        "store": store,
        "sites": sites,
        "parameters": parameters,
        "client_processes": processes,
        "seconds_to_attend": round(gathering, 2),
        "idle_mib": idle["now"],
        "attended_mib": attended["now"],
        "loads": loads,
    }


def report(found: list[dict[str, Any]]) -> None:
    """Print the figures."""
    columns = (
        "store",
        "sites",
        "load",
        "updates/s",
        "p50 ms",
        "p99 ms",
        "cpu ms/update",
        "RSS MiB",
        "peak MiB",
    )
    rows = [
        (
            case["store"],
            str(case["sites"]),
            load["load"],
            f"{load['updates_per_second']:.0f}",
            f"{load['latency_p50_ms']:.0f}",
            f"{load['latency_p99_ms']:.0f}",
            f"{load['controller_cpu_ms_per_update']:.1f}",
            f"{load['controller_mib']['now']:.0f}",
            f"{load['controller_mib']['peak']:.0f}",
        )
        for case in found
        for load in case["loads"]
    ]
    print_table(columns, rows)
    for case in found:
        per_site = 1024 * (case["attended_mib"] - case["idle_mib"]) / case["sites"]
        print(
            f"{case['store']}: {case['sites']} sites attended after {case['seconds_to_attend']:.1f} s;"
            f" controller {case['idle_mib']:.0f} MiB alone, {case['attended_mib']:.0f} MiB with them"
            f" ({per_site:.0f} KiB per site)"
        )


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, nargs="+", default=[1000])
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument(
        "--updates", type=int, default=3000, help="updates of the saturated job; a third as many at half load"
    )
    parser.add_argument("--stores", nargs="+", choices=("memory", "disk", "redis"), default=["disk"])
    parser.add_argument("--processes", type=int, default=4, help="client processes that share the sites")
    parser.add_argument("--name", default="many_sites", help="the results' file name below results/")
    options = parser.parse_args()
    end_in_order()
    described = machine()
    sizes = (options.parameters, options.updates, options.processes)
    found = [measure(store, sites, *sizes) for store in options.stores for sites in options.sites]
    report(found)
    save(options.name, {"machine": described, "cases": found})


if __name__ == "__main__":
    main()
