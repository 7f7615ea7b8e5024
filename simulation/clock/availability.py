"""When sites are connected: always, as a file says, or by chance (`simulate.availability`)."""

import csv
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hansa.common.job.simulate import RandomAvailability
from hansa.common.values.bounds import SECONDS
from hansa.common.values.errors import InvalidInput, InvalidJob
from hansa.common.values.ids import SiteName
from hansa.common.values.wording.words import suggestion
from hansa.simulation.clock.agenda import nanoseconds

COLUMNS = ("site", "from", "to")
NEVER = 1 << 62  # later than all times
PROBLEMS = 20  # lines of a file that are named at a time


class Span(NamedTuple):
    """A time during which a site is connected, in nanoseconds."""

    begin: int
    end: int | None = None  # None: it stays
    number: int = 0  # among the site's spans


class Availability(ABC):
    """Says when sites come and go. It remembers nothing, so it can be asked again."""

    @abstractmethod
    def first(self, site: int) -> Span | None:
        """Return the first time during which a site is connected; None: it never comes."""

    @abstractmethod
    def after(self, site: int, span: Span) -> Span | None:
        """Return the next time during which a site is connected; None: it does not come back."""


class Always(Availability):
    """All sites are connected from the beginning to the end."""

    def first(self, site: int) -> Span:
        """Return all time."""
        return Span(0)

    def after(self, site: int, span: Span) -> None:
        """Return nothing: no site leaves."""


class Listed(Availability):
    """A file says when sites are connected; those that it does not name always are."""

    def __init__(self, spans: Mapping[int, Sequence[Span]]) -> None:
        self._spans = spans

    def first(self, site: int) -> Span | None:
        """Return the first span of the file."""
        return self._spans[site][0] if site in self._spans else Span(0)

    def after(self, site: int, span: Span) -> Span | None:
        """Return the next span of the file."""
        spans = self._spans[site]
        return spans[span.number + 1] if span.number + 1 < len(spans) else None


class Random(Availability):
    """Sites come and go by themselves, each with random numbers of its own.

    How long a site stays or is away is drawn from exponential distributions. At the beginning each is
    connected with the probability with which it is at any other time.
    """

    def __init__(self, spec: RandomAvailability, seed: int) -> None:
        self._up, self._down, self._seed = spec.up, spec.down, seed

    def first(self, site: int) -> Span:
        """Draw the first span, which may have begun before the job."""
        chance = self._chance(site, 0)
        here = chance.random() < self._up / (self._up + self._down)
        return self._drawn(chance, 0 if here else self._away(chance), 0)

    def after(self, site: int, span: Span) -> Span:
        """Draw the next span."""
        assert span.end is not None
        chance = self._chance(site, span.number + 1)
        return self._drawn(chance, span.end + self._away(chance), span.number + 1)

    def _chance(self, site: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(b"availability"), site, number])

    def _away(self, chance: np.random.Generator) -> int:
        return max(1, nanoseconds(chance.exponential(self._down)))

    def _drawn(self, chance: np.random.Generator, begin: int, number: int) -> Span:
        return Span(begin, begin + max(1, nanoseconds(chance.exponential(self._up))), number)


def availability_of(
    spec: str | RandomAvailability | None, names: Sequence[SiteName], seed: int
) -> Availability:
    """Return when the sites of a job are connected."""
    if spec is None:
        return Always()
    if isinstance(spec, RandomAvailability):
        return Random(spec, seed)
    return Listed(read_spans(Path(spec), names))


def read_spans(file: Path, names: Sequence[SiteName]) -> dict[int, list[Span]]:
    """Read a file of times during which sites are connected; each wrong line is named."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"simulate.availability: {file} cannot be read: {error}") from None
    numbers = {name: number for number, name in enumerate(names)}
    lines: dict[int, list[tuple[int, int, int]]] = {}  # from, to and the number of the line, by site
    problems: list[tuple[int, str]] = []
    for line, row in _rows(text, file):
        try:
            name, begin, end = _span(row)
        except ValueError as error:
            problems.append((line, str(error)))
            continue
        if name in numbers:
            lines.setdefault(numbers[name], []).append((begin, end, line))
        else:
            near = suggestion(name, list(names)) if len(problems) < PROBLEMS else ""
            problems.append((line, f"{name!r} is not a site of this job{near}"))
    for spans in lines.values():
        spans.sort()
        problems += _overlaps(spans)
    if problems:
        named = [f"{file}, line {line}: {what}" for line, what in sorted(problems)]
        more = len(named) - PROBLEMS
        raise InvalidJob(named[:PROBLEMS] + ([f"{file}: {more} more lines are wrong"] if more > 0 else []))
    return {
        site: [
            Span(begin, end if end < NEVER else None, number) for number, (begin, end, _) in enumerate(spans)
        ]
        for site, spans in lines.items()
    }


def _rows(text: str, file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line below the header."""
    reader = csv.reader(text.splitlines(), strict=True, skipinitialspace=True)
    try:
        header = next(reader, [])
        if [field.strip() for field in header] != list(COLUMNS):
            raise InvalidInput(f"{file}, line 1: write the names of the columns, {','.join(COLUMNS)}")
        for row in reader:
            if row:
                yield reader.line_num, [field.strip() for field in row]
    except csv.Error as error:
        raise InvalidInput(f"{file}, line {reader.line_num}: this is not CSV: {error}") from None


def _span(row: Sequence[str]) -> tuple[SiteName, int, int]:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} fields; write {','.join(COLUMNS)}")
    name, begin, end = SiteName(row[0]), _time("from", row[1]), _time("to", row[2]) if row[2] else NEVER
    if end <= begin:
        raise ValueError(f"to ({row[2]}) must be later than from ({row[1]})")
    return name, begin, end


def _time(column: str, text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= SECONDS:
        raise ValueError(f"{column}: {text!r} is not a number of seconds from 0 to {SECONDS:g}")
    return nanoseconds(number)


def _overlaps(spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, str]]:
    """Return what is wrong with the lines of a site, sorted by time, that overlap an earlier one."""
    problems: list[tuple[int, str]] = []
    last, by = 0, 0
    for begin, end, line in spans:
        if begin < last:
            problems.append((line, f"the site is already connected at that time, by line {by}"))
        if end > last:
            last, by = end, line
    return problems
