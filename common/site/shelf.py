"""The apps that a site's owner allows, with the site's data loaded for each."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from hansa.common.app import App, load_app
from hansa.common.data.examples import Examples
from hansa.common.rpc import codec
from hansa.common.site.rehearsal import rehearse
from hansa.common.site.source import Source, Stamp, source_of, stamp_of
from hansa.common.values.bounds import TEXT
from hansa.common.values.errors import HansaError, InvalidApp
from hansa.common.values.stated import short
from hansa.common.values.words import plain
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)
LOOKED_AT = 10_000  # files of a data folder
Seen = tuple[Stamp | None, ...]  # what an app's source and the data looked like when they were loaded


@dataclass(frozen=True)
class Prepared:
    """An app that can be used here, the data it sees, and the source that was loaded."""

    app: App
    examples: Examples
    source: Source
    seen: Seen
    changed: bool = False  # the source on disk is another by now


@dataclass(frozen=True)
class Unusable:
    """Why an app cannot be used."""

    error: str
    seen: Seen


class Shelf:
    """Loads apps and data. What cannot be loaded stays on the list with the reason, and is tried again when it changes.

    What was loaded stays as it is. All methods may be called from any thread, by one at a time.
    """

    def __init__(self, refs: tuple[str, ...], data: Path, split: str, device: str = "cpu") -> None:
        self._data, self._split, self._device = data, split, device
        self._held: dict[str, Prepared | Unusable] = {}
        for ref in refs:
            if plain(ref, TEXT) != ref:  # it goes to the controller as it is
                raise InvalidApp(
                    f"app {ref[:100]!r}: use at most {TEXT} characters, none of which controls a terminal"
                )
            self._load(ref)  # what is wrong is told by the one who starts, who may give up because of it

    def load(self, ref: str) -> bool:
        """Load an app and its data again, and try them; return whether they can be used."""
        usable = self._load(ref)
        if not usable:
            log.error("%s", self.unusable())
        return usable

    def _load(self, ref: str) -> bool:
        seen = self._seen(ref)
        try:
            if ref in self._held:
                source_of(ref).forget()
            source = source_of(ref)  # before it is imported: an edit meanwhile must show
            app = load_app(ref)
            # The place of an installed module is known by now.
            source = source if source.found else source_of(ref)
            self._require_own_modules(ref, source)
            examples = app.load(self._data, self._split)
            rehearse(app, examples, self._data, self._device)
        except HansaError as error:
            said = str(error).removeprefix(f"{ref}: ")  # the app is named by the one who tells it
            self._held[ref] = Unusable(said, seen)
            return False
        self._held[ref] = Prepared(app, examples, source, seen)
        log.info(
            "app %s: %d examples from %s, source %s", ref, len(examples), self._data, short(source.digest)
        )
        return True

    def _require_own_modules(self, ref: str, source: Source) -> None:
        """Refuse an app that was given a module of another app's: Python has one of each name."""
        others = {
            each: held.source
            for each, held in self._held.items()
            if isinstance(held, Prepared) and each != ref
        }
        for name, file in source.mistaken():
            for other in (each for each, theirs in others.items() if file in theirs.stamps):
                raise InvalidApp(
                    f"it imports {name}, and another {name} is loaded, {file} of app {other}; give one of the two"
                    " another name, or let a daemon of its own have each app"
                )

    def get(self, ref: str) -> Prepared:
        """Return an app and its data or raise InvalidApp."""
        held = self._held.get(ref)
        if isinstance(held, Prepared):
            return held
        raise InvalidApp(_unusable(ref, held.error) if held else f"app {ref!r} is not allowed at this site")

    @property
    def apps(self) -> list[App]:
        """The apps that can be used."""
        return [held.app for held in self._held.values() if isinstance(held, Prepared)]

    def unusable(self) -> str:
        """Say which apps cannot be used and why; nothing if all can."""
        return "; ".join(
            _unusable(ref, held.error) for ref, held in self._held.items() if isinstance(held, Unusable)
        )

    def due(self) -> list[str]:
        """Return the apps that could not be used, and may be by now: their source or the data have changed."""
        idle = [
            ref for ref, held in self._held.items() if isinstance(held, Unusable) or not len(held.examples)
        ]
        return [ref for ref in idle if self._seen(ref) != self._held[ref].seen]

    def look(self) -> bool:
        """See whether sources on disk are still those that were loaded; return whether that has changed."""
        news = False
        for ref, held in list(self._held.items()):
            if not isinstance(held, Prepared):
                continue
            changed = not held.source.unchanged() and source_of(ref).digest != held.source.digest
            if changed != held.changed:
                news = True
                self._held[ref] = replace(held, changed=changed)
                if changed:
                    log.warning("app %s has changed on disk; the loaded version is used until a restart", ref)
                else:
                    log.info("app %s on disk is the loaded version again", ref)
        return news

    def states(self) -> list[fleet.AppState]:
        """Return what the controller is told at enrolment."""
        return [self._state(ref, held) for ref, held in self._held.items()]

    def _state(self, ref: str, held: Prepared | Unusable) -> fleet.AppState:
        if isinstance(held, Unusable):
            return fleet.AppState(ref=ref, error=plain(held.error))
        return codec.app_to_wire(ref, len(held.examples), held.app.stated(held.source.digest, held.changed))

    def _seen(self, ref: str) -> Seen:
        """Return what changes when the app's source or the data are written."""
        return tuple(stamp_of(path) for path in (*source_of(ref).stamps, *_files(self._data)))


def _files(data: Path) -> Iterable[Path]:
    """Yield a data file, or a folder and what is in it, as far as that is not too much to look at."""
    yield data
    if data.is_dir():
        yield from islice(data.rglob("*"), LOOKED_AT)


def _unusable(ref: str, why: str) -> str:
    return f"app {ref} cannot be used: {why}"
