"""Rounds of small clients on Apple's pfl, run in the peer's environment: SITES COHORT EXAMPLES ROUNDS TRAIN.

The network, the batch (all of a site's examples) and the learning rate are those of our own job; TRAIN is 0
to train nothing. Nothing is evaluated after the first round. With `torch.distributed.run` each process has a
part of the cohort. The last line of the output is JSON: the moments at which each round's model was ready.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

SITES, COHORT, EXAMPLES, ROUNDS, TRAIN = map(int, sys.argv[1:6])
FEATURES, HIDDEN, CLASSES = 64, 128, 10


class Network(nn.Sequential):
    """The small perceptron, as pfl wants it."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        self.train()
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Return the loss."""
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(self(x), y))
        return {"loss": Weighted(loss * len(y), len(y))}


class Idle(FederatedAveraging):  # type: ignore[type-arg]
    """Federated averaging of models that nobody has trained."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        """Return a difference of zeros."""
        return model.get_model_difference(initial_model_state), Metrics()


class Notes(TrainingProcessCallback):
    """Notes when each round is over."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Note the moment."""
        self.moments.append(time.monotonic())
        return False, Metrics()


def main() -> None:
    """Run the rounds."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(1990)
    x = torch.from_numpy(rng.random((SITES * EXAMPLES, FEATURES), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, SITES * EXAMPLES))

    def data_of(user: int) -> Dataset:
        rows = slice(user * EXAMPLES, (user + 1) * EXAMPLES)
        return Dataset([x[rows], y[rows]])

    data = FederatedDataset(data_of, get_user_sampler("minimize_reuse", list(range(SITES))))
    torch.manual_seed(1990)
    network = Network(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, torch.optim.SGD, central)
    algorithm = FederatedAveraging() if TRAIN else Idle()
    notes = Notes()
    algorithm.run(
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS + 1,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=0.05, local_num_epochs=1, local_batch_size=None
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[notes],
        send_metrics_to_platform=False,
    )
    if get_ops().distributed.global_rank == 0:
        print(json.dumps(notes.moments), flush=True)


if __name__ == "__main__":
    main()
