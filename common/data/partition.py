"""Partitions: which examples lie at which site. Pure functions of labels and a seed (algorithms/partitioning)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from hansa.common.errors import InvalidInput, InvalidJob
from hansa.common.job import located, problems
from hansa.common.tasks import Value
from hansa.common.words import suggestion


class Iid(Value):
    """Every site gets the same share of everything, at random."""

    kind: Literal["iid"] = "iid"


class NonIidL(Value):
    """Every site gets equal parts of `labels` different classes and nothing of the others (FedMMB, Non-IID-L)."""

    kind: Literal["non-iid-l"] = "non-iid-l"
    labels: int = Field(ge=1)


Partition = Annotated[Iid | NonIidL, Field(discriminator="kind")]
KINDS: dict[str, type[Iid | NonIidL]] = {"iid": Iid, "non-iid-l": NonIidL}


def parse_partition(given: Mapping[str, Any]) -> Partition:
    """Turn a job's `data.partition` into a partition or name what is wrong with it."""
    words = {"kind": "iid", **given}
    if not isinstance(words["kind"], str) or words["kind"] not in KINDS:
        hint = suggestion(str(words["kind"]), list(KINDS))
        raise InvalidJob(f"data.partition.kind: there is no {words['kind']!r}{hint}")
    try:
        return KINDS[words["kind"]].model_validate(words)
    except ValidationError as error:
        faults = problems(error, KINDS[words["kind"]], ("data", "partition"))
        raise InvalidJob([located(fault, {}) for fault in faults]) from None


def sizes(shares: np.ndarray, total: int, least: int = 1) -> np.ndarray:
    """Round shares of a total to integers that add up: floors first, then one more for the largest remainders.

    Whoever would have fewer than `least` takes from the largest, if there is enough for all.
    """
    exact = shares / shares.sum() * total
    found: np.ndarray = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - found), kind="stable")
    found[order[: total - int(found.sum())]] += 1
    while found.min() < least and least * len(found) <= total:
        found[found.argmin()] += 1
        found[found.argmax()] -= 1
    return found


def part(partition: Partition, labels: np.ndarray, sites: int, seed: int) -> list[np.ndarray]:
    """Return each site's row numbers, sorted; every row lies at exactly one site."""
    if sites > len(labels):
        raise InvalidInput(f"{sites} sites cannot share {len(labels)} examples")
    match partition:
        case Iid():
            order = np.random.default_rng(seed).permutation(len(labels))
            ends = np.cumsum(sizes(np.ones(sites), len(labels)))
            return [np.sort(rows) for rows in np.split(order, ends[:-1])]
        case NonIidL(labels=count):
            return _non_iid_l(labels, sites, count, seed)


def _non_iid_l(labels: np.ndarray, sites: int, count: int, seed: int) -> list[np.ndarray]:
    """Slot s = 0 … K·L-1 belongs to site s div L and holds label σ(s mod C); a label's slots share its rows evenly."""
    classes = np.unique(labels)
    if count > len(classes):
        raise InvalidInput(f"data.partition.labels: {count} labels for each site, but there are only {len(classes)}")
    if sites * count % len(classes):
        raise InvalidInput(
            f"data.partition: {sites} sites × {count} labels is no multiple of {len(classes)} classes;"
            " choose sites and labels so that it is"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(classes)
    slots = [order[s % len(classes)] for s in range(sites * count)]
    shares = sites * count // len(classes)
    pools = {}
    for label in classes:
        rows = rng.permutation(np.flatnonzero(labels == label))
        pools[label] = iter(np.split(rows, np.cumsum(sizes(np.ones(shares), len(rows)))[:-1]))
    found: list[list[np.ndarray]] = [[] for _ in range(sites)]
    for slot, label in enumerate(slots):
        found[slot // count].append(next(pools[label]))
    return [np.sort(np.concatenate(rows)) for rows in found]
