"""The user's own data: `hansa run` and sites read them by the same code, and sites agree on their meaning."""

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.app import App
from hansa.common.data.division import divide
from hansa.common.data.examples import Examples
from hansa.common.data.own import read_site
from hansa.common.data.site_files import agreed, found_files
from hansa.common.data.sources import read_source
from hansa.common.job.spec import DataSpec
from hansa.common.values.errors import HansaError, InvalidApp, InvalidData, InvalidInput
from tests.unit.samples import loaded

TABLE = "age,town,height,sick\n40,Ulm,1.5,no\n50,Bonn,1.6,yes\n61,Ulm,1.7,yes\n"
WORDS = ("maybe", "no", "yes")


def app_of(**more: Any) -> App:
    return App(**{"model": list, "classes": 3, "class_names": WORDS, **more})


def write(folder: Path, name: str, text: str = TABLE) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.CSV"])
def test_a_site_reads_a_table_with_columns_of_words(tmp_path: Path, name: str) -> None:
    held = loaded(app_of(), write(tmp_path, name), "train")
    assert held.x.tolist() == pytest.approx(np.array([[40, 1.5], [50, 1.6], [61, 1.7]]))
    assert held.y.tolist() == [1, 2, 2], "numbered by the app's words, though this site has no 'maybe'"


def test_a_site_reads_what_is_split_for_it_to_the_same_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv")
    own = loaded(app_of(), path, "train")
    spec = DataSpec(source=str(path), test=0)
    parted = divide(spec, 1, 1, app=app_of()).data.examples
    assert (parted.x.tolist(), parted.y.tolist()) == (own.x.tolist(), own.y.tolist())
    whole = read_source(str(path)).examples
    assert whole.y.tolist() == [0, 1, 1], "a set that is seen as a whole is numbered by what it has"


def test_parquet_is_read_like_csv_or_says_how_to_install_what_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        HansaError, match=r"a\.parquet: reading Parquet needs pyarrow: pip install 'hansa\[data\]'"
    ):
        loaded(app_of(), path, "train")
    monkeypatch.undo()
    arrow = pytest.importorskip("pyarrow")
    columns = {"age": [40, 50, 61], "town": ["Ulm", "Bonn", "Ulm"], "height": [1.5, 1.6, 1.7]}
    table = arrow.table(columns | {"sick": ["no", "yes", "yes"]})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    held, text = loaded(app_of(), path, "train"), loaded(app_of(), write(tmp_path, "a.csv"), "train")
    assert (held.x.tolist(), held.y.tolist()) == (text.x.tolist(), text.y.tolist())


def test_a_site_reads_a_folder_of_images_with_the_numbers_of_the_apps_words(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part, name, value in (("train", "no", 10), ("train", "yes", 200), ("test", "yes", 250)):
        (tmp_path / "a" / part / name).mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((2, 2), value, np.uint8)).save(tmp_path / "a" / part / name / f"{value}.png")
    assert loaded(app_of(), tmp_path / "a", "train").y.tolist() == [1, 2]
    assert loaded(app_of(), tmp_path / "a", "test").x.ravel().tolist() == [250] * 4
    assert loaded(app_of(), tmp_path / "a", "all").y.tolist() == [1, 2, 2]
    with pytest.raises(InvalidData, match="the labels are words"):
        app_of(class_names=()).load(tmp_path / "a", "train")


def test_labels_that_are_words_may_stand_in_an_npz_file(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        x=np.zeros((2, 3)),
        y=np.array(["yes", "no"]),
        x_test=np.ones((1, 3)),
        y_test=["maybe"],
    )
    assert loaded(app_of(), tmp_path / "a.npz", "train").y.tolist() == [2, 1]
    assert loaded(app_of(), tmp_path / "a.npz", "test").y.tolist() == [0]


