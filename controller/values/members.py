"""What counts in a community model: contributions with their weights, and how a merge changes them.

Where an aggregator remembers, every site's last contribution counts. A partial one replaces only the tensors
that it carries, so a site may have several members, each for tensors of its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

from hansa.common.values.ids import ModelKey, SiteName, TaskId


@dataclass(frozen=True)
class Member:
    """A contribution that counts: its model with its weight, for all tensors it carries or only for some."""

    site: SiteName
    task: TaskId
    model: ModelKey
    weight: float
    tensors: frozenset[str] | None = None  # None: all that the model carries
    slot: int = 0  # of a model that travelled from site to site; they count in this order


Standing = Mapping[SiteName, Sequence[Member]]  # what counts of each site


@dataclass(frozen=True)
class Change:
    """What a merge does to the sums. `members` is everything that is in them afterwards.

    `newest` are the members that counters come from: the merge's own, even when all others are added again
    beside them. `scope` names the tensors that the merge is about, if not all: a server update leaves the
    others and their moments alone.
    """

    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    members: Sequence[Member]
    newest: tuple[Member, ...]
    still: bool = False  # it does nothing, and the model and its moments stay as they are
    scope: frozenset[str] | None = None


def in_order(standing: Standing) -> tuple[Member, ...]:
    """Return everything that counts in the order in which it is merged: by slot, if there are any, and by site."""
    members = [member for site in sorted(standing) for member in standing[site]]
    return tuple(sorted(members, key=lambda member: member.slot))


def overlay(
    standing: Standing | None, added: Sequence[Member], names: Collection[str]
) -> tuple[dict[SiteName, list[Member]], list[Member]]:
    """Return what counts of the sites that have something new, once it counts, and what it replaces.

    `names` are all tensors of the model. Without anything that stands (None: the aggregator does not remember),
    nothing is replaced: a site that was the last to train several slots counts with all of them.
    """
    changed: dict[SiteName, list[Member]] = {}
    removed: list[Member] = []
    for member in added:
        before = changed.get(member.site, (standing or {}).get(member.site, ()))
        stays, goes = _replaced(before, member, names) if standing is not None else (before, [])
        changed[member.site] = [*stays, member]
        removed += goes
    return changed, removed


def _replaced(
    before: Sequence[Member], new: Member, names: Collection[str]
) -> tuple[list[Member], list[Member]]:
    """Return what stays of a site's members and what goes, tensor by tensor, when a new one comes."""
    if new.tensors is None:
        return [], list(before)
    stay, go = [], []
    for member in before:
        carried = frozenset(names) if member.tensors is None else member.tensors
        if left := carried - new.tensors:
            stay.append(replace(member, tensors=left))
        if taken := carried & new.tensors:
            go.append(replace(member, tensors=taken))
    return stay, go


class Membership(Sequence[Member]):
    """Everything that counts after a change, worked out only when it is read, as a rebuild of the sums does.

    `changed` says what counts of the sites that the change is about; of all others it is what stood before.
    """

    def __init__(self, standing: Standing, changed: Standing) -> None:
        self._standing, self._changed = standing, changed

    @cached_property
    def _members(self) -> tuple[Member, ...]:
        return in_order({**self._standing, **self._changed})

    @overload
    def __getitem__(self, at: int) -> Member: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Member, ...]: ...
    def __getitem__(self, at: int | slice) -> Member | tuple[Member, ...]:
        return self._members[at]

    def __len__(self) -> int:
        return len(self._members)
