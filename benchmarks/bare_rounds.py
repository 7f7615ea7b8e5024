"""Rounds of the CNN by hand, for comparison with a simulation: DATA SITES BATCH ROUNDS.

Every site takes the steps of an epoch from the same weights, and the mean of all weights is the next model;
there is nothing else. The last line of the output is JSON: the moments at which each round's model was ready.
"""

import json
import sys
import time

import numpy as np
import torch
from simulation_app import cnn
from torch import nn


def main() -> None:
    """Run the rounds."""
    sites, batch, rounds = map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    with np.load(sys.argv[1]) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    shards = list(zip(x.tensor_split(sites), y.tensor_split(sites), strict=True))
    network, criterion = cnn(), nn.CrossEntropyLoss()
    network.train()
    model = {name: each.detach().clone() for name, each in network.named_parameters()}
    moments = [time.monotonic()]
    for _ in range(rounds):
        sums = {name: torch.zeros_like(each) for name, each in model.items()}
        for images, labels in shards:
            network.load_state_dict(model)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
            for rows in torch.randperm(len(labels)).split(batch):
                optimizer.zero_grad()
                criterion(network(images[rows]), labels[rows]).backward()
                optimizer.step()
            for name, each in network.named_parameters():
                sums[name] += each.detach()
        model = {name: each / sites for name, each in sums.items()}
        moments.append(time.monotonic())
    print(json.dumps(moments), flush=True)


if __name__ == "__main__":
    main()
