"""How many rows each site gets (partitioning §1, §2)."""

import re
from statistics import NormalDist

import numpy as np

from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import suggestion

LAWS = ("uniform", "skewed", "powerlaw")
# Of `skewed`. The paper gives no formula; with this one all sizes differ and the largest stands out.
SIGMA = 0.75
EXPONENT = 1.5  # of `powerlaw`
STEEPEST = 100


def sizes(shares: np.ndarray, total: int, least: int = 1) -> np.ndarray:
    """Round shares of a total to integers that add up: floors, then one more for the largest remainders.

    A site that would have fewer than `least` takes from the largest, if there is enough for all.
    """
    exact = shares / shares.sum() * total
    rounded: np.ndarray = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - rounded), kind="stable")
    rounded[order[: total - int(rounded.sum())]] += 1
    while rounded.min() < least and least * len(rounded) <= total:
        rounded[rounded.argmin()] += 1
        rounded[rounded.argmax()] -= 1
    return rounded


def parse_law(law: str) -> tuple[str, float]:
    """Parse `uniform`, `skewed` or `powerlaw(1.5)`."""
    match = re.fullmatch(r"([a-z]+)(?:\(\s*(\d+(?:\.\d*)?|\.\d+)\s*\))?", law.strip())
    name = match[1] if match else law
    if match is None or name not in LAWS:
        raise ValueError(f"there is no {law!r}{suggestion(name, LAWS)}; write for example powerlaw(1.5)")
    if name == "uniform" and match[2]:
        raise ValueError("uniform takes no number")
    number = float(match[2] or {"skewed": SIGMA}.get(name, EXPONENT))
    if number > STEEPEST:
        raise ValueError(f"{law}: the number must be at most {STEEPEST}; beyond it one site has everything")
    return name, number


def shares(law: str, sites: int) -> np.ndarray:
    """Return each site's share by a law, the largest first: Metis's size distributions."""
    name, number = parse_law(law)
    rank = np.arange(1, sites + 1)
    match name:
        case "uniform":
            return np.ones(sites)
        case "skewed":
            normal = NormalDist()
            return np.array(
                [np.exp(number * normal.inv_cdf((sites - t + 0.5) / sites)) for t in rank.tolist()]
            )
    return rank.astype(np.float64) ** -number


def enough(rows: int, sites: int) -> None:
    """Refuse more sites than rows."""
    if sites > rows:
        raise InvalidInput(f"{sites} sites cannot share {rows} examples")
