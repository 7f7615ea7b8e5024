"""The idle federation on Flower's simulation, run in the peer's environment: SITES PARAMETERS ROUNDS.

The last line of its output is JSON: the moments at which the server had each round's model.
"""

import json
import sys
import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

SITES, PARAMETERS, ROUNDS = map(int, sys.argv[1:4])
TENSORS = 8

client = ClientApp()
server = ServerApp()
moments: list[float] = []


@client.train()
def train(message: Message, context: Context) -> Message:
    """Change every parameter a little."""
    step = np.float32((context.node_id % 8 + 1) / 1024)
    arrays = [array + step for array in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, _context: Context) -> None:
    """Run the rounds, noting when each model is ready."""
    rng = np.random.default_rng(1990)
    sizes = [len(part) for part in np.array_split(np.empty(PARAMETERS, dtype=np.uint8), TENSORS)]
    first = ArrayRecord([rng.random(size, dtype=np.float32) for size in sizes])

    def note(_round: int, _arrays: ArrayRecord) -> None:
        moments.append(time.monotonic())

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
    strategy.start(grid=grid, initial_arrays=first, num_rounds=ROUNDS, evaluate_fn=note)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # as many at once as there are cores
    run_simulation(server, client, num_supernodes=SITES, backend_config=resources)
    print(json.dumps(moments), flush=True)
