"""A site's small files: the same contract on a disk and in memory."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hansa.common.site.files import DiskFiles, Files, job_file
from hansa.common.site.memory_files import MemoryFiles
from hansa.common.values.errors import InvalidInput
from tests.waiting import until

ARRAYS: dict[str, np.ndarray] = {
    "number": np.array(3.0),
    "nothing": np.empty((0, 3), np.float32),
    "every/second": np.arange(10, dtype=np.int16)[::2],
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "big-endian": np.arange(3, dtype=">i4"),
    "half": np.arange(3).astype(ml_dtypes.bfloat16),
}


def _on_disk(folder: Path) -> Files:
    return DiskFiles(folder / "site")


def _in_memory(folder: Path) -> Files:
    return MemoryFiles()


def _in_a_folder_in_memory(folder: Path) -> Files:
    files = MemoryFiles()
    files.write("beside", b"something else")
    return files.folder("site")


@pytest.fixture(params=[_on_disk, _in_memory, _in_a_folder_in_memory])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    empty: Files = request.param(tmp_path)
    return empty


def again(files: Files) -> Files:
    """Return the files as another process finds them."""
    back: Files = pickle.loads(pickle.dumps(files))
    return back


def let_time_pass(folder: Path) -> None:
    """Wait until a file that is written now is younger than all others: clocks of disks are coarse."""

    def now() -> int:
        (folder / "clock").write_text("")
        return (folder / "clock").stat().st_mtime_ns

    start = now()
    until(lambda: now() > start)


def test_what_is_written_is_read_by_this_process_and_by_others(files: Files) -> None:
    files.write("a.json", b"one")
    files.write("folder/deep/b.json", b"two", durable=False)
    for each in (files, again(files)):
        assert (each.read("a.json"), each.read("folder/deep/b.json")) == (b"one", b"two")
    files.write("a.json", b"three")
    assert files.read("a.json") == b"three"


def test_arrays_of_every_kind_and_texts_come_back_in_the_same_order(files: Files) -> None:
    files.write_tensors("folder/a.safetensors", ARRAYS, {"note": "Größe"})
    for each in (files, again(files)):
        for frozen in (False, True):
            arrays, texts = each.read_tensors("folder/a.safetensors", frozen)
            assert texts == each.read_texts("folder/a.safetensors") == {"note": "Größe"}
            assert list(arrays) == ["number", "big-endian", "nothing", "turned", "every/second", "half"]
            for name, array in ARRAYS.items():
                assert (arrays[name].dtype.name, arrays[name].shape) == (array.dtype.name, array.shape)
                assert np.array_equal(arrays[name], array), name


def test_a_reader_cannot_change_what_is_stored_nor_a_writer_afterwards(files: Files) -> None:
    array = np.zeros(3)
    files.write_tensors("a", {"a": array}, {"t": "x"})
    array += 1
    for each in (files, again(files)):
        arrays, texts = each.read_tensors("a")
        arrays["a"] += 5
        texts["t"] = "y"
        each.read_texts("a")["t"] = "z"
        frozen, _ = each.read_tensors("a", frozen=True)
        with pytest.raises(ValueError, match="read-only"):
            frozen["a"] += 5
        stored, texts = each.read_tensors("a")
        assert (stored["a"].tolist(), texts) == ([0, 0, 0], {"t": "x"})


def test_what_was_read_stays_as_it_was_when_the_file_is_replaced_or_deleted(files: Files) -> None:
    files.write_tensors("a", {"a": np.zeros(3)}, {})
    reads = [files.read_tensors("a", frozen)[0]["a"] for frozen in (False, True)]
    files.write_tensors("a", {"a": np.ones(3)}, {})
    files.delete("a")
    assert [array.tolist() for array in reads] == [[0, 0, 0]] * 2


def test_a_missing_file_is_missing_and_one_of_another_kind_holds_no_tensors(files: Files) -> None:
    assert not files.exists("a")
    readers: tuple[Callable[[str], object], ...] = (files.read, files.read_tensors, files.read_texts)
    for read in readers:
        with pytest.raises(FileNotFoundError):
            read("a")
    for change in (files.rename, files.link):
        with pytest.raises(FileNotFoundError):
            change("a", "b")
    files.write("a", b"text")
    for read in readers[1:]:
        with pytest.raises(InvalidInput, match="a: not a"):
            read("a")
    assert files.where("a").endswith("a")


def test_files_and_folders_are_deleted_whether_they_are_there_or_not(files: Files) -> None:
    for name in ("j/1", "j/2", "jj/1", "k"):
        files.write(name, b"")
    assert [files.exists(name) for name in ("j", "j/1", "j/3", "jj", "k")] == [True, True, False, True, True]
    for name in ("j", "j", "k", "k", "nothing/at/all"):
        files.delete(name)
    assert [files.exists(name) for name in ("j", "j/1", "jj/1", "k")] == [False, False, True, False]


def test_a_file_is_renamed_and_replaces_another(files: Files) -> None:
    files.write_tensors("pending/a", {"a": np.ones(1)}, {"t": "new"})
    files.write_tensors("a", {"a": np.zeros(1)}, {"t": "old"})
    files.rename("pending/a", "a")
    assert files.read_texts("a") == {"t": "new"}
    assert not files.exists("pending/a")
    files.rename("a", "a")
    assert files.read_texts("a") == {"t": "new"}


def test_a_second_name_stands_for_what_the_first_one_did(files: Files) -> None:
    files.write("j/1", b"one")
    files.link("j/1", "j/2")
    files.write("j/1", b"another")
    assert (files.read("j/1"), files.read("j/2")) == (b"another", b"one")
    files.delete("j/1")
    assert again(files).read("j/2") == b"one"


def test_names_are_listed_by_age(files: Files, tmp_path: Path) -> None:
    assert files.names() == files.names("nothing") == []
    for name in ("c", "a/1", "b", "d", "e/1"):
        files.write(name, b"")
        let_time_pass(tmp_path)
    assert files.names() == ["c", "a", "b", "d", "e"]
    files.write("c", b"again")
    let_time_pass(tmp_path)
    files.link("a/1", "a/2")  # changes the folder
    files.rename("b", "f")  # does not change the file
    assert files.names() == ["f", "d", "e", "c", "a"]
    assert sorted(files.names("a")) == ["1", "2"]


def test_a_folder_has_its_files_under_their_names_in_it(files: Files) -> None:
    folder = files.folder("memory").folder("j")
    folder.write("1", b"one")
    files.write("memory/j/2", b"two")
    assert (files.read("memory/j/1"), folder.read("2")) == (b"one", b"two")
    assert sorted(folder.names()) == ["1", "2"]
    assert (files.names(), files.names("memory")) == (["memory"], ["j"])
    assert folder.where("1") == files.where("memory/j/1")


def test_files_on_a_disk_are_for_their_owner_only_and_leave_no_drafts(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path / "site", clock=lambda: 100.0)
    files.write("a/b", b"")
    files.write_tensors("a/c", {}, {})
    assert (tmp_path / "site" / "a").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "site" / "a").iterdir()} == {0o600}
    assert sorted(files.names("a")) == ["b", "c"]
    os.utime(tmp_path / "site" / "a" / "b", (40, 40))
    assert files.age("a/b") == 60


def test_a_disk_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("in the way")
    files = DiskFiles(tmp_path / "site")
    with pytest.raises(FileExistsError):
        files.write("a", b"")
    with pytest.raises(NotADirectoryError):
        files.write_tensors("a/b", {}, {})
    assert files.names("a") == []


def test_memory_counts_its_bytes_and_a_linked_file_once() -> None:
    files = MemoryFiles()
    files.write_tensors("j/1", {"a": np.zeros(10)}, {"note": "abcd"})
    files.link("j/1", "j/2")
    files.folder("more").write("x", b"123")
    assert (files.nbytes, files.folder("more").nbytes, again_in_memory(files).nbytes) == (91, 3, 91)
    files.delete("j")
    assert files.nbytes == 3


def again_in_memory(files: MemoryFiles) -> MemoryFiles:
    back = again(files)
    assert isinstance(back, MemoryFiles)
    return back


def test_frozen_arrays_in_memory_are_not_copied() -> None:
    files = MemoryFiles()
    files.write_tensors("a", {"a": np.zeros(1000)}, {})
    one, two = (files.read_tensors("a", frozen=True)[0]["a"] for _ in range(2))
    assert np.shares_memory(one, two)


def test_a_job_cannot_name_a_file_elsewhere() -> None:
    assert job_file("j1", ".json") == "j1.json"
    with pytest.raises(InvalidInput, match="is not a job id"):
        job_file("../j1", ".json")
