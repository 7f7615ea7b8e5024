"""Heart disease from 15 columns: logistic regression."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return one linear layer; with cross-entropy that is logistic regression."""
    return nn.Linear(15, 2)


app = App(model=build, task="classification", classes=2)
