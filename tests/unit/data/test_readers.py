"""Readers of published files: small files in the same formats; the real ones where HANSA_DATA has them."""

import csv
import gzip
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from hansa.common.data.readers.cifar import read_binary_batch, read_compact, read_python_batch
from hansa.common.data.readers.idx import read_idx
from hansa.common.data.sources import ROOT, SOURCES, read_source
from hansa.common.values.errors import InvalidData, InvalidInput, NotFound
from tests.published import write_hospitals, write_mnist

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_are_read_plain_and_compressed(tmp_path: Path, name: str, ending: str) -> None:
    x, y = write_mnist(tmp_path / name, ending)
    found = read_source(name, tmp_path)
    assert (found.examples.x[:, 0] == x).all()
    assert (found.examples.y == y).all()
    assert (found.tested, found.examples.y.dtype.name, len(found.classes)) == (10, "int64", 10)


def test_writers_become_a_key(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    np.savez(tmp_path / "mnist" / "writers.npz", train_writer=np.arange(20) // 5, test_writer=np.full(10, 77))
    key = read_source("mnist", tmp_path).keys["writer"]
    assert key.names == ("0", "1", "2", "3", "77")
    np.savez(tmp_path / "mnist" / "writers.npz", train_writer=np.arange(3), test_writer=np.arange(3))
    with pytest.raises(InvalidData, match="6 writers do not fit 30 images"):
        read_source("mnist", tmp_path)


@pytest.mark.parametrize(
    "held", [b"", b"\0\0\x08\x03\0\0\0\x02", b"not an idx file at all", b"\0\0\x0d\x01\0\0\0\x01...."]
)
def test_damaged_idx_files_are_refused(tmp_path: Path, held: bytes) -> None:
    (tmp_path / "some-idx").write_bytes(held)
    with pytest.raises(InvalidData, match="some-idx: not an idx file"):
        read_idx(tmp_path / "some-idx")


def test_labels_without_a_class_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", "")
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + bytes([17]))
    with pytest.raises(InvalidData, match=r"train-labels-idx1-ubyte: label 17 of row 19 is outside 0 … 9"):
        read_source("mnist", tmp_path)


def cifar_arrays() -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (12, 3, 32, 32)).astype(np.uint8), np.arange(12) % 10


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_cifar_python_batches_are_read_without_running_them(tmp_path: Path, module: str) -> None:
    x, y = cifar_arrays()
    held = pickle.dumps({b"data": x.reshape(12, -1), b"labels": y.tolist(), b"batch_label": b"1"}, protocol=2)
    held = held.replace(b"numpy._core.multiarray", module.encode())
    (tmp_path / "data_batch_1").write_bytes(held)
    images, labels = read_python_batch(tmp_path / "data_batch_1")
    assert (images == x).all()
    assert (labels == y).all()


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch evil",)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(InvalidData, match=r"it asks for .*system, which a data file does not need"):
        read_python_batch(tmp_path / "data_batch_1")


def test_cifar_binary_batches_and_compact_files_are_read(tmp_path: Path) -> None:
    x, y = cifar_arrays()
    records = np.concatenate([y[:, None].astype(np.uint8), x.reshape(12, -1)], axis=1)
    (tmp_path / "a.bin").write_bytes(records.tobytes())
    red, green, blue = x[:, 0], x[:, 1], x[:, 2]
    residues = np.stack([green, red - green, blue - green])
    residues = np.diff(residues, axis=3, prepend=np.uint8(0))
    residues = np.diff(residues, axis=2, prepend=np.uint8(0))
    np.savez(tmp_path / "b.npz", r=residues, y=y.astype(np.uint8))
    for images, labels in (read_binary_batch(tmp_path / "a.bin"), read_compact(tmp_path / "b.npz")):
        assert (images == x).all()
        assert (labels == y).all()
    (tmp_path / "c.bin").write_bytes(b"short")
    with pytest.raises(InvalidData, match="5 bytes are not a whole number of records"):
        read_binary_batch(tmp_path / "c.bin")


