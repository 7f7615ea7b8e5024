"""A site of the idle federation on NVFLARE: changes every parameter a little, notes when it is asked."""

import argparse
import time
from pathlib import Path

import numpy as np
import nvflare.client as flare


def main() -> None:
    """Answer tasks until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=Path, required=True)
    options = parser.parse_args()
    flare.init()
    site = flare.get_site_name()
    step = np.float32(int(site.rpartition("-")[2]) / 1024)
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        with (options.notes / site).open("a") as notes:
            notes.write(f"{model.current_round} {time.monotonic()!r}\n")
        changed = {name: np.asarray(array) + step for name, array in model.params.items()}
        flare.send(
            flare.FLModel(params=changed, meta={"NUM_STEPS_CURRENT_ROUND": 10}, metrics={"accuracy": 0.0})
        )


if __name__ == "__main__":
    main()
