"""The shelf: apps and data are rehearsed when they are loaded, and again when they have changed."""

import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.site.rehearsal import rehearse
from hansa.common.site.shelf import Shelf
from hansa.common.values.errors import InvalidApp, InvalidData

APP = """
from torch import nn
from hansa import App
from net import WIDTH
app = App(model=lambda: nn.Linear(WIDTH, 2), classes=2)
"""


def plane(width: int = 3, kind: Any = np.float32, rows: int = 5) -> Examples:
    return Examples(np.ones((rows, width), kind), np.zeros(rows, np.int64))


def tried(app: App, examples: Examples) -> None:
    rehearse(app, examples, Path("x.npz"), "cpu")


# One forward pass.


def test_data_of_a_wrong_shape_are_refused_with_their_shape_and_what_the_network_said() -> None:
    app = App(model=lambda: nn.Linear(4, 2), classes=2)
    tried(app, plane(4))
    with pytest.raises(
        InvalidData, match=r"x has shape \[5, 3\] and type float32, y has shape \[5\].*cannot be multiplied"
    ):
        tried(app, plane(3))


def test_a_network_with_another_number_of_scores_is_refused() -> None:
    with pytest.raises(InvalidData, match="gives 7 scores, but the app has classes=2"):
        tried(App(model=lambda: nn.Linear(3, 7), classes=2), plane())
    labels = Examples(plane().x, np.zeros((5, 2), np.int64))
    with pytest.raises(InvalidData, match=r"scores of shape \[2, 7\] for labels of shape \[2, 2\]"):
        tried(App(model=lambda: nn.Linear(3, 7), task="multilabel", classes=2), labels)
    own = App(model=lambda: nn.Linear(3, 7), classes=2, loss=lambda outputs, _: outputs.sum())
    tried(own, plane())  # its own loss may do anything with the scores


def test_a_network_that_cannot_be_built_is_refused_with_the_reason() -> None:
    def broken() -> nn.Module:
        raise KeyError("weights")

    with pytest.raises(InvalidApp, match="its network cannot be built: KeyError: 'weights'"):
        tried(App(model=broken, classes=2), plane())
    with pytest.raises(InvalidApp, match="returned a int, not a torch module"):
        tried(App(model=lambda: 3, classes=2), plane())


def test_whole_numbers_may_be_features_of_jobs_that_standardise_them() -> None:
    tried(App(model=lambda: nn.Linear(3, 2), classes=2), plane(kind=np.int16))
    with pytest.raises(InvalidData, match="type int16"):
        tried(App(model=lambda: nn.Linear(4, 2), classes=2), plane(kind=np.int16))


def test_nothing_is_trained_or_drawn_and_only_two_examples_are_seen() -> None:
    seen: list[tuple[int, bool, bool]] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop = nn.Linear(3, 2), nn.Dropout()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((len(x), self.training, torch.is_grad_enabled()))
            random.random()
            np.random.rand()
            found: torch.Tensor = self.drop(self.linear(x)) + torch.rand(1)
            return found

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    tried(App(model=Net, classes=2), plane())
    tried(App(model=Net, classes=2), plane(rows=1))
    assert seen == [(2, False, False), (1, False, False)]
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]


def test_apps_with_their_own_functions_and_empty_data_are_not_tried() -> None:
    def never() -> Any:
        raise AssertionError

    own: Any = {"train": lambda *_: {}, "evaluate": lambda *_: None}
    tried(App(model=never, classes=2, **own), plane())
    tried(App(model=never, classes=2), plane(rows=0))


# Loaded again.


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "net.py").write_text("WIDTH = 3\n")
    yield tmp_path
    sys.modules.pop("net", None)  # the next test has another of this name


def shelf_of(folder: Path) -> Shelf:
    return Shelf((f"{folder}/app.py:app",), folder / "data.npz", "train")


def save(folder: Path, width: int = 3, rows: int = 5) -> None:
    held = plane(width, rows=rows)
    np.savez(folder / "data.npz", x=held.x, y=held.y)


def test_an_app_whose_data_come_later_can_be_used_then(folder: Path) -> None:
    shelf, ref = shelf_of(folder), f"{folder}/app.py:app"
    assert "no such file" in shelf.unusable()
    assert shelf.due() == []
    save(folder, width=4)
    assert shelf.due() == [ref]
    assert not shelf.load(ref)
    assert "do not fit the app's network" in shelf.states()[0].error
    assert shelf.due() == []
    save(folder)
    assert shelf.due() == [ref]
    assert shelf.load(ref)
    (state,) = shelf.states()
    assert (state.error, state.examples, state.task, state.classes) == ("", 5, "classification", 2)
    assert len(state.source) == 32
    save(folder, rows=6)
    assert shelf.due() == []  # data in use stay as they are


def test_an_app_without_examples_is_tried_again_when_some_come(folder: Path) -> None:
    save(folder, rows=0)
    shelf, ref = shelf_of(folder), f"{folder}/app.py:app"
    assert (shelf.unusable(), shelf.due()) == ("", [])
    save(folder)
    assert shelf.due() == [ref]


def test_an_app_that_was_fixed_is_imported_again_with_what_it_imports(folder: Path) -> None:
    save(folder, width=4)
    shelf, ref = shelf_of(folder), f"{folder}/app.py:app"
    assert "do not fit" in shelf.unusable()
    (folder / "net.py").write_text("WIDTH = 4  # mended\n")
    assert shelf.due() == [ref]
    assert shelf.load(ref)
    assert not shelf.look()


def test_an_edit_is_reported_once_and_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(folder)
    shelf = shelf_of(folder)
    loaded = shelf.states()[0].source
    assert not shelf.look()
    os.utime(folder / "net.py", ns=(5, 5))
    assert not shelf.look()  # the same code
    with caplog.at_level(logging.WARNING):
        (folder / "net.py").write_text("WIDTH = 5\n")
        assert shelf.look()
        assert not shelf.look()
    assert [record.message for record in caplog.records] == [
        f"app {folder}/app.py:app has changed on disk; the loaded version is used until a restart"
    ]
    (state,) = shelf.states()
    assert (state.changed, state.source) == (True, loaded)
    assert shelf.due() == []
    (folder / "net.py").write_text("WIDTH = 3\n")
    assert shelf.look()
    assert not shelf.states()[0].changed


def test_an_app_that_would_get_a_module_of_another_app_is_refused(folder: Path) -> None:
    """Python loads one module of each name: the second app would train the first one's network."""
    save(folder)
    other = folder / "other"
    other.mkdir()
    (other / "app.py").write_text(APP)
    (other / "net.py").write_text("WIDTH = 1 + 2\n")
    (other / "own.py").write_text(APP.replace("from net import WIDTH", "WIDTH = 3"))
    refs = tuple(f"{path}:app" for path in (folder / "app.py", other / "app.py", other / "own.py"))
    shelf = Shelf(refs, folder / "data.npz", "train")
    assert [bool(state.error) for state in shelf.states()] == [False, True, False]
    assert (
        f"it imports net, but another net is already loaded, {folder}/net.py of app {refs[0]};"
        in shelf.unusable()
    )


def test_an_edit_while_an_app_is_imported_shows_as_a_change(folder: Path) -> None:
    save(folder)
    edit = "import pathlib\npathlib.Path(__file__).with_name('net.py').write_text('WIDTH = 5\\n')\n"
    (folder / "app.py").write_text(APP + edit)  # after net was imported
    shelf = shelf_of(folder)
    assert shelf.unusable() == ""
    assert shelf.look()
    assert shelf.states()[0].changed
