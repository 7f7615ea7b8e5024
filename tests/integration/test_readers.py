"""Reader processes of a Dataset: the numbers of one process, errors that say why, and no orphans."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from hansa.common.app import load_app
from hansa.common.data.lazy import LazyExamples
from hansa.common.torch.lazy import LazyData
from hansa.common.torch.readers import Readers
from hansa.common.values.errors import InvalidData, Refused
from tests.waiting import until

APP = """
import os
from pathlib import Path
import torch
from hansa import App

class Rows:
    def __init__(self, path, split):
        self.path = path

    def __len__(self):
        return int((self.path / "rows").read_text())

    def __getitem__(self, row):
        (self.path / "pids" / str(os.getpid())).touch()
        if (self.path / "die").exists():
            os._exit(3)
        if row == 99:
            raise OSError("disk gone")
        return torch.full((2,), float(row)) + torch.rand(2), row % 2

app = App(model=list, classes=2, data=Rows, workers=2)
"""
ORDER = [torch.tensor([row, row + 1]) for row in range(0, 12, 2)]
USE = """
import os, signal, sys, torch
from pathlib import Path
from tests.integration.test_readers import data_of

if __name__ == "__main__":
    batches = data_of(Path(sys.argv[1])).batches([torch.tensor([row]) for row in range(12)])
    next(batches)
    print("reading", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def data_of(folder: Path, readers: bool = True) -> LazyData:
    """Return the data of an app in a folder, with reader processes or without."""
    app = load_app(f"{folder / 'app.py'}:app")
    examples = app.load(folder, "train")
    assert isinstance(examples, LazyExamples)
    return LazyData(app, examples, "cpu", Readers() if readers else None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an app and its data."""
    (tmp_path / "pids").mkdir()
    (tmp_path / "rows").write_text("100")
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def pids(folder: Path) -> set[int]:
    return {int(path.name) for path in (folder / "pids").iterdir()}


def runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_readers_give_the_batches_of_one_process_and_say_what_fails(folder: Path) -> None:
    ours = list(data_of(folder, readers=False).batches(iter(ORDER), seed=3))
    assert pids(folder) == {os.getpid()}
    data = data_of(folder)
    for _ in range(2):  # the same processes read again, and a pass that was given up leaves nothing behind
        next(data.batches(iter(ORDER), seed=9))
        theirs = list(data.batches(iter(ORDER), seed=3))
        assert [each.size for each in theirs] == [2] * 6
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.targets, other.targets)
    assert len(pids(folder) - {os.getpid()}) == 2
    inside = [[each.size for each in data.batches(iter(ORDER))] for _ in data.batches(iter(ORDER[:1]))]
    assert inside == [[2] * 6], "a pass inside another one is read by this process"
    with pytest.raises(Refused, match=r"app .*app\.py:app: the Dataset failed at example 99 of 100: OSError"):
        list(data.batches([torch.tensor([99])]))
    (folder / "die").touch()
    with pytest.raises(Refused, match=r"app\.py:app: a reader process .* ended unexpectedly.*fewer readers"):
        list(data.batches(iter(ORDER)))
    (folder / "die").unlink()
    assert len(list(data.batches(iter(ORDER)))) == 6, "the next task has new readers"


@pytest.mark.slow
def test_a_reader_that_sees_another_length_says_so(folder: Path) -> None:
    data = data_of(folder)
    batches = data.batches(iter(ORDER))
    app = (folder / "app.py").read_text()
    (folder / "app.py").write_text(
        app.replace("read_text())", "read_text()) + (os.getpid() != PID)").replace(
            "class Rows", f"PID = {os.getpid()}\n\nclass Rows"
        )
    )
    with pytest.raises(InvalidData, match="had 100 examples when it was loaded, and has 101 in a reader"):
        next(batches)


@pytest.mark.slow
def test_readers_end_when_their_learner_is_killed(folder: Path) -> None:
    (folder / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, folder / "use.py", folder],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "reading\n"), done.stderr
    assert pids(folder)
    until(lambda: not any(map(runs, pids(folder))))