def test_all_forms_of_cifar_are_found(tmp_path: Path) -> None:
    x, y = cifar_arrays()
    records = np.concatenate([y[:, None].astype(np.uint8), x.reshape(12, -1)], axis=1)
    (tmp_path / "cifar10" / "cifar-10-batches-bin").mkdir(parents=True)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (tmp_path / "cifar10" / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(records.tobytes())
    found = read_source("cifar10", tmp_path)
    assert (len(found), found.tested, found.classes[3]) == (72, 12, "cat")


def test_covertype_is_read_in_both_forms(tmp_path: Path) -> None:
    numeric = RNG.integers(0, 3000, (20, 10))
    area, soil, y = RNG.integers(0, 4, 20), RNG.integers(0, 40, 20), RNG.integers(1, 8, 20)
    table = np.concatenate(
        [numeric, np.eye(4, dtype=int)[area], np.eye(40, dtype=int)[soil], y[:, None]], axis=1
    )
    for name in ("one", "two"):
        (tmp_path / name / "covertype").mkdir(parents=True)
    with gzip.open(tmp_path / "one" / "covertype" / "covtype.data.gz", "wt") as file:
        csv.writer(file).writerows(table.tolist())
    arrays = {"numeric": numeric.T.astype(np.int16), "wilderness": area, "soil": soil, "y": y}
    np.savez(tmp_path / "two" / "covertype" / "covertype.npz", **arrays)  # type: ignore[arg-type]
    for name in ("one", "two"):
        found = read_source("covertype", tmp_path / name)
        assert (found.examples.x == table[:, :54]).all()
        assert (found.examples.y == y - 1).all()
        assert (found.keys["soil"].codes == soil).all()
        assert len(found.columns) == 54


def test_binary_covertype_has_two_classes_and_the_soils_they_grow_on(tmp_path: Path) -> None:
    (tmp_path / "covertype").mkdir()
    soil, y = np.array([0, 3, 3, 39, 7]), np.array([1, 2, 1, 2, 5])
    arrays = {
        "numeric": np.zeros((10, 5), np.int16),
        "wilderness": np.array([0, 0, 2, 2, 3]),
        "soil": soil,
        "y": y,
    }
    np.savez(tmp_path / "covertype" / "covertype.npz", **arrays)  # type: ignore[arg-type]
    found = read_source("covertype-binary", tmp_path)
    assert found.columns[10:] == ("Rawah", "Comanche-Peak", "soil-1", "soil-4", "soil-40")
    assert found.examples.x[:, 10:].tolist() == [
        [1, 0, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 1, 0, 1, 0],
        [0, 1, 0, 0, 1],
    ]
    assert (found.examples.y.tolist(), found.classes) == ([0, 1, 0, 1], ("spruce/fir", "lodgepole pine"))
    assert found.keys["soil"].names == ("soil-1", "soil-4", "soil-40")
    with pytest.raises(NotFound, match=r"no data in .*covertype; expected there: covertype\.npz"):
        read_source("covertype-binary", tmp_path / "covertype")


def test_hospitals_are_a_key_and_patients_with_gaps_are_left_out(tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    found = read_source("heart-disease", tmp_path)
    assert np.bincount(found.keys["hospital"].codes).tolist() == [10, 11, 12, 13]
    assert found.examples.x.shape == (46, 15)
    assert found.examples.x[0].tolist() == [40, 120, 200, 150, 1.5, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert found.columns[:5] == ("age", "trestbps", "chol", "thalach", "oldpeak")


def test_roles_are_read_as_windows_in_the_order_of_their_speeches(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    speeches = [["mac", "FIRST", "a" * 50], ["mac", "SECOND", "short"], ["mac", "FIRST", "b" * 50]]
    with gzip.open(tmp_path / "shakespeare" / "shakespeare.json.gz", "wt") as file:
        json.dump({"plays": {"mac": "Macbeth"}, "speeches": speeches}, file)
    found = read_source("shakespeare", tmp_path)
    assert found.keys["role"].names == ("mac/FIRST",)  # the second role's text is shorter than a window
    assert found.examples.x.shape == (21, 80)
    text = "".join(found.classes[c] for c in found.examples.x[0])
    assert text == "a" * 50 + "\n" + "b" * 29
    assert found.classes[found.examples.y[0]] == "b"
    assert found.ordered


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"speeches": []}, "no role says more than 80 characters"),
        ({"speeches": [["mac", "FIRST", "short"]]}, "no role says more than 80 characters"),
        ({"speeches": [["mac", "FIRST"]]}, "not a file of speeches"),
        (
            {"speeches": [["mac", "FIRST", "".join(map(chr, range(300, 600)))]]},
            "300 different characters; at most 128",
        ),
    ],
)
def test_speeches_that_cannot_be_windows_are_refused(tmp_path: Path, held: object, said: str) -> None:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "shakespeare.json").write_text(json.dumps(held))
    with pytest.raises(InvalidData, match=said):
        read_source("shakespeare", tmp_path)


