"""Algorithm 3 of RADFed: a random walk among matrices with the same sums (partitioning §4).

A move takes ε from two corners of a rectangle and gives it to the other two: row and column sums stay, and
nothing becomes negative. The step ξ is relative to the cells that it takes from: in examples it would change
nothing, and as a share of all examples it would destroy the design.
"""

import numpy as np
from pydantic import Field, field_validator

from hansa.common.values.bounds import Value


class Moves(Value):
    """The length of the walk: `burn_in` moves away from the optimum, then `search` for the best state."""

    burn_in: int = Field(100_000, ge=0, le=10_000_000, description="P")
    search: int = Field(500_000, ge=0, le=10_000_000, description="Q")
    step: float = Field(0.002, gt=0, le=1, description="ξ, relative to the cells")
    stop_band: tuple[float, float] | None = Field(
        None,
        description="end the burn-in when the deviation, relative to the optimum, is within [1.1, 1.2], say",
    )

    @field_validator("stop_band")
    @classmethod
    def _band_can_be_entered(cls, given: tuple[float, float] | None) -> tuple[float, float] | None:
        if given and not 1 <= given[0] < given[1]:
            raise ValueError(f"{list(given)}: write two numbers of 1 or more, the smaller one first")
        return given


def wander(start: np.ndarray, goal: np.ndarray, moves: Moves, rng: np.random.Generator) -> np.ndarray:
    """Walk from a solution of problem (1); return the best state of the search, or the burn-in's last."""
    height, width = start.shape
    total = moves.burn_in + moves.search
    if height < 2 or width < 2 or not total:
        return start
    corners = rectangles(height, width, total, rng)
    steps, losses = walk(start, goal, corners, (rng.random(total) * moves.step).tolist())
    first = moves.burn_in
    if moves.stop_band:
        first = _entry(losses[: first + 1], moves.stop_band)
    best = first + int(np.argmin(losses[first : first + moves.search + 1]))
    state = start.astype(np.float64).ravel()
    for sign, places in zip((-1, -1, 1, 1), corners, strict=True):
        np.add.at(state, places[:best], sign * steps[:best])
    # The additions are in another order than in the walk, which only changes the rounding.
    return np.maximum(state, 0).reshape(start.shape)


def _entry(losses: np.ndarray, band: tuple[float, float]) -> int:
    """Return the first move after which the deviation's norm is within the band around the optimum's."""
    norms = np.sqrt(np.maximum(losses, 0) / max(float(losses[0]), 1e-300))
    inside = np.flatnonzero((norms >= band[0]) & (norms <= band[1]))
    return int(inside[0]) if len(inside) else len(losses) - 1


def rectangles(height: int, width: int, total: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw rectangles as flat indices: (i, j) and (i', j') lose, (i, j') and (i', j) gain."""
    i, j = rng.integers(0, height, total), rng.integers(0, width, total)
    other_i = (i + rng.integers(1, height, total)) % height
    other_j = (j + rng.integers(1, width, total)) % width
    return i * width + j, other_i * width + other_j, i * width + other_j, other_i * width + j


def walk(
    start: np.ndarray, goal: np.ndarray, corners: tuple[np.ndarray, ...], scales: list[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return ε of every move and the loss after 0, 1, 2 … moves.

    A move takes a microsecond as plain arithmetic on lists; as a numpy call it would take a hundred.
    """
    held, wish = start.astype(np.float64).ravel().tolist(), goal.ravel().tolist()
    loss = float(((start - goal) ** 2).sum())
    steps, losses = [0.0] * len(scales), [loss] * (len(scales) + 1)
    a, b, c, d = (places.tolist() for places in corners)
    for move, (p, q, r, s, scale) in enumerate(zip(a, b, c, d, scales, strict=True)):
        ap, aq, ar, as_ = held[p], held[q], held[r], held[s]
        step = scale * (ap if ap < aq else aq)  # noqa: FURB136 - min() would take twice as long
        loss += (
            2 * step * ((ar - wish[r]) + (as_ - wish[s]) - (ap - wish[p]) - (aq - wish[q])) + 4 * step * step
        )
        held[p], held[q], held[r], held[s] = ap - step, aq - step, ar + step, as_ + step
        steps[move] = step
        losses[move + 1] = loss
    return np.array(steps), np.array(losses)


def wander_marginals(
    start: np.ndarray, goal: np.ndarray, marginals: np.ndarray, moves: Moves, rng: np.random.Generator
) -> np.ndarray:
    """Walk from a solution of problem (2), many moves at a time."""
    if len(start) < 2 or start.shape[1] < 2 or not moves.burn_in + moves.search:
        return start
    walk = MarginalWalk(start, goal, marginals)
    done, optimum = 0, max(walk.loss, 1e-300)
    while done < moves.burn_in:
        done += walk.stride(moves.step, moves.burn_in - done, rng)
        if (
            moves.stop_band
            and moves.stop_band[0] <= np.sqrt(max(walk.loss, 0) / optimum) <= moves.stop_band[1]
        ):
            break
    best, least, done = walk.held.copy(), walk.loss, 0
    while done < moves.search:
        done += walk.stride(moves.step, moves.search - done, rng)
        if walk.losses.min() < least:
            least = float(walk.losses.min())
            best = walk.after(int(walk.losses.argmin()) + 1)
    return np.maximum(best, 0)


class MarginalWalk:
    """A state of the walk of problem (2).

    Sites are paired at random. Moves of different pairs touch different rows, so doing them at once is the
    same as doing them one after the other.
    """

    def __init__(self, start: np.ndarray, goal: np.ndarray, marginals: np.ndarray) -> None:
        self.held = start.astype(np.float64).copy()
        self.loss = float(((start @ marginals - goal) ** 2).sum())
        self.losses = np.zeros(0)  # after each move of the last stride
        self._residual = start @ marginals - goal
        self._marginals = marginals
        self._last: tuple[np.ndarray, ...] = ()

    def stride(self, scale: float, most: int, rng: np.random.Generator) -> int:
        """Make one move with each pair of sites, `most` in all; return how many."""
        height, width = self.held.shape
        pairs = min(height // 2, most)
        order = rng.permutation(height)
        i, other_i = order[:pairs], order[height // 2 : height // 2 + pairs]
        j = rng.integers(0, width, pairs)
        other_j = (j + rng.integers(1, width, pairs)) % width
        step = rng.random(pairs) * scale * np.minimum(self.held[i, j], self.held[other_i, other_j])
        shift = self._marginals[other_j] - self._marginals[j]
        apart = self._residual[i] - self._residual[other_i]
        change = 2 * step * (apart * shift).sum(axis=1) + 2 * step**2 * (shift**2).sum(axis=1)
        self.losses = self.loss + np.cumsum(change)
        self.loss = float(self.losses[-1])
        self._residual[i] += step[:, None] * shift
        self._residual[other_i] -= step[:, None] * shift
        self._last = (i, other_i, j, other_j, step)
        _shift(self.held, *self._last)
        return len(step)

    def after(self, count: int) -> np.ndarray:
        """Return the state after the first moves of the last stride."""
        i, other_i, j, other_j, step = (part[count:] for part in self._last)
        state = self.held.copy()
        _shift(state, i, other_i, j, other_j, -step)
        return state


def _shift(
    held: np.ndarray, i: np.ndarray, other_i: np.ndarray, j: np.ndarray, other_j: np.ndarray, step: np.ndarray
) -> None:
    held[i, j] -= step
    held[other_i, other_j] -= step
    held[i, other_j] += step
    held[other_i, j] += step
