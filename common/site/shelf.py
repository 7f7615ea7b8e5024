"""The apps that a site's owner allows, with the site's data loaded for each."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from hansa.common.app import App, load_app
from hansa.common.data.lazy import AnyExamples
from hansa.common.rpc import codec
from hansa.common.site.rehearsal import rehearse
from hansa.common.site.source import Source, Stamp, source_of, stamp_of
from hansa.common.values.bounds import TEXT
from hansa.common.values.errors import HansaError, InvalidApp
from hansa.common.values.stated import short
from hansa.common.values.wording.words import plain
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)
LOOKED_AT = 10_000  # files of a data folder that are watched for changes
Seen = tuple[Stamp | None, ...]  # stamps of an app's source and data when they were loaded


@dataclass(frozen=True)
class Prepared:
    """An app that can be used here, the data it sees, and the source that was loaded."""

    app: App
    examples: AnyExamples
    source: Source
    seen: Seen
    changed: bool = False  # the source on disk differs by now


@dataclass(frozen=True)
class Unusable:
    """Why an app cannot be used."""

    error: str
    seen: Seen


class Shelf:
    """The allowed apps and their data. Those that cannot be loaded are tried again when their files change.

    Loaded apps stay as they are. All methods may be called from any thread, but by one at a time.
    """

    def __init__(self, refs: tuple[str, ...], data: Path, split: str, device: str = "cpu") -> None:
        self._data, self._split, self._device = data, split, device
        self._held: dict[str, Prepared | Unusable] = {}
        for ref in refs:
            if plain(ref, TEXT) != ref:  # it is sent to the controller unchanged
                raise InvalidApp(
                    f"app {ref[:100]!r}: use at most {TEXT} characters, none of which controls a terminal"
                )
            self._load(ref)  # the caller reports problems, and may give up because of them

    def load(self, ref: str) -> bool:
        """Load an app and its data again and rehearse them; return whether they can be used."""
        usable = self._load(ref)
        if not usable:
            log.error("%s", self.unusable())
        return usable

    def _load(self, ref: str) -> bool:
        seen = self._seen(ref)
        try:
            if ref in self._held:
                source_of(ref).forget()
            source = source_of(ref)  # before the import: an edit meanwhile must be noticed
            app = load_app(ref)
            # The location of an installed module is known only now.
            source = source if source.found else source_of(ref)
            self._require_own_modules(ref, source)
            examples = app.load(self._data, self._split)
            rehearse(app, examples, self._data, self._device)
        except HansaError as error:
            message = str(error).removeprefix(f"{ref}: ")  # `unusable` names the app
            self._held[ref] = Unusable(message, seen)
            return False
        self._held[ref] = Prepared(app, examples, source, seen)
        log.info(
            "app %s: %d examples from %s, source %s", ref, len(examples), self._data, short(source.digest)
        )
        return True

    def _require_own_modules(self, ref: str, source: Source) -> None:
        """Refuse an app that got another app's module: Python loads only one module of each name."""
        others = {
            each: held.source
            for each, held in self._held.items()
            if isinstance(held, Prepared) and each != ref
        }
        for name, file in source.mistaken():
            for other in (each for each, theirs in others.items() if file in theirs.stamps):
                raise InvalidApp(
                    f"it imports {name}, but another {name} is already loaded, {file} of app {other};"
                    " rename one of the two, or start a separate daemon for each app"
                )

    def get(self, ref: str) -> Prepared:
        """Return an app and its data or raise InvalidApp."""
        held = self._held.get(ref)
        if isinstance(held, Prepared):
            return held
        raise InvalidApp(_unusable(ref, held.error) if held else f"app {ref!r} is not allowed at this site")

    def training(self, ref: str) -> AnyExamples:
        """Return the site's training data; they are read again if the daemon works on other data."""
        prepared = self.get(ref)
        return prepared.examples if self._split == "train" else prepared.app.load(self._data, "train")

    @property
    def apps(self) -> list[App]:
        """The apps that can be used."""
        return [held.app for held in self._held.values() if isinstance(held, Prepared)]

    def unusable(self) -> str:
        """Return which apps cannot be used and why; "" if all can."""
        return "; ".join(
            _unusable(ref, held.error) for ref, held in self._held.items() if isinstance(held, Unusable)
        )

    def due(self) -> list[str]:
        """Return the apps that could not be used but may work now: their source or data have changed."""
        idle = [
            ref for ref, held in self._held.items() if isinstance(held, Unusable) or not len(held.examples)
        ]
        return [ref for ref in idle if self._seen(ref) != self._held[ref].seen]

    def look(self) -> bool:
        """Compare the sources on disk with the loaded ones; return whether any result has changed."""
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
        """Return the state of every app, as enrolment sends it."""
        return [self._state(ref, held) for ref, held in self._held.items()]

    def _state(self, ref: str, held: Prepared | Unusable) -> fleet.AppState:
        if isinstance(held, Unusable):
            return fleet.AppState(ref=ref, error=plain(held.error))
        return codec.app_to_wire(ref, len(held.examples), held.app.stated(held.source.digest, held.changed))

    def _seen(self, ref: str) -> Seen:
        """Return stamps that change when the app's source or the data are written."""
        return tuple(stamp_of(path) for path in (*source_of(ref).stamps, *_files(self._data)))


def _files(data: Path) -> Iterable[Path]:
    """Yield a data file, or a folder and its contents, up to a limit."""
    yield data
    if data.is_dir():
        yield from islice(data.rglob("*"), LOOKED_AT)


def _unusable(ref: str, why: str) -> str:
    return f"app {ref} cannot be used: {why}"
