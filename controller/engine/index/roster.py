"""A roster: names in order, with a quick answer to who is among them."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from hansa.common.values.ids import SiteName


class Roster(Sequence[SiteName]):
    """Sorted names without repetition. Plugins only read it."""

    def __init__(self, names: Iterable[SiteName] = ()) -> None:
        self._held = set(names)
        self._names = sorted(self._held)

    def add(self, name: SiteName) -> None:
        """Enter a name, unless it is there."""
        if name not in self._held:
            self._held.add(name)
            insort(self._names, name)

    def discard(self, name: SiteName) -> None:
        """Strike a name, if it is there."""
        if name in self._held:
            self._held.discard(name)
            del self._names[bisect_left(self._names, name)]

    def __contains__(self, name: object) -> bool:
        return name in self._held

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
