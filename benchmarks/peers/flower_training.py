"""Rounds of small clients on Flower's simulation engine, in an environment of its own: SITES EXAMPLES ROUNDS.

All sites take part in every round, with the network, the batch (all of a site's examples) and the learning
rate of our own job. Nothing is evaluated. The last line of the output is JSON: the moments at which the
server had each round's model.
"""

import functools
import json
import sys
import time

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

SITES, EXAMPLES, ROUNDS = map(int, sys.argv[1:4])
FEATURES, HIDDEN, CLASSES = 64, 128, 10

client = ClientApp()
server = ServerApp()
moments: list[float] = []


def build() -> nn.Module:
    """Return the small perceptron."""
    torch.manual_seed(1990)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


@functools.cache
def network() -> nn.Module:
    """Return the network of this process, which is built once."""
    torch.set_num_threads(1)
    return build()


@functools.cache
def data_of(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the data of a site, which are made once in each process."""
    rng = np.random.default_rng(site)
    x = torch.from_numpy(rng.random((EXAMPLES, FEATURES), dtype=np.float32))
    return x, torch.from_numpy(rng.integers(0, CLASSES, EXAMPLES))


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take one step."""
    module = network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data_of(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    module.train()
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    optimizer.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, _context: Context) -> None:
    """Run the rounds, noting when each model is ready."""

    def note(_round: int, _arrays: ArrayRecord) -> None:
        moments.append(time.monotonic())

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
    first = ArrayRecord(build().state_dict())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=ROUNDS, evaluate_fn=note)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # as many at once as there are cores
    run_simulation(server, client, num_supernodes=SITES, backend_config=resources)
    print(json.dumps(moments), flush=True)
