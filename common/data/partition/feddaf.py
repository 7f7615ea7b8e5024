"""Shards: FedDAF's share η of a site's own class, and McMahan's sorted shards (partitioning §7)."""

from typing import Literal

import numpy as np
from pydantic import Field

from hansa.common.data.partition.dirichlet import nearest
from hansa.common.data.partition.sizes import enough, sizes
from hansa.common.data.partition.table import Parts, Scheme, Table
from hansa.common.data.partition.transport import rounded
from hansa.common.values.errors import InvalidInput


class OwnClass(Scheme):
    """Site k gets a share η of its shards from class k mod C, the others by random weights (FedDAF).

    The paper draws shards of other classes with probability N(0.5, 1), which is not a probability; here it is
    clipped to 0 … 1 and scaled to 1-η.
    """

    kind: Literal["feddaf"] = "feddaf"
    eta: float = Field(0.5, ge=0, le=1, description="share of the site's own class")
    shards: int = Field(200, ge=1, description="shards that each class is cut into")

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Cut every class into shards and deal every shard once."""
        enough(len(table), sites)
        classes = table.classes()
        width = len(classes.names)
        available = np.bincount(classes.codes, minlength=width)
        if available.min() < self.shards:
            name = classes.names[int(available.argmin())]
            raise InvalidInput(
                f"data.partition.shards: class {name} has {available.min()} examples, too few for"
                f" {self.shards} shards"
            )
        if sites > width * self.shards:
            raise InvalidInput(
                f"data.partition.shards: {sites} sites cannot share {width * self.shards} shards"
            )
        rng = np.random.default_rng(seed)
        rows, columns = sizes(np.ones(sites), width * self.shards), np.full(width, self.shards)
        goal = own_class_goal(self.eta, sites, width, rng) * rows[:, None]
        matrix = rounded(nearest(goal, rows, columns), rows, columns)
        chosen: list[list[np.ndarray]] = [[] for _ in range(sites)]
        for label in range(width):
            cut = sizes(np.ones(self.shards), int(available[label]))
            shards = np.split(rng.permutation(np.flatnonzero(classes.codes == label)), np.cumsum(cut)[:-1])
            order, start = rng.permutation(self.shards), 0
            for site, count in enumerate(matrix[:, label].tolist()):
                chosen[site] += [shards[at] for at in order[start : start + count]]
                start += count
        return Parts([np.sort(np.concatenate(mine)) for mine in chosen])


def own_class_goal(eta: float, sites: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return the share of its shards that each site should have from each class; every row adds up to one."""
    goal = np.clip(rng.normal(0.5, 1, (sites, classes)), 0, 1)
    own = np.arange(sites) % classes
    goal[np.arange(sites), own] = 0
    goal[~goal.any(axis=1)] = 1
    goal[np.arange(sites), own] = 0
    others = goal.sum(axis=1, keepdims=True)
    goal = goal / np.where(others > 0, others, 1) * (1 - eta)
    goal[np.arange(sites), own] = eta if classes > 1 else 1
    return goal


class Sorted(Scheme):
    """Sort by label, cut into shards, deal some to each site (McMahan et al., 2017)."""

    kind: Literal["mcmahan"] = "mcmahan"
    per_site: int = Field(2, ge=1, description="shards at each site")
    shards: int | None = Field(
        None, ge=1, description="in all (default: sites × per_site; the paper has 200)"
    )

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Deal every shard once."""
        enough(len(table), sites)
        total = self.shards or sites * self.per_site
        if total != sites * self.per_site:
            raise InvalidInput(
                f"data.partition.shards: {sites} sites with {self.per_site} shards each need"
                f" {sites * self.per_site} shards, not {total}"
            )
        enough(len(table), total)
        order = np.argsort(table.classes().codes, kind="stable")
        shards = np.split(order, np.cumsum(sizes(np.ones(total), len(order)))[:-1])
        dealt = np.random.default_rng(seed).permutation(total).reshape(sites, self.per_site)
        return Parts([np.sort(np.concatenate([shards[at] for at in mine])) for mine in dealt])
