"""A site of `flower_training.py`: the small perceptron takes one step on all examples.

A module of its own, which Ray's actors import: what they keep in memory would be lost after each task if the
app came to them as the code of a script.
"""

import functools

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

EXAMPLES = 18  # of a site, as in `simulation_cases.py`
FEATURES, HIDDEN, CLASSES = 64, 128, 10

client = ClientApp()


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
