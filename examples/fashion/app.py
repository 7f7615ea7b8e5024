"""Pictures of clothes, 28×28 pixels: a convolutional network with two convolutions."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return two convolutions, each followed by pooling, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def build_normed() -> nn.Module:
    """Return the same network with a batch normalisation after each convolution, for FedBN."""
    plain = list(build())
    plain.insert(4, nn.BatchNorm2d(32))
    plain.insert(1, nn.BatchNorm2d(16))
    return nn.Sequential(*plain)


app = App(model=build, task="classification", classes=10)
normed = App(model=build_normed, task="classification", classes=10)
