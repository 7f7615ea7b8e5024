"""Rounds of small clients on Flower's simulation engine, run in the peer's environment: SITES ROUNDS.

All sites take part in every round, with the network, the batch (all of a site's examples) and the learning
rate of our own job. Nothing is evaluated. The last line of the output is JSON: the moments at which the
server had each round's model.
"""

import json
import sys
import time

from flower_client import build, client
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

SITES, ROUNDS = map(int, sys.argv[1:3])

server = ServerApp()
moments: list[float] = []


@server.main()
def main(grid: Grid, _context: Context) -> None:
    """Run the rounds, noting when each model is ready."""

    def note(_round: int, _arrays: ArrayRecord) -> None:
        moments.append(time.monotonic())

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
    first = ArrayRecord(build().state_dict())
    result = strategy.start(grid=grid, initial_arrays=first, num_rounds=ROUNDS, evaluate_fn=note)
    trained = result.train_metrics_clientapp
    assert len(trained) == ROUNDS, f"only {len(trained)} of {ROUNDS} rounds have updates"


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # as many at once as there are cores
    run_simulation(server, client, num_supernodes=SITES, backend_config=resources)
    print(json.dumps(moments), flush=True)
