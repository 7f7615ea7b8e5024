"""Pictures of clothes, 28×28 pixels: a small LeNet with batch normalisation."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return two convolutions and two linear layers; FedDAF compares sites by the normalisation layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


app = App(model=build, task="classification", classes=10)
