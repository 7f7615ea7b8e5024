"""What the benchmarks share: tables on the screen, results as JSON, a description of the machine."""

import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Describe the machine that figures come from."""
    names = [
        line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    ]
    return {
        "cores": os.cpu_count(),
        "cpu": names[0] if names else platform.processor(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("grpcio", "numpy", "torch")},
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def memory_of(pid: int | str) -> dict[str, float]:
    """Return the memory of a process in MiB, as the kernel reports it: peak and current; 0 if it is over."""
    fields = dict(line.split(":", 1) for line in _lines(f"/proc/{pid}/status"))
    names = {"peak": "VmHWM", "now": "VmRSS", "anonymous": "RssAnon"}
    return {name: round(int(fields.get(field, "0").split()[0]) / 1024, 1) for name, field in names.items()}


def end_in_order() -> None:
    """Let SIGTERM unwind this process as Ctrl-C does, so that context managers end what they started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def save(name: str, document: dict[str, Any]) -> None:
    """Write a benchmark's results to its file in results/, and print the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    stamped = {"benchmark": name, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **document}
    path.write_text(json.dumps(stamped, indent=2) + "\n")
    print(f"written to {path}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def verdict(value: float, promise: float) -> str:
    """Say whether a figure keeps its promise."""
    return f"promised ≤ {promise:g}: {'kept' if value <= promise else 'NOT KEPT'}"


def end_process(process: BaseProcess) -> None:
    """End a child process, by force if necessary."""
    process.terminate()
    process.join(5)
    if process.exitcode is None:
        process.kill()
        process.join()