def test_a_missing_set_says_which_file_is_expected_where_and_who_publishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound) as caught:
        read_source("fashion-mnist", tmp_path)
    for said in (str(tmp_path / "fashion-mnist"), "train-images-idx3-ubyte", "github.com/zalandoresearch"):
        assert said in str(caught.value)
    monkeypatch.delenv(ROOT, raising=False)
    with pytest.raises(NotFound, match="Set HANSA_DATA to the folder"):
        read_source("mnist")
    monkeypatch.setenv(ROOT, str(tmp_path))
    with pytest.raises(NotFound, match="no data in"):
        read_source("mnist")


# The user's own files.


def test_a_csv_file_has_features_keys_and_a_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,ward,visits,sick\n40,north,1,no\n50.5,south,2,yes\n61,north,1,yes\n")
    found = read_source(str(tmp_path / "a.csv"))
    assert found.columns == ("age", "visits")
    assert found.examples.x.tolist() == [[40, 1], [50.5, 2], [61, 1]]
    assert (found.examples.y.tolist(), found.classes) == ([0, 1, 1], ("no", "yes"))
    assert set(found.keys) == {"ward", "visits"}
    other = read_source(str(tmp_path / "a.csv"), label="visits")
    assert (other.examples.y.tolist(), set(other.keys)) == ([1, 2, 1], {"ward", "sick"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a,y\n1,0\n,1\n",
            "column 'a' has 1 missing value, first in row 1; fill them in, or remove such rows",
        ),
        ("a,y\n1,0\nNaN,1\n", "column 'a' has 1 missing value, first in row 1"),
        ("a,y\n1,0\ninf,1\n", "NaN or infinite values in 1 row, first in row 1, column 'a'"),
        ("a,y\n1,0\n1,2,3\n", "row 1 has 3 values for 2 columns"),
        ("a,y\n", "at least one row"),
        ("a,y\nx,1\nz,2\n", "no column of numbers besides the label 'y'"),
        (
            "a;b;y\n1;2;0\n3;4;1\n",
            "it seems to have a single column: save it with commas between the columns",
        ),
        ("a,a,y\n1,2,0\n", "there are two columns 'a'"),
        ("5.1,-3.5,1e3,0\n4.9,3,1,1\n", "the first line holds numbers; it must hold the names"),
        (",a,y\n0,7,1\n", "column 1 has no name; name it, or leave it out if it only counts the rows"),
        (f"a,b,y\n1,{'z' * 200_000},0\n", "not a CSV file: .*field larger than field limit"),
    ],
)
def test_a_damaged_csv_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InvalidData, match=said):
        read_source(str(tmp_path / "a.csv"))


def test_a_label_that_is_not_a_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,sick\n1,0\n")
    with pytest.raises(InvalidInput, match="there is no column 'sik' for the label \\(did you mean 'sick'"):
        read_source(str(tmp_path / "a.csv"), label="sik")


def test_a_parquet_file_is_read_like_a_csv_file(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"age": [40.0, 50.5], "ward": ["n", "s"], "y": [1, 0]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = read_source(str(tmp_path / "a.parquet"))
    assert found.examples.x.tolist() == [[40], [50.5]]
    assert found.examples.y.tolist() == [1, 0]
    assert found.keys["ward"].names == ("n", "s")
    parquet.write_table(arrow.table({"age": [40.0, None], "y": [1, 0]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidData, match="column 'age' has 1 missing value; fill them in"):
        read_source(str(tmp_path / "b.parquet"))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(InvalidData, match=r"c\.parquet: not a Parquet file"):
        read_source(str(tmp_path / "c.parquet"))


def test_an_npz_file_brings_its_keys_and_is_checked_for_nan(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.arange(4), ward=np.array(["n", "s", "n", "s"]))
    assert read_source(str(tmp_path / "a.npz")).keys["ward"].names == ("n", "s")
    np.savez(tmp_path / "b.npz", x=np.array([[1.0], [np.nan]]), y=np.arange(2))
    with pytest.raises(InvalidData, match="first in row 1, feature 0"):
        read_source(str(tmp_path / "b.npz"))
    np.savez(tmp_path / "c.npz", x=np.ones((4, 2)), y=np.arange(3))
    with pytest.raises(InvalidData, match="one row per example"):
        read_source(str(tmp_path / "c.npz"))
    np.savez(tmp_path / "d.npz", x=np.ones((4, 2)), y=np.array([1.5, 2, np.nan, 3]))
    with pytest.raises(InvalidData, match="first in row 2, column 'y'"):
        read_source(str(tmp_path / "d.npz"))
    np.savez(tmp_path / "e.npz", x=np.array(["a", "b"]), y=np.arange(2))
    with pytest.raises(InvalidData, match=r"x holds str.*; numbers are needed"):
        read_source(str(tmp_path / "e.npz"))
    np.savez(tmp_path / "f.npz", x=np.ones((2, 2)), y=np.array([1j, 2j]))
    with pytest.raises(InvalidData, match="'y' are complex128; numbers or words are needed"):
        read_source(str(tmp_path / "f.npz"))


def test_labels_that_are_words_become_classes_whatever_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, 1)), y=np.array(["yes", "no", "yes"]))
    np.savez(tmp_path / "b.npz", x=np.ones((3, 1)), y=np.array([True, False, True]))
    words, truths = read_source(str(tmp_path / "a.npz")), read_source(str(tmp_path / "b.npz"))
    assert (words.examples.y.tolist(), words.classes) == ([1, 0, 1], ("no", "yes"))
    assert (truths.examples.y.tolist(), truths.examples.y.dtype.kind) == ([1, 0, 1], "i")


