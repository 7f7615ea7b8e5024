"""Partitions: pure functions of labels, keys and a seed to the rows of each site (methods/partitioning)."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from hansa.common.data.partition.dirichlet import Dirichlet
from hansa.common.data.partition.divide import ColorSkew, Imbalance
from hansa.common.data.partition.feddaf import OwnClass, Sorted
from hansa.common.data.partition.fedmmb import Iid, NonIidL
from hansa.common.data.partition.groups import Groups
from hansa.common.data.partition.metis import Metis
from hansa.common.data.partition.natural import Natural
from hansa.common.data.partition.sizes import sizes
from hansa.common.data.partition.table import Key, Parts, Scheme, Table
from hansa.common.job.check import located, problems
from hansa.common.values.errors import InvalidJob
from hansa.common.values.wording.words import suggestion

__all__ = ["KINDS", "Iid", "Key", "NonIidL", "Parts", "Scheme", "Table", "parse_partition", "part", "sizes"]

KINDS: dict[str, type[Scheme]] = {
    scheme.model_fields["kind"].default: scheme
    for scheme in (Iid, NonIidL, Metis, Dirichlet, OwnClass, Sorted, ColorSkew, Imbalance, Groups, Natural)
}
_IMPLIED = {
    "by": "natural",
    "features": "dirichlet",
    "sizes": "metis",
    "classes": "metis",
    "labels": "non-iid-l",
    "groups": "groups",
}


def parse_partition(given: Mapping[str, Any], where: tuple[str, ...] = ("data", "partition")) -> Scheme:
    """Turn a job's `data.partition` into a scheme or name what is wrong with it.

    Without a kind, the parameters imply it: `by` means natural, `sizes` and `classes` mean metis, none means
    iid.
    """
    implied = next((kind for word, kind in _IMPLIED.items() if word in given), "iid")
    words = {"kind": implied, **given}
    if not isinstance(words["kind"], str) or words["kind"] not in KINDS:
        hint = suggestion(str(words["kind"]), list(KINDS))
        raise InvalidJob(f"{'.'.join((*where, 'kind'))}: there is no {words['kind']!r}{hint}")
    try:
        return KINDS[words["kind"]].model_validate(words)
    except ValidationError as error:
        faults = problems(error, KINDS[words["kind"]], where)
        raise InvalidJob([located(fault, {}) for fault in faults]) from None


def part(scheme: Scheme, labels: np.ndarray, sites: int, seed: int) -> list[np.ndarray]:
    """Return each site's row numbers, sorted; every row that the scheme uses is at exactly one site."""
    return scheme.part(Table(labels), sites, seed).rows


def describe_kind(kind: str) -> str:
    """Return a scheme's summary, in one line."""
    return (inspect.getdoc(KINDS[kind]) or "").splitlines()[0]
