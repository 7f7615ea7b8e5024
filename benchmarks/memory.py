"""Shows how much memory a controller takes for synchronous rounds with 4, 16 and 64 sites."""

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from controller_process import ControllerProcess, redis_server
from federation import round_seconds
from harness import end_in_order, machine, print_table, save, verdict
from light_sites import APP, LightSites

from hansa.common.job.spec import JobSpec

PROMISE = 1.15
PAUSE = 0.25  # seconds between looks at the controller's memory


def measure(store: str, sites: int, parameters: int, rounds: int, processes: int) -> dict[str, Any]:
    """Start a new controller and its sites, run one job and read the controller's memory from the kernel."""
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="hansa-bench-")))
        url = (
            leaving.enter_context(redis_server(folder / "redis", durable=False))
            if store == "redis"
            else store
        )
        controller = ControllerProcess(folder, url, leaving)
        idle = controller.memory()
        clients = leaving.enter_context(LightSites(controller.address, sites, parameters, processes))
        attended = controller.memory()
        samples: list[float] = []

        def watch() -> None:
            clients.check()
            samples.append(controller.memory()["now"])

        job = JobSpec.model_validate(
            {
                "name": "bench",
                "app": APP,
                "rule": "fedavg",
                "pace": {"kind": "sync", "rounds": rounds},
                "sites": {"min": sites, "wait": 120},
            }
        )
        view = controller.run(job, PAUSE, watch)
        after = controller.memory()
    return {
        "store": store,
        "sites": sites,
        "parameters": parameters,
        "rounds": rounds,
        "round_seconds": round(statistics.median(round_seconds(view, 0)), 3),
        "peak_mib": after["peak"],
        "idle_mib": idle["now"],
        "attended_mib": attended["now"],
        "running_mib": statistics.median(samples),
        "after_mib": after["now"],
        "after_anonymous_mib": after["anonymous"],
    }


def report(found: list[dict[str, Any]]) -> dict[str, float]:
    """Print the figures; return the ratio of the most to the fewest sites for each store."""
    print_table(
        ("store", "sites", "idle MiB", "all attend", "median", "peak", "after the job", "s per round"),
        [
            (
                case["store"],
                str(case["sites"]),
                *(
                    f"{case[name]:.0f}"
                    for name in ("idle_mib", "attended_mib", "running_mib", "peak_mib", "after_mib")
                ),
                f"{case['round_seconds']:.2f}",
            )
            for case in found
        ],
    )
    ratios = {}
    for store in dict.fromkeys(case["store"] for case in found):
        cases = sorted((case for case in found if case["store"] == store), key=lambda case: case["sites"])
        ratios[store] = round(cases[-1]["peak_mib"] / cases[0]["peak_mib"], 3)
        between = f"{cases[-1]['sites']} sites / {cases[0]['sites']} sites"
        print(f"{store}: peak at {between} = {ratios[store]:.3f}; {verdict(ratios[store], PROMISE)}")
    return ratios


def main() -> None:
    """Measure every store and size and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--stores", nargs="+", choices=("disk", "redis"), default=["disk", "redis"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=4, help="client processes that share the sites")
    parser.add_argument("--name", default="memory", help="the results' file name below results/")
    options = parser.parse_args()
    end_in_order()
    described = machine()
    sizes = (options.parameters, options.rounds, options.processes)
    found = [measure(store, sites, *sizes) for store in options.stores for sites in options.sites]
    ratios = report(found)
    save(options.name, {"machine": described, "promise": PROMISE, "ratios": ratios, "cases": found})


if __name__ == "__main__":
    main()