@pytest.mark.parametrize("name", ["digits", "a.npz"])
def test_only_tables_take_a_column_for_the_label(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, 1)), y=np.arange(3))
    with pytest.raises(InvalidInput, match=r"data\.label: .* has its own labels"):
        read_source(name if name == "digits" else str(tmp_path / name), label="sick")


def write_images(folder: Path, size: tuple[int, int] = (4, 6)) -> None:
    images = pytest.importorskip("PIL.Image", reason="Pillow is an extra")
    for part in ("train", "test"):
        for label, name in enumerate(("cat", "dog")):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for number in range(3 if part == "train" else 1):
                pixels = np.full((*size, 3), 10 * label + number, np.uint8)
                images.fromarray(pixels).save(folder / part / name / f"{number}.png")


def test_a_folder_of_images_has_a_class_for_each_folder(tmp_path: Path) -> None:
    write_images(tmp_path)
    found = read_source(str(tmp_path))
    assert (found.examples.x.shape, found.tested, found.classes) == ((8, 3, 4, 6), 2, ("cat", "dog"))
    assert found.examples.x[4, 0, 0, 0] == 11
    assert found.examples.y.tolist() == [0, 0, 0, 1, 1, 1, 0, 1]


def test_hidden_folders_and_files_are_not_data(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "train" / "cat" / "._0.png").write_bytes(b"what a desktop leaves behind")
    assert read_source(str(tmp_path)).classes == ("cat", "dog")


def test_folders_that_cannot_be_one_data_set_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    (tmp_path / "a" / "train" / "bird").mkdir()
    with pytest.raises(InvalidData, match="class 'bird' is empty"):
        read_source(str(tmp_path / "a"))
    write_images(tmp_path / "b")
    write_images(tmp_path / "c", (5, 5))
    (tmp_path / "c" / "train" / "cat" / "0.png").rename(tmp_path / "b" / "train" / "dog" / "odd.png")
    with pytest.raises(InvalidData, match=r"odd\.png: 5×5 pixels, but others have 6×4"):
        read_source(str(tmp_path / "b"))
    images = pytest.importorskip("PIL.Image")
    write_images(tmp_path / "e")
    images.fromarray(np.full((4, 6), 3000, np.uint16)).save(tmp_path / "e" / "train" / "cat" / "deep.png")
    with pytest.raises(InvalidData, match=r"deep\.png: more than 8 bits"):
        read_source(str(tmp_path / "e"))
    (tmp_path / "d").mkdir()
    with pytest.raises(InvalidData, match="one folder per class"):
        read_source(str(tmp_path / "d"))


# The published sets themselves.

SHAPES = {
    "mnist": ((70_000, 1, 28, 28), 10_000, [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]),
    "fashion-mnist": ((70_000, 1, 28, 28), 10_000, [7000] * 10),
    "covertype": ((581_012, 54), 0, [211_840, 283_301, 35_754, 2747, 9493, 17_367, 20_510]),
    "covertype-binary": ((495_141, 49), 0, [211_840, 283_301]),
    "heart-disease": ((740, 15), 0, [357, 383]),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_published_sets_are_what_their_authors_say(name: str) -> None:
    root = os.environ.get(ROOT)
    if not root or SOURCES[name].find(Path(root)) is None:
        pytest.skip(f"{name} is not below HANSA_DATA")
    found = read_source(name)
    shape, tested, classes = SHAPES[name]
    assert (found.examples.x.shape, found.tested) == (shape, tested)
    assert np.bincount(found.examples.y).tolist() == classes