def test_an_app_says_which_column_is_the_label_and_which_are_features(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "sick,b,a,c\n1,2,3,4\n0,5,6,7\n")
    app = App(model=list, classes=2, label="sick", columns=("a", "b"))
    held = loaded(app, path, "train")
    assert (held.x.tolist(), held.y.tolist()) == ([[3, 2], [6, 5]], [1, 0])
    parted = divide(DataSpec(source=str(path), test=0), 1, 1, app=app).data
    assert (parted.examples.x.tolist(), parted.columns) == ([[3, 2], [6, 5]], ("a", "b"))
    with pytest.raises(InvalidInput, match=r"data\.label: the job has 'a', but the app has label='sick'"):
        divide(DataSpec(source=str(path), label="a", test=0), 1, 1, app=app)


@pytest.mark.parametrize(
    ("name", "text", "changes", "said"),
    [
        (
            "a.txt",
            TABLE,
            {},
            "a.txt: unknown format; give an .npz, .csv, .csv.gz or .parquet file, or",
        ),
        ("a.csv", "", {}, "a.csv: a line of column names and at least one row are needed"),
        ("a.csv", "age,sick\n", {}, "a.csv: a line of column names and at least one row are needed"),
        ("a.csv", TABLE, {"label": "ill"}, "a.csv: there is no column 'ill' for the label"),
        (
            "a.csv",
            TABLE,
            {"columns": ("age", "size")},
            "a.csv: no column of numbers 'size', which the app's columns name",
        ),
        ("a.csv", TABLE, {"columns": ("age", "town")}, "a.csv: no column of numbers 'town'"),
        (
            "a.csv",
            TABLE,
            {"classes": 2, "class_names": ("no", "yess")},
            "label 'yes' is not among the app's class_names",
        ),
        (
            "a.csv",
            TABLE,
            {"class_names": ()},
            "a.csv: the labels are words (no, yes), and other sites may have others",
        ),
        ("a.csv", "age,sick\n1,7\n", {}, "a.csv: label 7 at row 0 is outside 0 … 2"),
        ("a.csv", TABLE, {"task": "regression", "classes": None, "class_names": ()}, "needs numbers"),
        ("a.npz", "nonsense", {}, "a.npz: not a valid .npz file"),
    ],
)
def test_what_a_site_cannot_read_is_described_in_one_sentence_with_the_file(
    tmp_path: Path, name: str, text: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(HansaError) as refused:
        loaded(app_of(**changes), write(tmp_path, name, text), "train")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"class_names": ("yes", "no", "maybe")},
            "alphabetical order, which numbers the classes: ('maybe', 'no', 'yes')",
        ),
        ({"class_names": ("no", "yes")}, "class_names= must name each of the app's classes once"),
        ({"columns": ("a", "a"), "class_names": ()}, "columns= must name each feature once"),
        ({"columns": "age", "class_names": ()}, "columns= must name each feature once"),
        ({"data": list}, "data= reads them itself"),
    ],
)
def test_an_app_that_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidApp) as refused:
        app_of(**changes)
    assert said in str(refused.value)


# The sites' own files.


def test_files_are_found_beside_the_job_file_in_the_order_of_their_sites(tmp_path: Path) -> None:
    write(tmp_path, "b.csv")
    write(tmp_path, "a.csv")
    found = found_files({"ben": "b.csv", "ana": str(tmp_path / "a.csv")}, tmp_path)
    assert list(found.items()) == [("ana", tmp_path / "a.csv"), ("ben", tmp_path / "b.csv")]
    assert list(found_files({f"site-{n}": "a.csv" for n in (10, 2, 1)}, tmp_path)) == [
        "site-1",
        "site-2",
        "site-10",
    ]
    with pytest.raises(InvalidInput) as refused:
        found_files({"ben": "b.csv", "cleo": "c.csv", "dan": "d.csv"}, tmp_path)
    assert f"cleo ({tmp_path / 'c.csv'}), dan ({tmp_path / 'd.csv'})" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,town,sick\n1,Ulm,no\n", "its features differ from those of ana: it lacks height;"),
        (TABLE.replace("town", "x").replace("Ulm", "1").replace("Bonn", "2"), "it also has x"),
        ("height,age,sick\n1.5,40,no\n", "they are in another order"),
        ("age,height,sick\n1,1.5,nein\n", "the label 'nein' is not among the app's class_names"),
        ("", "at least one row"),
    ],
)
def test_sites_whose_tables_do_not_agree_are_refused_with_site_and_file(
    tmp_path: Path, text: str, said: str
) -> None:
    files = {"ana": write(tmp_path, "a.csv"), "ben": write(tmp_path, "b.csv", text)}
    with pytest.raises(InvalidData) as refused:
        agreed(app_of(), files)
    assert str(refused.value).startswith(f"data.files.ben: {files['ben']}: ")
    assert said in str(refused.value)


