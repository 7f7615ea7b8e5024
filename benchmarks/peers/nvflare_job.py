"""The idle federation in NVFLARE's simulator, run in the peer's environment: SITES PARAMETERS ROUNDS.

The last line of its output is JSON: for each round, the moment at which the first site had its task.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

SITES, PARAMETERS, ROUNDS = map(int, sys.argv[1:4])


def main() -> None:
    """Run the job and read the sites' notes."""
    with tempfile.TemporaryDirectory(prefix="hansa-peer-") as folder:
        notes = Path(folder) / "notes"
        notes.mkdir()
        first = Path(folder) / "first.npy"
        np.save(first, np.random.default_rng(1990).random(PARAMETERS, dtype=np.float32))
        recipe = NumpyFedAvgRecipe(
            name="idle",
            initial_ckpt=str(first),
            min_clients=SITES,
            num_rounds=ROUNDS,
            train_script=str(Path(__file__).with_name("nvflare_client.py")),
            train_args=f"--notes {notes}",
        )
        recipe.execute(
            SimEnv(num_clients=SITES, num_threads=SITES, workspace_root=str(Path(folder) / "work"))
        )
        seen: dict[int, list[float]] = {}
        for file in notes.iterdir():
            for line in file.read_text().splitlines():
                number, moment = line.split()
                seen.setdefault(int(number), []).append(float(moment))
    assert all(len(moments) == SITES for moments in seen.values()), "a site missed a round"
    print(json.dumps([min(seen[number]) for number in sorted(seen)]), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # the simulator leaves threads behind
