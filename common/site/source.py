"""The source of an app: its file, and what that file imports from its folder or its own package.

A daemon keeps running the code that it imported. The digest of the source, taken when the app is loaded,
shows whether sites have loaded different versions, and whether the files on disk are still the running code.
Files are found by reading import statements, so the digest does not depend on what else was loaded.
Installed packages, modules that are found in other ways and files other than code are not part of it.
"""

import ast
import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

Stamp = tuple[int, int, int]
INSTALLED = ("site-packages", "dist-packages")  # folders that also hold packages other than the app's


@dataclass(frozen=True)
class Source:
    """The loaded source: its digest, and the stamps of its files on disk."""

    digest: str
    stamps: Mapping[Path, Stamp | None]
    root: Path  # the folder that its modules are imported from

    def unchanged(self) -> bool:
        """Whether no file was written since; quick, because nothing is read."""
        return all(stamp_of(path) == stamp for path, stamp in self.stamps.items())

    def mistaken(self) -> Iterator[tuple[str, Path]]:
        """Yield modules of these files that Python has loaded from other files of the same name."""
        for path in self.stamps:
            parts = path.relative_to(self.root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            file = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(file, str) and Path(file) != path:
                yield name, Path(file)

    @property
    def found(self) -> bool:
        """Whether any file exists."""
        return any(self.stamps.values())

    def forget(self) -> None:
        """Make Python import these files again, and find files that were added since."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and Path(file) in self.stamps:
                del sys.modules[name]
        importlib.invalidate_caches()


def source_of(ref: str) -> Source:
    """Read an app's source from disk."""
    start, finder = _beginning(ref.rpartition(":")[0])
    stamps: dict[Path, Stamp | None] = {}
    hasher = blake3()
    for path in sorted(finder.closure(start)):
        stamps[path] = stamp_of(path)
        name, text = path.relative_to(finder.root).as_posix().encode(), _read(path)
        hasher.update(b"%d:%s%d:%s" % (len(name), name, len(text), text))
    return Source(hasher.hexdigest(), stamps, finder.root)


def _beginning(place: str) -> "tuple[Path, _Finder]":
    """Return the file of an app, and a finder for its imports."""
    if place.endswith(".py"):
        start = Path(place).resolve()
        return start, _Finder(start.parent)
    known = getattr(sys.modules.get(place), "__file__", None)
    start = Path(known or place.replace(".", "/") + ".py").resolve()
    depth = place.count(".") + (start.name == "__init__.py")
    root = start.parents[min(depth, len(start.parents) - 1)]
    return start, _Finder(root, place.partition(".")[0] if root.name in INSTALLED else "")


@dataclass(frozen=True)
class _Finder:
    """Finds the modules below a folder that a file imports, directly or not."""

    root: Path
    package: str = ""  # if set: only modules of this package

    def closure(self, start: Path) -> set[Path]:
        """Return a file and what it imports."""
        files, new = {start}, [start]
        while new:
            for path in self._imported(new.pop()):
                if path not in files:
                    files.add(path)
                    new.append(path)
        return {path for path in files if path.is_relative_to(self.root)}

    def _imported(self, path: Path) -> Iterator[Path]:
        try:
            tree = ast.parse(_read(path))
        except (SyntaxError, ValueError, RecursionError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._files(alias.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                words = node.module.split(".") if node.module else []
                if node.level:
                    words = [*self._package_of(path, node.level), *words]
                for alias in node.names:  # each is a name in the module, or a module in the package
                    yield from self._files([*words, alias.name])

    def _package_of(self, path: Path, level: int) -> tuple[str, ...]:
        parts = path.relative_to(self.root).parts
        return parts[: max(len(parts) - level, 0)]

    def _files(self, words: list[str]) -> Iterator[Path]:
        """Yield the files below the folder that belong to a module or to the packages that contain it."""
        if self.package and words[:1] != [self.package]:
            return
        for depth in range(1, len(words) + 1):
            place = self.root.joinpath(*words[:depth])
            for path in (place / "__init__.py", place.parent / f"{place.name}.py"):
                if path.is_file():
                    yield path


def stamp_of(path: Path) -> Stamp | None:
    """Return a stamp that changes when a file is written; None if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
