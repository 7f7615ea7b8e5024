"""From K vectors to a few scores each, without local work and noise (feddaf §3, steps 0–2)."""

from dataclasses import dataclass

import numpy as np

MOST = 8  # directions that are kept
CLEAR = 0.15  # share of the first direction's lead over the noise that another must have to be kept
MARGIN = 1.1  # factor by which a direction must exceed what pure noise would give
FLAT = 1e-9  # a coordinate that varies less than this, relative to its mean, is left out


@dataclass(frozen=True)
class Spectrum:
    """How much the vectors differ in their main directions, and how much of that is more than noise."""

    statistics: int  # coordinates that differ between contributions
    edge: float  # eigenvalues up to here are noise
    top: float  # the largest eigenvalue
    scores: np.ndarray  # contributions × directions; no columns if there is nothing but noise

    @property
    def rank(self) -> int:
        """How many directions were kept."""
        return int(self.scores.shape[1])


def adjusted(vectors: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Remove the effect of the number of optimizer steps: regress every coordinate on its logarithm.

    Sites that train longer move further, and otherwise that would be the main difference. Means stay, so that
    the size of a coordinate is still known; where all sites made the same number of steps, nothing changes,
    bit for bit.
    """
    if (steps == steps[0]).all():
        return vectors
    work = np.log(np.maximum(steps.astype(np.float64), 1.0))
    work -= work.mean()
    spread = float(work @ work)
    return vectors - np.outer(work, (work @ vectors) / spread) if spread else vectors


def standardised(vectors: np.ndarray) -> np.ndarray:
    """Scale every coordinate to mean 0 and deviation 1 over contributions; drop those that hardly vary."""
    mean, deviation = vectors.mean(axis=0), vectors.std(axis=0)
    telling = deviation > FLAT * (1 + np.abs(mean))
    return np.asarray((vectors[:, telling] - mean[telling]) / deviation[telling])


def reduced(vectors: np.ndarray) -> Spectrum:
    """Project vectors onto the directions that exceed the noise edge, by their K × K Gram matrix."""
    standard = standardised(vectors)
    count, width = standard.shape
    if not width or count < 2:
        return Spectrum(width, 0.0, 0.0, np.zeros((count, 0)))
    values, directions = np.linalg.eigh(standard @ standard.T / width)
    values, directions = np.maximum(values[::-1], 0.0), directions[:, ::-1]
    # Standardised vectors add up to zero, so the last eigenvalue is 0. For pure noise the others lie between
    # (1 ± √(K/n))² times their mean (Marchenko and Pastur).
    edge = float(np.median(values[:-1]) * (1 + np.sqrt(count / width)) ** 2 * MARGIN)
    top = float(values[0])
    if top <= edge:
        return Spectrum(width, edge, top, np.zeros((count, 0)))
    rank = min(int((values - edge >= CLEAR * (top - edge)).sum()), MOST)
    scores = directions[:, :rank] * np.sqrt(values[:rank])
    heights = scores[np.abs(scores).argmax(axis=0), np.arange(rank)]
    scores = scores * np.where(heights < 0, -1.0, 1.0)  # an eigenvector's sign is arbitrary
    scores *= np.sqrt(rank / (scores**2).sum(axis=1).mean())
    return Spectrum(width, edge, top, scores)
