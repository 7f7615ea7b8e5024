"""Apps and data: how an app is loaded from a reference, and which data are refused."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hansa import App, Examples
from hansa.common.app import load_app
from hansa.common.data.examples import load_npz
from hansa.common.torch import networks
from hansa.common.values.errors import InvalidApp, InvalidData, Refused
from hansa.common.values.results import Evaluation
from tests.unit.samples import loaded

SOURCE = """
from hansa import App
app = App(model=lambda: None, classes=3)
other = 5
"""


def _app(tmp_path: Path, source: str = SOURCE, name: str = "app.py") -> str:
    path = tmp_path / name
    path.write_text(source, encoding="utf-8")
    return f"{path}:app"


# References.


def test_an_app_is_found_by_its_path(tmp_path: Path) -> None:
    app = load_app(_app(tmp_path))
    assert isinstance(app, App)
    assert app.classes == 3


def test_an_app_is_found_by_a_path_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _app(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_app("app.py:app").classes == 3


def test_an_app_is_found_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _app(tmp_path, name="hansa_test_module_app.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_app("hansa_test_module_app:app").classes == 3


def test_an_app_may_have_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_the_app.py").write_text("CLASSES = 7\n", encoding="utf-8")
    source = "from hansa import App\nimport beside_the_app\n"
    source += "app = App(model=list, classes=beside_the_app.CLASSES)\n"
    assert load_app(_app(tmp_path, source)).classes == 7


def test_two_apps_of_the_same_file_name_do_not_mix(tmp_path: Path) -> None:
    for folder, classes in (("one", 2), ("two", 5)):
        (tmp_path / folder).mkdir()
        _app(tmp_path / folder, SOURCE.replace("classes=3", f"classes={classes}"))
    assert load_app(f"{tmp_path}/one/app.py:app").classes == 2
    assert load_app(f"{tmp_path}/two/app.py:app").classes == 5


@pytest.mark.parametrize("ref", ["", "app", "app.py", ":app", "app.py:"])
def test_what_is_not_a_reference_is_refused(ref: str) -> None:
    with pytest.raises(InvalidApp, match="is not an app reference"):
        load_app(ref)


def test_a_missing_file_is_named_with_the_folder_it_was_expected_from(tmp_path: Path) -> None:
    with pytest.raises(InvalidApp, match=r"nothing\.py: no such file \(looked from "):
        load_app(f"{tmp_path}/nothing.py:app")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_that_name", "importing it failed: ModuleNotFoundError"),
        ("def (", "importing it failed: SyntaxError"),
        ("1 / 0", "importing it failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "importing it failed: SystemExit: 3"),
        ("x = 1", "has no attribute 'app'"),
        ("app = 5", "app is of type int; it must be a hansa.App"),
        ("from hansa import App\napp = App", "app is of type type; it must be a hansa.App"),
        ("from hansa import App\napp = App(model=list)", "needs classes="),
    ],
)
def test_an_app_that_cannot_be_loaded_is_refused_with_the_reason(
    tmp_path: Path, source: str, said: str
) -> None:
    with pytest.raises(InvalidApp) as caught:
        load_app(_app(tmp_path, source))
    assert said in str(caught.value)
    assert "app.py" in str(caught.value), "the file is named in every refusal"
    assert "\n" not in str(caught.value)


def test_a_missing_module_is_refused() -> None:
    with pytest.raises(InvalidApp, match="importing it failed: ModuleNotFoundError"):
        load_app("nothing_of_that_name.at_all:app")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"task": "ranking", "classes": 2}, "task 'ranking'"),
        ({"classes": None}, "needs classes="),
        ({"classes": 1}, "needs classes="),
        ({"task": "multilabel"}, "needs classes=, the number of labels"),
        ({"task": "multilabel", "classes": 0}, "needs classes=, the number of labels"),
        ({"task": "multilabel", "classes": 16_385}, r"\(1 to 16384\)"),
        ({"model": 5, "classes": 2}, "must be a function"),
        ({"model": torch.nn.Linear(2, 2), "classes": 2}, "must be a function that returns the network"),
        ({"classes": 2, "train": print}, "both train= and evaluate="),
        ({"classes": 2, "evaluate": print}, "both train= and evaluate="),
    ],
)
def test_an_invalid_app_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidApp, match=said):
        App(**{"model": list, **fields})


@pytest.mark.parametrize("name", ["größe", "my layer", "a//b", "\x1b[2J"])
def test_a_model_with_names_that_cannot_travel_is_refused(name: str) -> None:
    layer = torch.nn.Module()
    layer.add_module(name, torch.nn.Linear(2, 2))
    for network in (layer, {name: np.zeros((2, 2))}):
        with pytest.raises(
            InvalidApp, match=r"the app's model: .* cannot be the name of a tensor or layer: use up to"
        ):
            networks.describe(network)


def test_a_regression_app_needs_no_classes() -> None:
    assert App(model=list, task="regression").classes is None


@pytest.mark.parametrize("classes", [1, 3])
def test_an_app_counts_as_many_classes_as_it_says(classes: int) -> None:
    def evaluate(arrays: Any, examples: Examples) -> Evaluation:
        return Evaluation(n=3, loss_sum=1.0, confusion=np.eye(classes, dtype=int) * (3 // classes))

    app = App(model=dict, classes=2, train=lambda arrays, _: arrays, evaluate=evaluate)
    with pytest.raises(
        Refused, match=f"evaluate function counted {classes} classes, but the app has classes=2"
    ):
        app.measured({}, Examples(np.zeros((3, 1)), np.zeros(3, np.int64)))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (((2, 1, 0), (0, 0, 3)), ""),
        (((2, 1, 1),), "made an invalid Evaluation: TP, FP and FN of label 0 are more than 3 examples"),
        (((2, 1),), "made an invalid Evaluation: 2 counts for each label; TP, FP and FN are needed"),
    ],
)
def test_an_app_that_evaluates_by_itself_may_count_labels(counts: Any, said: str) -> None:
    def evaluate(arrays: Any, examples: Examples) -> Evaluation:
        return Evaluation(n=len(examples), loss_sum=1.0, labels=counts)

    app = App(model=dict, task="multilabel", classes=2, train=lambda arrays, _: arrays, evaluate=evaluate)
    examples = Examples(np.zeros((3, 1)), np.zeros((3, 2), np.int64))
    with pytest.raises(Refused, match=said) if said else nullcontext():
        assert app.measured({}, examples).labels == counts


# Data.

APP = App(model=list, classes=3)
X = np.arange(8, dtype=np.float32).reshape(4, 2)
Y = np.array([0, 1, 2, 0])


def _npz(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return path


def _with_nan(x: np.ndarray, row: int, value: float = np.nan) -> np.ndarray:
    x = x.copy()
    x[row, -1] = value
    return x


def test_x_and_y_are_read_and_a_test_part_if_there_is_one(tmp_path: Path) -> None:
    path = _npz(tmp_path, x=X, y=Y, x_test=X[:2] + 100, y_test=Y[:2])
    assert loaded(APP, path, "train").x.tolist() == X.tolist()
    held = loaded(APP, path, "test")
    assert (held.x.tolist(), len(held)) == ((X[:2] + 100).tolist(), 2)


def test_without_a_test_part_the_test_split_is_all_there_is(tmp_path: Path) -> None:
    assert len(APP.load(_npz(tmp_path, x=X, y=Y), "test")) == 4


def test_rows_can_be_taken() -> None:
    taken = Examples(X, Y).take(np.array([3, 1]))
    assert taken.x.tolist() == [X[3].tolist(), X[1].tolist()]
    assert taken.y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, "it has no array 'y', only x"),
        ({"y": Y}, "it has no array 'x', only y"),
        ({}, "it has no array 'x'"),
        ({"x": X, "y": Y[:3]}, "they need one row per example"),
        ({"x": np.float32(1), "y": Y}, "they need one row per example"),
        ({"x": X, "y": np.array([0, 1, 3, 4])}, "label 3 at row 2 is outside 0 … 2 (2 such labels)"),
        ({"x": X, "y": np.array([0, -1, 2, 0])}, "label -1 at row 1 is outside 0 … 2 (1 such label)"),
        ({"x": X, "y": Y.astype(np.float64)}, "labels must be integers, these are float64"),
        (
            {"x": X, "y": np.array(["a", "b", "c", "d"])},
            "the labels are words (a, b, c, d), and other sites may have others; name all of them in the app",
        ),
        ({"x": _with_nan(X, 2), "y": Y}, "x holds NaN or infinite values in 1 row, first in row 2"),
        ({"x": _with_nan(X, 1, np.inf), "y": Y}, "x holds NaN or infinite values in 1 row, first in row 1"),
        ({"x": np.array(["a", "b", "c", "d"]), "y": Y}, "x"),
    ],
)
def test_data_a_site_cannot_learn_from_is_refused_naming_file_and_place(
    tmp_path: Path, arrays: dict[str, np.ndarray], said: str
) -> None:
    path = _npz(tmp_path, **arrays)
    with pytest.raises(InvalidData) as caught:
        APP.load(path, "train")
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool"])
def test_an_example_may_have_several_labels_or_none(tmp_path: Path, kind: str) -> None:
    y = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], kind)
    held = loaded(App(model=list, task="multilabel", classes=3), _npz(tmp_path, x=X, y=y), "train")
    assert held.y.tolist() == y.tolist()


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([[0, 1], [1, 0], [0, 2], [3, 1]], "label 2 at row 2 is outside 0 … 1 (2 such labels)"),
        ([[0, 1], [1, 0], [0, 1], [-1, 1]], "label -1 at row 3 is outside 0 … 1 (1 such label)"),
        ([[0.0, 1.0]] * 4, "labels must be integers or booleans, these are float64"),
        ([["a", "b"]] * 4, "labels must be integers or booleans"),
        ([[0, 1, 0]] * 4, "y has shape [4, 3]: it needs 2 columns of 0 and 1"),
        ([0, 1, 1, 0], "y has shape [4]: it needs 2 columns of 0 and 1"),
        ([[[0, 1]]] * 4, "y has shape [4, 1, 2]: it needs 2 columns of 0 and 1"),
        ([[0, 1]] * 3, "they need one row per example"),
    ],
)
def test_labels_that_an_example_cannot_have_are_refused(tmp_path: Path, y: list[Any], said: str) -> None:
    with pytest.raises(InvalidData) as caught:
        App(model=list, task="multilabel", classes=2).load(_npz(tmp_path, x=X, y=np.array(y)), "train")
    assert said in str(caught.value)


def test_targets_of_a_regression_must_be_finite(tmp_path: Path) -> None:
    path = _npz(tmp_path, x=X, y=np.array([0.0, np.inf, np.nan, 1.0]))
    with pytest.raises(InvalidData, match="y holds NaN or infinite values in 2 rows, first in row 1"):
        App(model=list, task="regression").load(path, "train")


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    path = _npz(tmp_path, x=np.array([{"a": 1}, None, 2, "x"], dtype=object), y=Y)
    with pytest.raises(InvalidData, match="x or y is an array of Python objects; save arrays of numbers"):
        APP.load(path, "train")


def test_arrays_of_objects_from_the_apps_own_loader_are_refused() -> None:
    def load(path: Path, split: str) -> Examples:
        return Examples(np.array([None] * 4), Y)

    app = App(model=list, classes=3, data=load)
    with pytest.raises(InvalidData, match="holds object; numbers are needed"):
        app.load(Path("x"), "train")


def _missing(path: Path) -> None:
    pass


def _words(path: Path) -> None:
    path.write_text("no data here", encoding="utf-8")


def _cut_off(path: Path) -> None:
    np.savez(path, x=np.zeros((50, 50)), y=np.zeros(50, np.int64))
    path.write_bytes(path.read_bytes()[:2000])


def _one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, X)


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [_missing, _words, _cut_off, _one_array, _folder])
def test_a_file_that_is_not_npz_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "data.npz"
    make(path)
    with pytest.raises(InvalidData, match=r"data\.npz: "):
        load_npz(path, "train")


@pytest.mark.parametrize("make", [_words, _one_array])
def test_what_is_not_npz_is_refused_without_numpys_jargon(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "data.csv"
    make(path)
    with pytest.raises(InvalidData, match=r"data\.csv: not a valid \.npz file .*; `np\.savez"):
        load_npz(path, "train")


def test_a_loader_that_fails_is_refused_with_the_reason() -> None:
    def load(path: Path, split: str) -> Examples:
        raise KeyError("column")

    with pytest.raises(InvalidData, match="the app's data loader failed: KeyError: 'column'"):
        App(model=list, classes=3, data=load).load(Path("x"), "train")


def test_an_empty_shard_is_not_an_error(tmp_path: Path) -> None:
    assert len(APP.load(_npz(tmp_path, x=X[:0], y=Y[:0]), "train")) == 0
