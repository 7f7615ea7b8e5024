"""Two networks for the digits of 8 × 8 pixels: a perceptron, and convolutions with batch norm."""

from torch import nn

from hansa import App


def perceptron() -> nn.Module:
    """Return two layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutions() -> nn.Module:
    """Return two convolutions, each with a norm, and a layer."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )


mlp = App(model=perceptron, classes=10)
cnn = App(model=convolutions, classes=10)
