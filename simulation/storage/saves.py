"""Saves of a simulation, from which it goes on after Ctrl-C, a crash or kill -9.

    save/simulation   the job, its sites and where their data are; written once
    save/state        the machine, the agenda, what sites remember and which tasks they have in hand
    save/models/      the models of the job at that time, one file each
    save/history      the job's history, which is written all the time; a save knows how long it was

The file `state` names all others that belong to it, and is replaced as a whole. So a save is complete or is
not there, whenever the process is killed. Outcomes that nobody has taken yet are not saved: those tasks are
done again, and give the same.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.job.spec import JobSpec
from hansa.common.models.frames import Layout, cut
from hansa.common.models.model import Manifest
from hansa.common.process.files import write_whole
from hansa.common.values.errors import Broken, HansaError, InvalidInput
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.engine.machine import Machine
from hansa.controller.values.snapshots import Snapshot
from hansa.simulation.crew.blocks import received, sent
from hansa.simulation.sites.data import VirtualData
from hansa.simulation.storage.history import FiledHistory, SavedHistory
from hansa.simulation.storage.store import SharedStore

FOLDER, BEGINNING, STATE, MODELS, HISTORY = "save", "simulation", "state", "models", "history"
EVERY = 60.0  # seconds between two saves
FORMAT = 3


@dataclass(frozen=True)
class Beginning:
    """What a simulation is of."""

    format: int
    spec: JobSpec  # as the user gave it, with its files located
    told: JobSpec  # as the engine knows it
    job: JobId
    data: VirtualData
    source: str  # the digest of the app's source


@dataclass(frozen=True)
class Saved:
    """A simulation as it was saved."""

    sequence: int
    machine: str
    history: SavedHistory
    models: list[ModelKey]
    driver: bytes
    seconds: float  # of real time until then


class Saves:
    """Writes the saves of a simulation into its folder."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        store: SharedStore,
        driver: Callable[[], Any],
        saved: Saved | None = None,
    ) -> None:
        """`saved` is the save to go on from, if any."""
        self._folder, self._machine, self._store, self._driver = folder / FOLDER, machine, store, driver
        self.history = FiledHistory(self._folder / HISTORY, saved.history if saved else None)
        self._begun = self._last = time.monotonic()
        self._begun -= saved.seconds if saved else 0.0

    def begin(self, beginning: Beginning) -> None:
        """Write what does not change."""
        (self._folder / MODELS).mkdir(parents=True, exist_ok=True)
        write_whole(self._folder / BEGINNING, sent(beginning), 0o600)

    @property
    def seconds(self) -> float:
        """How long the simulation has taken so far, with what was before a save."""
        return time.monotonic() - self._begun

    def tick(self) -> None:
        """Save if it is time to; called between two events."""
        self.history.settle()
        if time.monotonic() - self._last >= EVERY:
            self.save()

    def save(self) -> None:
        """Save everything, and forget what belonged to the last save only."""
        snapshot = self._machine.snapshot(history=False)
        keys = self._store.keys()
        for key in keys:
            self._keep(key)
        state = Saved(
            snapshot.sequence,
            snapshot.state,
            self.history.saved(),
            keys,
            sent(self._driver()),
            self.seconds,
        )
        write_whole(self._folder / STATE, sent(state), 0o600)
        self._sweep({_name(key) for key in keys})
        self._last = time.monotonic()

    def _keep(self, key: ModelKey) -> None:
        path = self._folder / MODELS / _name(key)
        if path.exists():
            return  # models never change
        with self._store.open(key) as model:
            frames = b"".join(model.read(index) for index in range(model.layout.frames))
            write_whole(path, sent((model.manifest, model.peaks, frames)), 0o600, durable=False)

    def _sweep(self, needed: set[str]) -> None:
        for path in (self._folder / MODELS).iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def end(self) -> None:
        """Remove the save of a simulation that has come to its end."""
        shutil.rmtree(self._folder, ignore_errors=True)


def is_saved(folder: Path) -> bool:
    """Whether there is a save in a folder that this version of Hansa can go on with."""
    if not (folder / FOLDER / STATE).exists():
        return False
    try:
        read_beginning(folder)
    except HansaError:
        return False
    return True


def read_beginning(folder: Path) -> Beginning:
    """Return what the simulation in a folder is of."""
    beginning = _read(folder, BEGINNING)
    if not isinstance(beginning, Beginning) or beginning.format != FORMAT:
        raise InvalidInput(f"--resume {folder}: it was saved by another version of Hansa; simulate anew")
    return beginning


def read_saved(folder: Path) -> Saved | None:
    """Return the last save in a folder; None if the simulation ended before the first one."""
    if not (folder / FOLDER / STATE).exists():
        return None
    saved = _read(folder, STATE)
    assert isinstance(saved, Saved)
    return saved


def _read(folder: Path, name: str) -> Any:
    try:
        return received((folder / FOLDER / name).read_bytes())
    except FileNotFoundError:
        raise InvalidInput(
            f"--resume {folder}: there is nothing to go on with; a simulation that has ended is not saved"
        ) from None
    except Exception as error:
        raise Broken(f"--resume {folder}: {FOLDER}/{name} cannot be read: {error}") from error


def restore(folder: Path, saved: Saved, machine: Machine, store: SharedStore, history: FiledHistory) -> None:
    """Give a new machine and a new store what was saved."""
    place = folder / FOLDER
    machine.restore(Snapshot(saved.sequence, saved.machine, {}), history)
    for key in saved.models:
        manifest, peaks, frames = received((place / MODELS / _name(key)).read_bytes())
        assert isinstance(manifest, Manifest)
        assert len(frames) == Layout(manifest.spec).size
        draft = store.draft(key, manifest.spec)
        for index, frame in enumerate(cut(np.frombuffer(frames, dtype=np.uint8))):
            draft.write(index, frame)
        draft.publish(manifest, peaks)


def _name(key: ModelKey) -> str:
    return key.replace("/", "@")
