"""An app with something of everything: a frozen base, adapters, normalisation and a head."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from hansa import App, Examples


def _fix(network: nn.Module) -> None:
    """Give a network its first numbers without chance: sites in one process share the random generators."""
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            fixed = torch.linspace(-0.5, 0.5 + number / 100, parameter.numel())
            parameter.copy_((7 * fixed).sin().view_as(parameter))


class Net(nn.Module):
    """A frozen layer with frozen statistics, an adapter, batch normalisation and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 8)
        self.fixed = nn.BatchNorm1d(8)
        self.adapter = nn.Linear(8, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        _fix(self)
        for parameter in (*self.base.parameters(), *self.fixed.parameters()):
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = self.fixed(self.base(x)).tanh()
        out: torch.Tensor = self.head(self.norm(hidden + self.adapter(hidden)).tanh())
        return out


class Plain(nn.Module):
    """A frozen layer, an adapter and a head; nothing depends on a network's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter, self.head = nn.Linear(6, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)
        _fix(self)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = self.base(x).tanh()
        out: torch.Tensor = self.head(hidden + self.adapter(hidden))
        return out


def data(path: Path, split: str) -> Examples:
    """Return a site's examples, whose features have a scale of the site's own."""
    number = int(path.read_text())
    chance = np.random.default_rng(number)
    y = np.arange(24 + 8 * number) % 3
    x = (chance.normal(size=(len(y), 6)) + y[:, None]) * (1 + number)
    return Examples(x.astype(np.float32), y.astype(np.int64))


app = App(model=Net, classes=3, data=data)
plain = App(model=Plain, classes=3, data=data)
