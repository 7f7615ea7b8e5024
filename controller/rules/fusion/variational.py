"""FedDAF's variational autoencoder over the scores of contributions (feddaf §3, step 5); it imports torch.

Every contribution k is allocated to M shared components z̃_m by b_k, a logistic normal, and by c_k, switches
that break sticks λ from a Kumaraswamy distribution (an Indian buffet); a decoder reconstructs the scores from
z_k = Σ_m r_km z̃_m. Training starts from the solution of EM: from a random start it collapses, and every
contribution gets the same allocation.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from hansa.controller.rules.fusion.mixture import Mixture

STEPS, RATE, CLIP = 200, 0.02, 5.0
WIDTH = 16  # of the hidden layers
SHARPEST = 8.0  # largest initial scale of the encoder, however small EM's variance is
TEMPERATURE = 0.5  # of the relaxed switches
BELIEF = 0.1  # weight of the divergences from the priors
STICKS = 4.0  # the prior of λ is Beta(4, 1)
SPREAD = 16.0  # prior variance of the logits of b
EDGE = 1e-3  # uniform numbers stay this far from 0 and 1
EULER = 0.5772156649015329
DOUBLE = torch.float64


def stick_mean(zeta: Tensor, kappa: Tensor) -> Tensor:
    """Return the mean of Kumaraswamy(ζ, κ): κ·B(1 + 1/ζ, κ)."""
    return kappa * torch.exp(
        torch.lgamma(1 + 1 / zeta) + torch.lgamma(kappa) - torch.lgamma(1 + 1 / zeta + kappa)
    )


def stick_divergence(zeta: Tensor, kappa: Tensor, prior: float = STICKS) -> Tensor:
    """Return KL(Kumaraswamy(ζ, κ) ‖ Beta(prior, 1)), in closed form because the second parameter is 1."""
    slope = (zeta - prior) / zeta * (-EULER - torch.digamma(kappa) - 1 / kappa)
    return slope + torch.log(zeta * kappa / prior) - (kappa - 1) / kappa


def warm_up() -> None:
    """Make one small step: the first step of a process takes seconds, because torch imports more modules."""
    allocate(np.eye(2), Mixture(np.eye(2), 1.0, np.eye(2), 0.0), (0, 0), steps=1)


def allocate(scores: np.ndarray, start: Mixture, seed: tuple[int, int], steps: int = STEPS) -> np.ndarray:
    """Train from EM's solution and return the allocation K × M; `seed` has the job's and the fit's number."""
    with _one_thread():
        chance = torch.Generator().manual_seed(
            int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
        )
        points = torch.from_numpy(np.ascontiguousarray(scores)).to(DOUBLE)
        model = Autoencoder(start, chance)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        for _ in range(steps):
            optimizer.zero_grad()
            model.loss(points, chance).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        with torch.no_grad():
            return np.asarray(model.allocation(points).numpy())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: sums over several threads differ in their last bits between machines."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Autoencoder(nn.Module):
    """Encoder, shared components and decoder; all float64."""

    def __init__(self, start: Mixture, chance: torch.Generator) -> None:
        super().__init__()
        centres = torch.from_numpy(start.centres).to(DOUBLE)
        self.components, rank = centres.shape
        scale = min(1 / start.variance, SHARPEST)
        self.floor = 0.5 * float(np.log(start.variance))

        def hidden() -> nn.Parameter:
            return nn.Parameter(torch.randn(rank, WIDTH, generator=chance, dtype=DOUBLE) / rank**0.5)

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(*shape, dtype=DOUBLE))

        self.slope = nn.Parameter(scale * centres.T)
        self.offset = nn.Parameter(-scale / 2 * (centres**2).sum(dim=1))
        self.encoder, self.encoder_bias = hidden(), zeros(WIDTH)
        self.heads, self.heads_bias = zeros(WIDTH, 4 * self.components), zeros(4 * self.components)
        self.means = nn.Parameter(centres.clone())
        self.log_variances = nn.Parameter(torch.full_like(centres, -4.0))
        self.linear, self.shift = nn.Parameter(torch.eye(rank, dtype=DOUBLE)), zeros(rank)
        self.decoder, self.decoder_bias, self.residual = hidden(), zeros(WIDTH), zeros(WIDTH, rank)
        self.log_noise = nn.Parameter(torch.tensor(self.floor, dtype=DOUBLE))

    def encode(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ν, log ς², ζ and κ of every contribution and component."""
        inner = torch.tanh(points @ self.encoder + self.encoder_bias)
        logits, spread, zeta, kappa = (inner @ self.heads + self.heads_bias).chunk(4, dim=1)
        logits = logits + points @ self.slope + self.offset
        return logits, spread - 3, softplus(zeta + 4) + 0.1, softplus(kappa + 0.5413) + 0.1

    def loss(self, points: Tensor, chance: torch.Generator) -> Tensor:
        """Return the negative evidence bound of one sample, per contribution."""
        logits, spread, zeta, kappa = self.encode(points)
        b = torch.softmax(logits + torch.exp(spread / 2) * _normal(logits, chance), dim=1)
        sticks = (1 - _uniform(zeta, chance) ** (1 / kappa)) ** (1 / zeta)
        open_ = torch.cumprod(sticks, dim=1).clamp(1e-6, 1 - 1e-6)  # how likely each switch is on
        switches = torch.sigmoid((torch.logit(open_) + torch.logit(_uniform(open_, chance))) / TEMPERATURE)
        r = b * (switches + 1e-4)
        r = r / r.sum(dim=1, keepdim=True)
        drawn = self.means + torch.exp(self.log_variances / 2) * _normal(self.means, chance)
        log_noise = self.log_noise.clamp(min=self.floor)
        missed = (points - self.decode(r @ drawn)) ** 2
        fit = (missed / (2 * torch.exp(2 * log_noise)) + log_noise).sum()
        return (fit + BELIEF * self.divergence(logits, spread, zeta, kappa)) / len(points)

    def decode(self, z: Tensor) -> Tensor:
        """Return the scores of mixed components."""
        return z @ self.linear + self.shift + torch.tanh(z @ self.decoder + self.decoder_bias) @ self.residual

    def divergence(self, logits: Tensor, spread: Tensor, zeta: Tensor, kappa: Tensor) -> Tensor:
        """Return how far the posteriors are from the priors; shared components count once."""
        centred = logits - logits.mean(dim=1, keepdim=True)
        of_b = 0.5 * (centred**2 / SPREAD + torch.exp(spread) - spread - 1).sum()
        of_z = 0.5 * (torch.exp(self.log_variances) + self.means**2 - 1 - self.log_variances).sum()
        return of_b + stick_divergence(zeta, kappa).sum() + of_z

    def allocation(self, points: Tensor) -> Tensor:
        """Return r from means instead of samples."""
        logits, _, zeta, kappa = self.encode(points)
        r = torch.softmax(logits, dim=1) * torch.cumprod(stick_mean(zeta, kappa), dim=1)
        return r / r.sum(dim=1, keepdim=True)


def _normal(like: Tensor, chance: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=chance, dtype=DOUBLE)


def _uniform(like: Tensor, chance: torch.Generator) -> Tensor:
    return EDGE + (1 - 2 * EDGE) * torch.rand(like.shape, generator=chance, dtype=DOUBLE)
