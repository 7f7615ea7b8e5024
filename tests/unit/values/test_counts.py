"""Tables of counts: any table is read as it was written, and zeros cost nothing."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pydantic import BaseModel

from hansa.common.values.counts import MOST, Counts
from hansa.common.values.results import Evaluation
from hansa.controller.engine import events as ev

CELLS = st.one_of(st.just(0), st.just(0), st.integers(0, MOST))
TABLES = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=CELLS)


class Held(BaseModel):
    counts: Counts


@given(TABLES)
def test_a_table_comes_back_from_json_and_reads_like_rows(table: np.ndarray) -> None:
    counts = Counts(table)
    rows = tuple(map(tuple, table.tolist()))
    again = Held.model_validate_json(Held(counts=counts).model_dump_json()).counts
    assert again == counts == rows
    assert hash(again) == hash(counts)
    assert np.array_equal(again.array(), table)
    assert (len(counts), tuple(counts), counts[0], counts[-1:]) == (len(rows), rows, rows[0], rows[-1:])
    assert counts.total == sum(map(sum, rows))
    assert Held.model_validate(Held(counts=counts).model_dump()).counts == counts


@given(TABLES, st.integers(0, 80))
def test_tables_that_differ_in_one_count_are_not_equal(table: np.ndarray, at: int) -> None:
    other = table.copy()
    other.flat[at % other.size] ^= 1
    assert Counts(table) != Counts(other)


def test_zeros_cost_nothing_in_memory_or_in_the_journal() -> None:
    table = np.zeros((2800, 2800), np.int64)
    assert json.loads(Held(counts=Counts(table)).model_dump_json()) == {"counts": [2800, 2800]}
    table[1000, 7], table[1000, 8], table[2799, 0] = 3, 4, 5
    zeros = (1000 * 2800 + 7, 2799 * 2800 - 1000 * 2800 - 9)
    assert Counts(table).packed() == [2800, 2800, -zeros[0], 3, 4, -zeros[1], 5]
    event = ev.Reported(
        at=0.0,
        task="j-1",
        site="a",
        evaluation=Evaluation(n=12, loss_sum=1.0, confusion=table),
    )
    text = event.model_dump_json()
    assert len(text) < 300
    assert ev.EVENT.validate_json(text) == event


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (((1, 2), (3,)), "rows of the same length"),
        ((1, 2), "rows of the same length"),
        (7, "rows of the same length"),
        (((1.5, 2),), "whole numbers"),
        ((("1", "2"),), "whole numbers"),
        (((float("nan"), 2),), "whole numbers"),
        (((-1, 2),), "greater than or equal to 0"),
        (((1 << 53, 2),), f"less than {1 << 53}"),
        (((1 << 70, 2),), f"less than {1 << 53}"),
    ],
)
def test_what_is_not_a_table_of_counts_is_refused(rows: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Held(counts=rows)


@pytest.mark.parametrize(
    "numbers", [[2, 2, 0], [2, 2, -4, 1], [2, 2, 1, 1, 1, 1, 1], [-1, -1, 1], [1, 1, 1 << 60]]
)
def test_a_damaged_table_is_not_read(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="counts"):
        Held.model_validate_json(json.dumps({"counts": numbers}))


def test_whole_floats_and_arrays_are_taken_as_counts() -> None:
    assert Counts([[1.0, 2.0]]) == Counts(np.array([[1, 2]], np.uint8)) == ((1, 2),)
    assert Counts() == ()
    assert not Counts()
