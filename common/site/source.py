"""The source of an app: its file, and what that imports from the files beside it or from its own package.

A daemon keeps the code that it imported. The digest of the source, taken when the app is loaded, tells sites
apart that have loaded different versions, and an edit on disk from the code that runs. It is made by reading
import statements, so that it does not depend on what else a process has loaded. Installed packages, modules
that are found in other ways and files that are no code are not in it.
"""

import ast
import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

Stamp = tuple[int, int, int]
INSTALLED = ("site-packages", "dist-packages")  # folders with other packages than the app's


@dataclass(frozen=True)
class Source:
    """What was loaded: a digest, and what its files looked like on disk."""

    digest: str
    stamps: Mapping[Path, Stamp | None]
    root: Path  # the folder that its modules are imported from

    def unchanged(self) -> bool:
        """Whether no file was written since; quick, since nothing is read."""
        return all(stamp_of(path) == stamp for path, stamp in self.stamps.items())

    def mistaken(self) -> Iterator[tuple[str, Path]]:
        """Yield the modules of these files that Python has loaded from other files, since it goes by their names."""
        for path in self.stamps:
            parts = path.relative_to(self.root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            file = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(file, str) and Path(file) != path:
                yield name, Path(file)

    @property
    def found(self) -> bool:
        """Whether any file was there."""
        return any(self.stamps.values())

    def forget(self) -> None:
        """Have Python import these files again when they are asked for, and find those that have come since."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and Path(file) in self.stamps:
                del sys.modules[name]
        importlib.invalidate_caches()


def source_of(ref: str) -> Source:
    """Read the source of an app as it is on disk."""
    start, finder = _beginning(ref.rpartition(":")[0])
    stamps: dict[Path, Stamp | None] = {}
    hasher = blake3()
    for path in sorted(finder.closure(start)):
        stamps[path] = stamp_of(path)
        name, text = path.relative_to(finder.root).as_posix().encode(), _read(path)
        hasher.update(b"%d:%s%d:%s" % (len(name), name, len(text), text))
    return Source(hasher.hexdigest(), stamps, finder.root)


def _beginning(place: str) -> "tuple[Path, _Finder]":
    """Return the file of an app, and who finds what it imports."""
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
    package: str = ""  # only modules of this one

    def closure(self, start: Path) -> set[Path]:
        """Return a file and what it imports."""
        found, new = {start}, [start]
        while new:
            for path in self._imported(new.pop()):
                if path not in found:
                    found.add(path)
                    new.append(path)
        return {path for path in found if path.is_relative_to(self.root)}

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
                for alias in node.names:  # a name of the module, or a module of the package
                    yield from self._files([*words, alias.name])

    def _package_of(self, path: Path, level: int) -> tuple[str, ...]:
        parts = path.relative_to(self.root).parts
        return parts[: max(len(parts) - level, 0)]

    def _files(self, words: list[str]) -> Iterator[Path]:
        """Yield the files of a module and of the packages that it is in, as far as they are below the folder."""
        if self.package and words[:1] != [self.package]:
            return
        for depth in range(1, len(words) + 1):
            place = self.root.joinpath(*words[:depth])
            for path in (place / "__init__.py", place.parent / f"{place.name}.py"):
                if path.is_file():
                    yield path


def stamp_of(path: Path) -> Stamp | None:
    """Return what changes when a file is written; nothing if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
