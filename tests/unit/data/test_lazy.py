"""Datasets: what of them is looked at when they are loaded, and what works by row numbers alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.data.holdout import parts, rows_of
from hansa.common.data.lazy import LazyExamples
from hansa.common.data.site_files import agreed
from hansa.common.data.standard import profile, profile_of
from hansa.common.values.errors import InvalidApp, InvalidData, Refused
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.settings.training import Standard, ValidationSpec
from hansa.common.values.tasks import Init, Task

HERE = Path("site.h5")
ROWS = 40


class Counted:
    """Pairs of features and label, which notes what was read; the labels may be known."""

    def __init__(self, known: object = None, rows: int = ROWS) -> None:
        self.read: list[int] = []
        self.x = np.random.default_rng(0).normal(3, 2, (rows, 4)).astype(np.float32)
        self.y = np.arange(rows) % 3
        if known is not None:
            self.targets = known

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        return torch.from_numpy(self.x[row]), int(self.y[row])


class Endless(IterableDataset[int]):
    """A Dataset without row numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


class Wordless:
    """A Dataset that cannot say how long it is."""

    def __len__(self) -> int:
        raise OSError("the disk is gone")

    def __getitem__(self, row: int) -> int:
        return row


def app_of(data: object, **more: Any) -> App:
    fields: dict[str, Any] = {"model": list, "classes": 3, "data": lambda _path, _split: data}
    return App(**fields | more)


def lazy(data: object, **more: Any) -> LazyExamples:
    examples = app_of(data, **more).load(HERE, "train")
    assert isinstance(examples, LazyExamples)
    return examples


def task_of(standard: Standard | None = None, **validation: Any) -> Task:
    ids = {"id": TaskId("j-1"), "job": JobId("j"), "site": SiteName("a")}
    part = ValidationSpec(**{"fraction": 0.2} | validation)
    return Task(**ids, round=1, app="a.py:app", seed=7, validation=part, standard=standard, work=Init())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "returned a NoneType; return Examples"),
        ((np.zeros(3), np.zeros(3)), "returned a tuple; return Examples"),
        (Endless(), "Endless, which has no length or no numbered examples.*not an iterable one"),
        (Wordless(), "cannot say its length: OSError: the disk is gone"),
        (Counted([0, 1]), "has 40 examples, but 2 targets"),
        (Counted(np.arange(ROWS)), "label 3 at row 3 is outside 0 … 2"),
        (Counted(np.zeros(ROWS)), "labels must be integers, these are float64"),
    ],
)
def test_what_is_not_a_dataset_with_labels_of_the_app_is_refused(data: object, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        app_of(data).load(HERE, "train")


def test_loading_hold_out_and_windows_read_no_example() -> None:
    data = Counted(np.arange(ROWS) % 3)
    examples = lazy(data)
    train, validation = parts(examples, task_of())
    in_memory = parts(Examples(data.x, data.y), task_of())
    for one, other in zip((train, validation), in_memory, strict=True):
        assert np.array_equal(data.x[one.rows], other.x), "the same rows as in memory"
    assert not data.read
    assert validation.take(np.array([1]))[0][1] == in_memory[1].y[1]
    assert len(data.read) == 1


def test_a_stratified_hold_out_needs_labels_and_says_how_to_do_without() -> None:
    examples = lazy(Counted())
    with pytest.raises(InvalidData, match=r"site\.h5: a stratified hold-out.*`targets`.*stratified: false"):
        rows_of(examples, task_of())
    assert [len(rows) for rows in rows_of(examples, task_of(stratified=False))] == [32, 8]
    assert [len(rows) for rows in rows_of(examples, task_of(fraction=0))] == [40, 0]
    assert [len(rows) for rows in rows_of(lazy(Counted(), task="regression"), task_of())] == [32, 8]


@pytest.mark.parametrize("columns", [None, 2])
def test_standardised_examples_are_those_in_memory(columns: int | None) -> None:
    data = Counted(np.arange(ROWS) % 3)
    found, wanted = profile_of(lazy(data), columns), profile(data.x, columns)
    assert found.mean == pytest.approx(wanted.mean, rel=1e-14)
    assert found.m2 == pytest.approx(wanted.m2, rel=1e-13)
    standard = Standard(kind="global", mean=(3.0, 1.0), deviation=(2.0, 0.3))
    for one, other in zip(
        parts(lazy(data), task_of(standard)), parts(Examples(data.x, data.y), task_of(standard)), strict=True
    ):
        assert torch.equal(torch.stack([x for x, _ in one]), torch.from_numpy(other.x))  # type: ignore[attr-defined]
    local = parts(lazy(data), task_of(Standard(kind="local", columns=columns)))[0]
    mean = torch.stack([x for x, _ in local])[:, :2].double().mean(dim=0)  # type: ignore[attr-defined]
    assert mean.tolist() == pytest.approx([0, 0], abs=1e-6)


def test_examples_without_a_table_of_features_cannot_be_standardised() -> None:
    examples = lazy([{"x": torch.zeros(2), "labels": 0}])
    with pytest.raises(InvalidData, match="pairs of features and target, and the Dataset returns a dict"):
        profile_of(examples, None)


def test_a_dataset_that_grows_is_refused() -> None:
    data = Counted()
    examples = lazy(data)
    data.x = np.concatenate([data.x, data.x])
    with pytest.raises(InvalidData, match=r"had 40 examples when it was loaded, and has 80 now"):
        examples.require_same_length()


def test_an_example_that_cannot_be_read_is_named_and_may_be_tried_again() -> None:
    data = Counted()
    last = lazy(data).take(np.array([3, 39]))
    data.x = data.x[:39]
    with pytest.raises(Refused, match=r"site\.h5: the Dataset failed at example 39 of 40: IndexError"):
        last[1]


def test_all_rows_are_those_for_training_and_those_for_testing() -> None:
    def by_split(path: Path, split: str) -> Counted:
        return Counted([0] * 3, 3) if split == "train" else Counted([1] * 2, 2)

    def the_same(path: Path, split: str) -> Counted:
        return Counted()

    cases: list[tuple[Callable[[Path, str], Counted], int, str]] = [
        (by_split, 5, "test"),
        (the_same, ROWS, "validation"),
    ]
    for loader, count, split in cases:
        app = App(model=list, classes=3, data=loader)
        both = app.load(HERE, "all")
        assert isinstance(both, LazyExamples)
        assert len(both) == count
        assert both[count - 1][1] == (1 if loader is by_split else 0)
        assert agreed(app, {"a": HERE}) == split
    labels = App(model=list, classes=3, data=by_split).load(HERE, "all")
    assert isinstance(labels, LazyExamples)
    assert labels.labels is not None
    assert labels.labels.tolist() == [0, 0, 0, 1, 1]


def test_what_is_for_datasets_goes_with_datasets_only() -> None:
    for more in ({"collate": list}, {"augment": list}, {"workers": 1}):
        with pytest.raises(InvalidApp, match="are for a Dataset; give data="):
            App(model=list, classes=2, **more)
        with pytest.raises(InvalidData, match="need a Dataset; for arrays there is transform="):
            app_of(Examples(np.zeros((2, 1)), np.zeros(2, np.int64)), **more).load(HERE, "train")
    with pytest.raises(InvalidApp, match="0 to 64"):
        App(model=list, classes=2, data=lambda _path, _split: [], workers=-1)
