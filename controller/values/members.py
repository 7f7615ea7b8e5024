"""The members of a community model: contributions with their weights, and how a merge changes them.

If an aggregator remembers, every site's last contribution counts. A partial contribution replaces only the
tensors that it carries, so a site may have several members, each for other tensors.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

from hansa.common.values.ids import ModelKey, SiteName, TaskId


@dataclass(frozen=True)
class Member:
    """A contribution that counts: its model and its weight, for all tensors it carries or only for some."""

    site: SiteName
    task: TaskId
    model: ModelKey
    weight: float
    tensors: frozenset[str] | None = None  # None for all tensors of the model
    slot: int = 0  # of a model that travelled from site to site; members are merged in this order
    base: ModelKey | None = None  # the model that its site started from, if the aggregator adds differences

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """The models that a merge reads for it."""
        return (self.model,) if self.base is None else (self.model, self.base)


Standing = Mapping[SiteName, Sequence[Member]]  # the members of each site


@dataclass(frozen=True)
class Change:
    """How a merge changes the sums. `members` are all members in them afterwards.

    `newest` are the members that counters come from: those of this merge, even when all others are added
    again. `scope` names the tensors that the merge is about, if not all of them: a server update leaves the
    other tensors and their moments alone.
    """

    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    members: Sequence[Member]
    newest: tuple[Member, ...]
    still: bool = False  # whether the merge does nothing: the model and its moments stay as they are
    scope: frozenset[str] | None = None


def in_order(standing: Standing) -> tuple[Member, ...]:
    """Return all members in the order in which they are merged: by slot, if there are any, and by site."""
    members = [member for site in sorted(standing) for member in standing[site]]
    return tuple(sorted(members, key=lambda member: member.slot))


def overlay(
    standing: Standing | None, added: Sequence[Member], names: Collection[str]
) -> tuple[dict[SiteName, list[Member]], list[Member]]:
    """Return the members of sites that have new ones, once these count, and the members that are replaced.

    `names` are all tensors of the model. If `standing` is None, because the aggregator does not remember,
    nothing is replaced: a site that was the last to train several slots counts with all of them.
    """
    changed: dict[SiteName, list[Member]] = {}
    removed: list[Member] = []
    for member in added:
        before = changed.get(member.site, (standing or {}).get(member.site, ()))
        kept, replaced = _replaced(before, member, names) if standing is not None else (before, [])
        changed[member.site] = [*kept, member]
        removed += replaced
    return changed, removed


def _replaced(
    before: Sequence[Member], new: Member, names: Collection[str]
) -> tuple[list[Member], list[Member]]:
    """Return the members of a site that a new one leaves and those that it replaces, tensor by tensor."""
    if new.tensors is None:
        return [], list(before)
    kept, replaced = [], []
    for member in before:
        carried = frozenset(names) if member.tensors is None else member.tensors
        if others := carried - new.tensors:
            kept.append(replace(member, tensors=others))
        if taken := carried & new.tensors:
            replaced.append(replace(member, tensors=taken))
    return kept, replaced


class Membership(Sequence[Member]):
    """All members after a change, computed only when they are read, for example to rebuild the sums.

    `changed` are the members of the sites that the change is about; other sites keep their members.
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
