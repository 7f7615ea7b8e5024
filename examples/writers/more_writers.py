"""Run the federation with more and more writers and see how well it reads other people's digits.

python examples/writers/more_writers.py [WRITERS …] [--rounds 15]
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from hansa import HansaError
from hansa.trial import run_trial

HERE = Path(__file__).resolve().parent


def federate(writers: int, rounds: int, folder: Path) -> tuple[int, float]:
    """Run one federation; return how many images its writers have and the accuracy on images of others."""
    out = folder / f"{writers}-writers"
    report = run_trial(HERE / "job.yaml", out, {"data.sites": writers, "pace.rounds": rounds})
    record = json.loads((out / "data" / "partition.json").read_text())
    return record["measures"]["examples"], report["metrics"]["accuracy"]


def main() -> None:
    """Print one line for each number of writers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("writers", type=int, nargs="*", default=[1, 3, 10])
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    print("writers  images  accuracy on images of other writers")
    with tempfile.TemporaryDirectory() as folder:
        for writers in chosen.writers:
            images, accuracy = federate(writers, chosen.rounds, Path(folder))
            print(f"{writers:7}  {images:6}  {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except HansaError as error:
        sys.exit(str(error))
