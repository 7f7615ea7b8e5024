"""Opens a controller's store and journal together, as the command line names them."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hansa.common.process.state import check_format
from hansa.common.values.errors import InvalidInput, NotFound
from hansa.controller.storage.journal import Journal, RedisJournal, SqliteJournal
from hansa.controller.storage.redis.space import SCHEMES, RedisSpace, is_redis
from hansa.controller.storage.stores.base import Store
from hansa.controller.storage.stores.disk import DiskStore
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.storage.stores.redis import RedisStore

JOURNAL = "journal.sqlite"  # in the state directory


@dataclass(frozen=True)
class Backends:
    """Where models and events are stored. `renew` keeps a lease alive, if there is one."""

    store: Store
    journal: Journal
    renew: Callable[[], None] | None = None


@contextmanager
def opened(url: str, state: Path, lease: bool = True) -> Iterator[Backends]:
    """Open `memory:` or `disk:PATH` (journal in the state directory), or a Redis URL (journal in Redis)."""
    if is_redis(url):
        space = RedisSpace(url)
        try:
            if lease:
                space.check_format(mark=False)  # first: a takeover must not change another Hansa's space
                space.acquire()
                space.warn_of_settings()
            space.check_format(mark=lease)
            with closing(RedisStore(space)) as models:
                yield Backends(models, RedisJournal(space), space.acquire)
        finally:
            space.close()
        return
    if not lease:  # a controller checks the format when it takes its lock
        check_format(state, mark=False)
    with closing(_local_store(url)) as store:
        if lease:
            store.acquire()
        with closing(SqliteJournal(state / JOURNAL)) as journal:
            yield Backends(store, journal)


@contextmanager
def recorded(url: str, state: Path) -> Iterator[Backends]:
    """Open what a controller has recorded, to read it beside the controller or without one."""
    if not is_redis(url) and not (state / JOURNAL).exists():
        raise NotFound(f"--state {state}: there is no journal")
    with opened(url, state, lease=False) as backends:
        yield backends


def _local_store(url: str) -> Store:
    kind, colon, place = url.partition(":")
    if kind == "memory" and colon and not place:
        return MemoryStore()
    if kind == "disk" and place:
        return DiskStore(Path(place).expanduser())
    known = ", ".join(f"{scheme}://…" for scheme in SCHEMES)
    raise InvalidInput(f"{url!r} is not a store: write memory:, disk:PATH or a Redis URL ({known})")
