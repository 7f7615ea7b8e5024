"""The apps that a site's owner allows, with the site's data loaded for each."""

import logging
from dataclasses import dataclass
from pathlib import Path

from hansa.common.app import App, Examples, load_app
from hansa.common.errors import HansaError, InvalidApp
from hansa.common.tasks import TEXT
from hansa.common.words import plain
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """An app that can be used here, and the data it sees."""

    app: App
    examples: Examples


class Shelf:
    """Loads apps and data once. What cannot be loaded stays on the list with the reason, for operators to see."""

    def __init__(self, refs: tuple[str, ...], data: Path, split: str) -> None:
        self._prepared: dict[str, Prepared] = {}
        self._errors: dict[str, str] = {}
        for ref in refs:
            if plain(ref, TEXT) != ref:  # it goes to the controller as it is
                raise InvalidApp(f"app {ref[:100]!r}: use at most {TEXT} characters, none of which controls a terminal")
            try:
                app = load_app(ref)
                self._prepared[ref] = Prepared(app, app.load(data, split))
                log.info("app %s: %d examples from %s", ref, len(self._prepared[ref].examples), data)
            except HansaError as error:
                self._errors[ref] = str(error).removeprefix(f"{ref}: ")  # whoever tells it names the app
                log.error("%s", self._unusable(ref))  # noqa: TRY400 - the reason is all there is to say

    def get(self, ref: str) -> Prepared:
        """Return an app and its data or raise InvalidApp."""
        if ref in self._prepared:
            return self._prepared[ref]
        if ref in self._errors:
            raise InvalidApp(self._unusable(ref))
        raise InvalidApp(f"app {ref!r} is not allowed at this site")

    @property
    def apps(self) -> list[App]:
        """The apps that can be used."""
        return [held.app for held in self._prepared.values()]

    def unusable(self) -> str:
        """Say which apps cannot be used and why; nothing if all can."""
        return "; ".join(map(self._unusable, self._errors))

    def _unusable(self, ref: str) -> str:
        return f"app {ref} cannot be used: {self._errors[ref]}"

    def states(self) -> list[fleet.AppState]:
        """Return what the controller is told at enrolment."""
        usable = [fleet.AppState(ref=ref, examples=len(held.examples)) for ref, held in self._prepared.items()]
        return usable + [fleet.AppState(ref=ref, error=plain(error)) for ref, error in self._errors.items()]
