"""What all virtual sites remember: in memory, and on the disk what exceeds it."""

from collections import OrderedDict
from pathlib import Path

from hansa.common.process.files import write_whole
from hansa.simulation.crew.blocks import received, sent
from hansa.simulation.storage.memory import SiteMemory


class Memories:
    """The memories of sites by their numbers. Those used longest ago go to a folder first."""

    def __init__(self, most: int = 1 << 62, folder: Path = Path()) -> None:
        """At most this many bytes stay in memory; without arguments, everything does."""
        self._most, self._folder = most, folder
        self._here: OrderedDict[int, tuple[SiteMemory, int]] = OrderedDict()  # with their bytes
        self._away: set[int] = set()
        self._bytes = 0

    def get(self, site: int) -> SiteMemory | None:
        """Return what a site remembers, if anything."""
        if site in self._here:
            self._here.move_to_end(site)
            return self._here[site][0]
        if site not in self._away:
            return None
        memory = received(self._path(site).read_bytes())
        assert isinstance(memory, SiteMemory)
        return memory

    def put(self, site: int, memory: SiteMemory) -> None:
        """Replace what a site remembers."""
        self._drop(site)
        size = memory.nbytes
        self._here[site] = memory, size
        self._bytes += size
        while self._bytes > self._most and self._here:
            oldest, (spilled, bytes_) = self._here.popitem(last=False)
            self._bytes -= bytes_
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(oldest), sent(spilled), 0o600, durable=False)
            self._away.add(oldest)

    def _drop(self, site: int) -> None:
        if site in self._here:
            self._bytes -= self._here.pop(site)[1]
        elif site in self._away:
            self._away.remove(site)
            self._path(site).unlink(missing_ok=True)

    def all(self) -> dict[int, SiteMemory]:
        """Return everything, to be saved."""
        known = {site: self.get(site) for site in (*self._away, *self._here)}
        return {site: memory for site, memory in known.items() if memory is not None}

    def restore(self, memories: dict[int, SiteMemory]) -> None:
        """Go on from what was saved."""
        for site, memory in memories.items():
            self.put(site, memory)

    def close(self) -> None:
        """Remove what is on the disk."""
        for site in self._away:
            self._path(site).unlink(missing_ok=True)

    def _path(self, site: int) -> Path:
        return self._folder / str(site)