def test_other_shapes_and_empty_files_are_refused(tmp_path: Path) -> None:
    for name, shape in (("a", (4, 3)), ("b", (4, 5)), ("c", (0, 3))):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros(shape), y=np.zeros(shape[0], int))
    with pytest.raises(InvalidData, match=r"an example has the shape \[5\], but at a it has \[3\]"):
        agreed(app_of(), {name: tmp_path / f"{name}.npz" for name in "ab"})
    with pytest.raises(InvalidData, match=r"data\.files\.c: .*c\.npz: it has no examples"):
        agreed(app_of(), {name: tmp_path / f"{name}.npz" for name in "ac"})


def test_features_without_names_are_compared_by_their_number_only(tmp_path: Path) -> None:
    files = {"ana": write(tmp_path, "a.csv"), "ben": tmp_path / "b.npz"}
    np.savez(files["ben"], x=np.zeros((4, 2), np.float32), y=np.zeros(4, int))
    assert agreed(app_of(), files) == "validation"
    np.savez(files["ben"], x=np.zeros((4, 3), np.float32), y=np.zeros(4, int))
    with pytest.raises(
        InvalidData, match=r"data\.files\.ben: .*an example has the shape \[3\], but at ana it has \[2\]"
    ):
        agreed(app_of(), files)


def test_test_rows_are_used_if_every_site_has_some(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((4, 3)), "y": np.zeros(4, int)}
    test = {"x_test": np.ones((2, 3)), "y_test": np.zeros(2, int)}
    np.savez(tmp_path / "a.npz", allow_pickle=False, **arrays, **test)
    np.savez(tmp_path / "b.npz", allow_pickle=False, **arrays)
    assert agreed(app_of(), {"a": tmp_path / "a.npz"}) == "test"
    assert agreed(app_of(), {name: tmp_path / f"{name}.npz" for name in "ab"}) == "validation"
    assert read_site(app_of(), tmp_path / "a.npz", "train").tested


def test_a_loader_of_the_app_is_asked_and_one_that_ignores_the_split_has_no_test_rows(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])

    def heeds(path: Path, split: str) -> Examples:
        return Examples(x, y) if split == "train" else Examples(x[:1] + 1, y[:1])

    def ignores(path: Path, split: str) -> Examples:
        return Examples(x, y)

    def knows_none(path: Path, split: str) -> Examples:
        return {"train": Examples(x, y)}[split]

    for loader, wanted in ((heeds, "test"), (ignores, "validation"), (knows_none, "validation")):
        assert agreed(App(model=list, classes=2, data=loader), {"a": tmp_path}) == wanted
        both = loaded(App(model=list, classes=2, data=loader), tmp_path, "all")
        assert both.x.tolist() == [*x.tolist(), *([[1.0, 2.0]] if loader is heeds else [])]
        assert len(both.y) == len(both.x)


def test_all_rows_are_those_for_training_and_those_for_testing(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((4, 3)), "y": np.array([0, 1, 2, 0])}
    test = {"x_test": np.ones((2, 3)), "y_test": np.array([2, 1])}
    np.savez(tmp_path / "a.npz", allow_pickle=False, **arrays, **test)
    np.savez(tmp_path / "b.npz", allow_pickle=False, **arrays)
    both = loaded(app_of(), tmp_path / "a.npz", "all")
    assert (both.x[:, 0].tolist(), both.y.tolist()) == ([0, 0, 0, 0, 1, 1], [0, 1, 2, 0, 2, 1])
    assert loaded(app_of(), tmp_path / "b.npz", "all").y.tolist() == [0, 1, 2, 0]
    assert loaded(app_of(), write(tmp_path, "a.csv"), "all").y.tolist() == [1, 2, 2]
