"""The history of a simulation is in a file, and a record can be changed at any time."""

from pathlib import Path

import pytest

from hansa.common.values.documents import pieces, written
from hansa.common.values.history import Update, Version
from hansa.simulation.storage.history import NEWEST, FiledHistory


def record(version: int) -> Version:
    updates = [Update(site="a", steps=version, loss=0.1 + version)]
    return Version(
        version=version, round=version, seconds=version / 3, digest=f"{version:064x}", updates=updates
    )


def filled(path: Path, versions: int) -> FiledHistory:
    history = FiledHistory(path)
    for number in range(versions):
        history.append(record(number))
        history.settle()
    return history


def test_old_records_come_back_from_the_file(tmp_path: Path) -> None:
    history = filled(tmp_path / "history", 3 * NEWEST)
    assert list(history) == [record(number) for number in range(3 * NEWEST)]
    assert history[-1] == record(3 * NEWEST - 1)
    assert next(each.version for each in reversed(history) if each.version < 2) == 1


def test_a_change_of_an_old_record_is_kept(tmp_path: Path) -> None:
    history = filled(tmp_path / "history", 3 * NEWEST)
    history.opened(1).metrics["accuracy"] = 0.5
    history.settle()
    for number in range(3 * NEWEST):
        assert history[number].metrics == ({"accuracy": 0.5} if number == 1 else {})
        history.settle()


def test_what_was_written_after_a_save_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = filled(path, 2 * NEWEST)
    saved = history.saved()
    history.opened(0).note = "later"
    history.append(record(2 * NEWEST))
    for number in range(2 * NEWEST):
        assert history[number].version == number
    history.saved()
    again = FiledHistory(path, saved)
    assert path.stat().st_size == saved.end
    assert list(again) == [record(number) for number in range(2 * NEWEST)]
    again.append(record(2 * NEWEST))
    assert again[-1] == record(2 * NEWEST)


def test_a_live_view_reads_a_limited_part_of_the_file(tmp_path: Path) -> None:
    history = filled(tmp_path / "history", 4 * NEWEST)
    each = len(record(1).model_dump_json())
    first = history.first_of_last(3 * each + each // 2)
    assert 2 * NEWEST < first < 4 * NEWEST - NEWEST
    assert history.first_of_last(1 << 20) == 0


@pytest.mark.parametrize("entries", [[], [{"a": [1, {"b": "x\ny"}]}], [{"a": 1}, {"a": float("nan")}]])
def test_a_document_can_be_written_piece_by_piece(entries: list[object]) -> None:
    document = {"name": "x", "more": {"c": [1, 2]}}
    assert "".join(pieces(document, "history", entries)) == written(document | {"history": entries})
