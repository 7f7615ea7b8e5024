"""The history of a job in memory: its newest versions as they are, older ones compressed.

A version of a job with many sites has hundreds of records, and a job may have thousands of versions. They are
cut into chapters, the unit in which snapshots write them, too. A chapter that is no longer being written is
kept as compressed JSON, about a thirtieth of what it takes in memory otherwise.
"""

import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import core_schema

from hansa.common.values.history import Version

CHAPTER = 32  # versions in a chapter
OPEN = 2  # chapters that are being written: late reports are mostly on the newest versions
VERSIONS = TypeAdapter(list[Version])


class Records(Sequence[Version]):
    """The versions of a job, from 0 on. It reads like a list; to change a version, have it `opened`."""

    @abstractmethod
    def append(self, version: Version) -> None:
        """Add the next version."""

    @abstractmethod
    def opened(self, version: int) -> Version:
        """Return a version for the caller to change, until the event that is being handled is over."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} versions>"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Accept and write a list of versions."""
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, Records) else History(VERSIONS.validate_python(value)),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda history: [version.model_dump() for version in history]
            ),
        )


class History(Records):
    """Versions in memory."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        self._length = 0
        self._open: dict[int, list[Version]] = {}
        self._closed: dict[int, bytes] = {}
        self._read: tuple[int, list[Version]] = (-1, [])  # the closed chapter that was read last
        for version in versions:
            self.append(version)

    @classmethod
    def of_chapters(cls, texts: Mapping[int, str]) -> "History":
        """Return the history that `text` wrote chapter by chapter; those before the newest are not parsed."""
        history = cls()
        if not texts:
            return history
        last = max(texts)
        if sorted(texts) != list(range(last + 1)):
            raise ValueError("chapters of its history are missing")
        history._closed = {number: _packed(text) for number, text in texts.items() if number < last}
        history._open = {last: VERSIONS.validate_json(texts[last])}
        history._length = last * CHAPTER + len(history._open[last])
        return history

    def append(self, version: Version) -> None:
        """Add the next version."""
        number, place = divmod(self._length, CHAPTER)
        self._length += 1
        self._open.setdefault(number, []).append(version)
        if not place:
            for old in [each for each in self._open if each <= number - OPEN]:
                self._closed[old] = _packed(_written(self._open.pop(old)))

    def opened(self, version: int) -> Version:
        """Return a version for the caller to change."""
        number, place = divmod(version, CHAPTER)
        if number in self._closed:
            self._open[number] = _parsed(self._closed.pop(number))
            self._read = (-1, [])
        return self._open[number][place]

    def text(self, number: int) -> str:
        """Return a chapter as JSON."""
        if number in self._closed:
            return zlib.decompress(self._closed[number]).decode()
        return _written(self._open.get(number, []))

    def _chapter(self, number: int) -> list[Version]:
        if number in self._open:
            return self._open[number]
        if self._read[0] != number:
            self._read = (number, _parsed(self._closed[number]))
        return self._read[1]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: SupportsIndex) -> Version: ...
    @overload
    def __getitem__(self, index: slice) -> list[Version]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._length))]
        number = range(self._length)[index]
        return self._chapter(number // CHAPTER)[number % CHAPTER]

    def __iter__(self) -> Iterator[Version]:
        return (self[number] for number in range(self._length))


def _written(versions: list[Version]) -> str:
    return VERSIONS.dump_json(versions).decode()


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode(), 1)


def _parsed(packed: bytes) -> list[Version]:
    return VERSIONS.validate_json(zlib.decompress(packed))
