"""A roster: sorted site names with a fast membership test."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from hansa.common.values.ids import SiteName


class Roster(Sequence[SiteName]):
    """Sorted names without duplicates. Plugins only read it."""

    def __init__(self, names: Iterable[SiteName] = ()) -> None:
        self._members = set(names)
        self._names = sorted(self._members)

    def add(self, name: SiteName) -> None:
        """Add a name unless it is already present."""
        if name not in self._members:
            self._members.add(name)
            insort(self._names, name)

    def discard(self, name: SiteName) -> None:
        """Remove a name if it is present."""
        if name in self._members:
            self._members.discard(name)
            del self._names[bisect_left(self._names, name)]

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and self._names == other._names

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[SiteName]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> SiteName: ...
    @overload
    def __getitem__(self, at: slice) -> list[SiteName]: ...
    def __getitem__(self, at: int | slice) -> SiteName | list[SiteName]:
        return self._names[at]
