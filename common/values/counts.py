"""Tables of counts, such as confusion matrices, stored without their zeros.

The confusion matrix of many classes is nearly empty: it cannot have more non-zero counts than there are
examples. The size of a table, in memory and in the journal, is therefore bounded by the number of examples,
not by the square of the number of classes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

MOST = (1 << 53) - 1  # the largest count
Row = tuple[int, ...]


class Counts(Sequence[Row]):
    """A table of non-negative counts; it reads like a tuple of rows, and compares equal to one.

    As JSON it is a list: the numbers of rows and columns, then the counts row by row, where -5 stands for
    five zeros. Trailing zeros are left out.
    """

    __slots__ = ("_at", "_shape", "_values")

    def __init__(self, rows: object = ()) -> None:
        table = _table(rows)
        self._shape: tuple[int, int] = (table.shape[0], table.shape[1])
        self._at = np.flatnonzero(table)
        self._values = table.reshape(-1)[self._at].astype(np.int64)

    @property
    def total(self) -> int:
        """The sum of all counts, an integer of any size."""
        return sum(self._values.tolist())

    @property
    def square(self) -> bool:
        """Whether there are as many rows as columns."""
        return self._shape[0] == self._shape[1]

    def array(self) -> np.ndarray:
        """Return the table with its zeros."""
        table = np.zeros(self._shape, np.int64)
        table.reshape(-1)[self._at] = self._values
        return table

    def packed(self) -> list[int]:
        """Return the table in its JSON form."""
        if not self._shape[0]:
            return []
        zeros = np.diff(self._at, prepend=-1) - 1  # before each count
        runs = np.stack([-zeros, self._values], axis=1).reshape(-1)
        return [*self._shape, *runs[runs != 0].tolist()]

    @classmethod
    def unpacked(cls, numbers: Sequence[int]) -> "Counts":
        """Return the table that `packed` wrote."""
        table = cls()
        if not numbers:
            return table
        rows, columns, *rest = numbers
        if any(abs(number) > MOST or not number for number in rest) or rows < 0 or columns < 0:
            raise ValueError(f"counts must be whole numbers other than 0, of at most {MOST} in size")
        runs = np.array(rest, np.int64)
        ends = np.cumsum(np.where(runs < 0, -runs, 1))
        if len(ends) and ends[-1] > rows * columns:
            raise ValueError(f"the counts do not fit a table of {rows} × {columns}")
        table._shape, table._at, table._values = (rows, columns), ends[runs > 0] - 1, runs[runs > 0]
        return table

    def __len__(self) -> int:
        return self._shape[0]

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: Any) -> Any:
        rows = self.array()[index]
        return tuple(rows.tolist()) if rows.ndim == 1 else tuple(map(tuple, rows.tolist()))

    def __iter__(self) -> Iterator[Row]:
        return iter(map(tuple, self.array().tolist()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Counts):
            return tuple(self) == other
        same = self._shape == other._shape
        return same and np.array_equal(self._at, other._at) and np.array_equal(self._values, other._values)

    def __hash__(self) -> int:
        return hash((self._shape, self._values.tobytes()))

    def __repr__(self) -> str:
        if len(self) <= 10:
            return f"Counts({tuple(self)})"
        return f"<{self._shape[0]} × {self._shape[1]} counts>"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Accept a table, rows of numbers, or what `packed` wrote."""
        return core_schema.no_info_plain_validator_function(
            _validated, serialization=core_schema.plain_serializer_function_ser_schema(Counts.packed)
        )


def _validated(value: object) -> Counts:
    if isinstance(value, Counts):
        return value
    if isinstance(value, list) and value and all(type(number) is int for number in value):
        return Counts.unpacked(value)
    return Counts(value)


def _table(rows: object) -> np.ndarray:
    """Return rows of counts as an array; refuse anything that is not a table of whole numbers."""
    try:
        table = rows if isinstance(rows, np.ndarray) else np.array(list(rows))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError("counts must be a table: rows of the same length") from None
    if not table.size:
        return np.zeros((len(table), 0), np.int64)
    if table.ndim != 2:
        raise ValueError("counts must be a table: rows of the same length")
    whole = table.dtype.kind in "iu" or (table.dtype.kind == "f" and bool((table == np.floor(table)).all()))
    if not whole and not (table.dtype.kind == "O" and all(type(cell) is int for cell in table.flat)):
        raise ValueError("counts must be whole numbers")
    if table.min() < 0:
        raise ValueError(f"counts must be greater than or equal to 0 (given: {table.min()})")
    if table.max() > MOST:
        raise ValueError(f"counts must be less than {MOST + 1} (given: {table.max()})")
    return table.astype(np.int64)
