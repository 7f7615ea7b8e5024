"""The data of virtual sites: rows of one set that is mapped into memory, or a file for each site."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from hansa.common.app import App
from hansa.common.data.examples import ALL, Examples, check_examples
from hansa.common.data.lazy import AnyExamples
from hansa.common.data.site_files import Split
from hansa.common.values.ids import SiteName

if TYPE_CHECKING:
    from hansa.common.data.division import Division

TEST: Final = "test"
TRAINING: Final = "train"


class VirtualData(ABC):
    """The data of all sites. It can be pickled: worker processes open the same files."""

    names: tuple[SiteName, ...]
    split: Split  # what evaluators use: test data, or validation data where there are none for testing
    held_out: frozenset[SiteName] = frozenset()  # sites that never train, and evaluate on all their data

    def evaluated(self, site: int) -> Split:
        """Return what the evaluator of a site uses."""
        return ALL if self.names[site] in self.held_out else self.split

    @abstractmethod
    def examples(self, app: App, site: int, split: str) -> AnyExamples:
        """Return the data of a site, as its daemon would load them."""

    @abstractmethod
    def count(self, app: App, site: int, split: str) -> int:
        """Return how many examples a site has."""

    @abstractmethod
    def path(self, site: int) -> Path:
        """Return the file that a site's own functions are told about."""

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Return all files, or folders with files, that the data are read from."""


class RowsOfASet(VirtualData):
    """Sites whose data are rows of one set."""

    def __init__(self, folder: Path, names: Sequence[SiteName], tested: bool) -> None:
        self._folder, self.names = folder, tuple(names)
        self.split = TEST if tested else "validation"

    @classmethod
    def written(cls, division: "Division", folder: Path) -> "RowsOfASet":
        """Write a set and its division into files that every process can map."""
        folder.mkdir(parents=True, exist_ok=True)
        examples = division.data.examples
        np.save(folder / "x.npy", np.ascontiguousarray(examples.x), allow_pickle=False)
        np.save(folder / "y.npy", np.ascontiguousarray(examples.y), allow_pickle=False)
        for name, rows in (
            (TRAINING, [shard.rows for shard in division.shards]),
            (TEST, [shard.test for shard in division.shards]),
        ):
            np.save(folder / f"{name}.npy", np.concatenate([*rows, np.arange(0)]).astype(np.int64))
            np.save(folder / f"{name}-ends.npy", np.cumsum([len(each) for each in rows]))
        names = [SiteName(shard.name) for shard in division.shards]
        return cls(folder, names, bool(len(division.test)))

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("_folder", "names", "split", "held_out")}

    @cached_property
    def _whole(self) -> Examples:
        return Examples(
            np.load(self._folder / "x.npy", mmap_mode="r"), np.load(self._folder / "y.npy", mmap_mode="r")
        )

    @cached_property
    def _rows(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        return {
            split: (np.load(self._folder / f"{split}.npy"), np.load(self._folder / f"{split}-ends.npy"))
            for split in (TRAINING, TEST)
        }

    def _of(self, site: int, split: str) -> np.ndarray:
        if split == ALL and self.split == TEST:
            return np.concatenate([self._of(site, TRAINING), self._of(site, TEST)])
        # As in a site's file: without test data all rows are used for testing.
        rows, ends = self._rows[split if self.split == TEST else TRAINING]
        return rows[ends[site - 1] if site else 0 : ends[site]]

    def examples(self, app: App, site: int, split: str) -> AnyExamples:
        """Return copies of a site's rows."""
        taken = self._whole.take(self._of(site, split))
        return check_examples(app, taken, self.path(site))

    def count(self, app: App, site: int, split: str) -> int:
        """Return how many rows a site has."""
        return len(self._of(site, split))

    def path(self, site: int) -> Path:
        """Return the folder of the set."""
        return self._folder

    def files(self) -> Sequence[Path]:
        """Return the files of the set and of its division."""
        divided = (f"{split}{part}" for split in (TRAINING, TEST) for part in ("", "-ends"))
        return [self._folder / f"{name}.npy" for name in ("x", "y", *divided)]


class FileForEach(VirtualData):
    """Sites with a file or folder each, which the app reads."""

    def __init__(self, files: Mapping[str, Path], split: Split) -> None:
        self.names, self._files, self.split = tuple(map(SiteName, files)), list(files.values()), split
        self._counts: dict[tuple[int, str], int] = {}

    def examples(self, app: App, site: int, split: str) -> AnyExamples:
        """Read a site's file."""
        examples = app.load(self._files[site], split)
        self._counts[site, split] = len(examples)
        return examples

    def count(self, app: App, site: int, split: str) -> int:
        """Return how many examples a site has; its file is read once for that."""
        if (site, split) not in self._counts:
            self.examples(app, site, split)
        return self._counts[site, split]

    def path(self, site: int) -> Path:
        """Return a site's file."""
        return self._files[site]

    def files(self) -> Sequence[Path]:
        """Return the sites' files."""
        return self._files
