"""A small GPT that tells kinds of token sequences apart, with LoRA adapters (Hu et al., 2022) or without.

`large` has about 100 M parameters and `small` two layers; all but their adapters is frozen. The frozen
weights are random, but the same in every job, as those of a pretrained network are. `large_full` and
`small_full` have no adapters, and everything is trained.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hansa import App
from hansa.common.data.examples import Examples

RANK = 8
KINDS = 4  # of sequences; their names are the first words of the vocabulary
TOKENS = 16  # of a sequence
ROWS = 4  # sequences of a site
PRETRAINED = 1990  # the seed of the frozen weights


@dataclass(frozen=True)
class Size:
    """How large a network is."""

    layers: int
    width: int
    heads: int
    words: int


SMALL = Size(layers=2, width=128, heads=4, words=256)
LARGE = Size(layers=12, width=768, heads=12, words=16_384)


class LoraLinear(nn.Linear):
    """W + BA: the weight W is frozen, and only the factors A and B are trained."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_a = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.lora_b = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for a batch."""
        return super().forward(x) + functional.linear(functional.linear(x, self.lora_a), self.lora_b)


class Block(nn.Module):
    """Attention and two dense layers, each behind a normalisation and beside a short cut."""

    def __init__(self, size: Size, linear: type[nn.Linear]) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = linear(width, 3 * width), linear(width, width)
        self.rise, self.fall = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the states after this block."""
        rows, tokens, width = x.shape
        parts = self.attention(self.norm_1(x)).view(rows, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.fall(functional.gelu(self.rise(self.norm_2(x))))


class Gpt(nn.Module):
    """Reads a sequence and scores the words that name its kind."""

    def __init__(self, size: Size, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Embedding(TOKENS, size.width)
        self.blocks = nn.Sequential(*(Block(size, linear) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of each kind for a batch."""
        states = self.words(x) + self.places.weight[: x.shape[1]]
        last = self.norm(self.blocks(states))[:, -1]
        return functional.linear(last, self.words.weight[:KINDS])


def _adapted(size: Size) -> nn.Module:
    network, generator = Gpt(size, LoraLinear), torch.Generator().manual_seed(PRETRAINED)
    for name, parameter in network.named_parameters():
        if ".lora_" not in name:
            parameter.requires_grad_(False)
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.02, generator=generator)
    return network


def _full(size: Size) -> nn.Module:
    return Gpt(size, nn.Linear)


def _load(size: Size, path: Path, _split: str) -> Examples:
    """Draw the sequences of a site by its number."""
    rng = np.random.default_rng(int(path.name.rpartition("-")[2]))
    x = rng.integers(0, size.words, (ROWS, TOKENS))
    return Examples(x, x[:, -1] % KINDS)


def _app(model: functools.partial[nn.Module], size: Size) -> App:
    return App(model=model, classes=KINDS, data=functools.partial(_load, size))


small, large = (_app(functools.partial(_adapted, size), size) for size in (SMALL, LARGE))
small_full, large_full = (_app(functools.partial(_full, size), size) for size in (SMALL, LARGE))
