"""A site's small files in memory: no disk is touched, and the whole can be sent to another process."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hansa.common.models.model import DTYPES, Arrays
from hansa.common.models.tensor_files import in_order
from hansa.common.site.files import Files, Tensors
from hansa.common.values.errors import InvalidInput


@dataclass(frozen=True)
class _Content:
    """What a file in memory holds: bytes, or arrays and texts. All files are numbered as they are written."""

    number: int
    plain: bytes | None
    arrays: dict[str, np.ndarray]
    texts: dict[str, str]

    @property
    def nbytes(self) -> int:
        texts = sum(len(name) + len(text) for name, text in self.texts.items())
        return len(self.plain or b"") + texts + sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class _Entry:
    """A name: what it stands for, and its number, which is counted on with those of contents."""

    number: int
    content: _Content


class MemoryFiles(Files):
    """Files in memory, which can be pickled: a site's whole memory travels from process to process.

    A folder is there as long as it has files. Nothing ages: it makes no difference how long a simulation
    takes.
    """

    def __init__(self, within: "MemoryFiles | None" = None, folder: str = "") -> None:
        """Without arguments there are no files yet; `folder` is one in other files."""
        self._entries: dict[str, _Entry] = {} if within is None else within._entries
        self._prefix: str = "" if within is None else f"{within._prefix}{folder}/"

    @property
    def nbytes(self) -> int:
        """The bytes of all files in the folder; a file with several names counts once."""
        contents = {id(each.content): each.content for _, each in self._below("")}
        return sum(content.nbytes for content in contents.values())

    def copy(self) -> "MemoryFiles":
        """Return files that begin as these and change on their own; what they hold is not copied."""
        copied = MemoryFiles()
        copied._entries, copied._prefix = dict(self._entries), self._prefix
        return copied

    def folder(self, name: str) -> "MemoryFiles":
        """Return the files in a folder; they share their memory with these."""
        return MemoryFiles(self, name)

    def where(self, name: str) -> str:
        """Return a file's name."""
        return self._prefix + name

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        plain = self._content(name).plain
        if plain is None:
            raise InvalidInput(f"{self.where(name)}: holds tensors")
        return plain

    def write(self, name: str, content: bytes, durable: bool = True) -> None:
        """Write a file."""
        self._enter(name, _Content(self._next(), content, {}, {}))

    def read_tensors(self, name: str, frozen: bool = False) -> Tensors:
        """Return a file's arrays and texts."""
        content = self._tensors(name)
        if not frozen:
            return {name: array.copy() for name, array in content.arrays.items()}, dict(content.texts)
        views = {name: array.view() for name, array in content.arrays.items()}
        for view in views.values():
            view.flags.writeable = False
        return views, dict(content.texts)

    def read_texts(self, name: str) -> dict[str, str]:
        """Return the texts beside a file's arrays."""
        return dict(self._tensors(name).texts)

    def write_tensors(
        self, name: str, arrays: Arrays, texts: Mapping[str, str], durable: bool = True
    ) -> None:
        """Write copies of arrays, and texts."""
        copies = {
            name: np.array(arrays[name], DTYPES[arrays[name].dtype.name], order="C")
            for name in in_order(arrays)
        }
        self._enter(name, _Content(self._next(), None, copies, dict(texts)))

    def exists(self, name: str) -> bool:
        """Whether there is a file or a folder of this name."""
        return self._prefix + name in self._entries or bool(self._below(f"{name}/"))

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with everything in it, if it is there."""
        self._entries.pop(self._prefix + name, None)
        for inner, _ in self._below(f"{name}/"):
            del self._entries[f"{self._prefix}{name}/{inner}"]

    def rename(self, name: str, new: str) -> None:
        """Give a file another name."""
        content = self._content(name)
        del self._entries[self._prefix + name]
        self._enter(new, content)

    def link(self, name: str, new: str) -> None:
        """Give a file a second name."""
        self._enter(new, self._content(name))

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder: files as they were written, folders as names were entered in them."""
        changed: dict[str, int] = {}
        for path, entry in self._below(f"{folder}/" if folder else ""):
            name, inner, _ = path.partition("/")
            changed[name] = max(changed.get(name, 0), entry.number if inner else entry.content.number)
        return sorted(changed, key=lambda name: changed[name])

    def age(self, name: str) -> float:
        """Return 0: nothing ages."""
        return 0.0

    def _below(self, folder: str) -> list[tuple[str, _Entry]]:
        """Return the files that have a prefix, without it."""
        prefix = self._prefix + folder
        start = len(prefix)
        return [(path[start:], entry) for path, entry in self._entries.items() if path.startswith(prefix)]

    def _content(self, name: str) -> _Content:
        try:
            return self._entries[self._prefix + name].content
        except KeyError:
            raise FileNotFoundError(f"{self.where(name)}: there is no such file") from None

    def _tensors(self, name: str) -> _Content:
        content = self._content(name)
        if content.plain is not None:
            raise InvalidInput(f"{self.where(name)}: not a file of tensors")
        return content

    def _enter(self, name: str, content: _Content) -> None:
        self._entries[self._prefix + name] = _Entry(self._next(), content)

    def _next(self) -> int:
        """Return a number larger than all so far."""
        return 1 + max((entry.number for entry in self._entries.values()), default=0)
