"""Tasks on Datasets: the numbers of the same data in memory, and everything that a task may ask for."""

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from hansa.common.methods.importance import IMPORTANCE, Importance
from hansa.common.methods.starting_loss import STARTING_LOSS
from hansa.common.values.errors import InvalidData
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.settings.training import LocalPluginSpec, Standard, ValidationSpec
from hansa.common.values.tasks import Survey, Task
from hansa.learner.trainer import Trainer
from tests.unit.learner.test_learning_tasks import do
from tests.unit.learner.test_partial_tasks import ref_of, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")
NETWORK = """
import torch, numpy as np
from torch import nn
from hansa import App

def build():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
"""
IN_MEMORY = NETWORK + "app = App(model=build, classes=2)\n"
LAZY = (
    NETWORK
    + """
class Rows:
    def __init__(self, path, split):
        with np.load(path) as arrays:
            self.x, self.y = torch.from_numpy(arrays["x"]), arrays["y"]
        KNOWN

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return self.x[row], int(self.y[row])

def noise(example):
    return example[0] + torch.randn(3), example[1]

app = App(model=build, classes=2, data=Rows, MORE)
"""
)
KNOWN = "self.targets = self.y.tolist()"


def lazy(folder: Path, known: str = KNOWN, more: str = "") -> Trainer:
    folder.mkdir(exist_ok=True)
    return trainer_of(folder, LAZY.replace("KNOWN", known).replace("MORE", more))


def in_memory(folder: Path) -> Trainer:
    folder.mkdir(exist_ok=True)
    return trainer_of(folder, IN_MEMORY)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"batches": 3},
        {"steps": 7},
        {"validate_update": True, "keep_optimizer": True},
        {"plugins": (LocalPluginSpec(name=STARTING_LOSS),)},
        {"plugins": (LocalPluginSpec(name=IMPORTANCE, args=Importance().model_dump()),)},
    ],
)
def test_a_task_on_a_dataset_gives_the_bits_of_the_same_data_in_memory(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    plugins = more.get("plugins", ())
    others = {name: value for name, value in more.items() if name != "plugins"}
    one, facts = do(lazy(tmp_path / "a"), *plugins, **others)
    other, wanted = do(in_memory(tmp_path / "b"), *plugins, **others)
    assert np.array_equal(one, other)
    assert replace_seconds(facts) == replace_seconds(wanted)


def replace_seconds(facts: Any) -> Any:
    return facts.model_copy(update={"seconds": 0.0})


def test_augmented_training_is_repeated_bit_for_bit_and_never_validates_noise(tmp_path: Path) -> None:
    runs = [do(lazy(tmp_path / name, more="augment=noise"), validate_update=True) for name in "ab"]
    assert np.array_equal(runs[0][0], runs[1][0])
    assert runs[0][1].evaluation == runs[1][1].evaluation
    plain, _ = do(lazy(tmp_path / "c"))
    assert not np.array_equal(runs[0][0], plain)


def survey(trainer: Trainer, work: Survey, standard: Standard | None = None) -> Any:
    ref = ref_of(trainer)
    part = ValidationSpec(fraction=0.2, stratified=False)
    ids = {"id": TaskId("j-1"), "job": JobId("j"), "site": SiteName("a")}
    task = Task(**ids, round=1, app=ref, seed=7, validation=part, work=work, standard=standard)
    return trainer.survey(trainer.shelf.get(ref).app, task, work)


@pytest.mark.parametrize("known", [KNOWN, "pass"])
def test_a_survey_counts_classes_and_moments_of_a_dataset(tmp_path: Path, known: str) -> None:
    work = Survey(moments=True, columns=None, classes=True)
    found, wanted = survey(lazy(tmp_path / "a", known), work), survey(in_memory(tmp_path / "b"), work)
    assert (found.n, found.classes) == (wanted.n, wanted.classes)
    assert found.mean == pytest.approx(wanted.mean, rel=1e-14)
    assert found.m2 == pytest.approx(wanted.m2, rel=1e-13)


def test_a_dataset_without_labels_is_not_split_by_class(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=rf"app {tmp_path}.*: a stratified hold-out needs the labels"):
        do(lazy(tmp_path, "pass"))


def test_a_dataset_that_shrinks_between_tasks_is_refused(tmp_path: Path) -> None:
    trainer = lazy(tmp_path)
    do(trainer)
    examples = trainer.shelf.get(ref_of(trainer)).examples
    examples.dataset.y = examples.dataset.y[:-1]  # type: ignore[union-attr]
    with pytest.raises(InvalidData, match="had 20 examples when it was loaded, and has 19 now"):
        do(trainer, round=2)


def test_an_app_that_trains_by_itself_gets_a_dataset_of_its_rows(tmp_path: Path) -> None:
    text = """
import numpy as np
from hansa import App, Evaluation

def train(arrays, run):
    assert len(run.examples) == 16 and sorted(run.examples)
    arrays["w"][:] = sum(x for x, _ in run.examples)
    return arrays

def evaluate(arrays, examples):
    return Evaluation(n=len(examples), loss_sum=float(sum(x for x, _ in examples)))

app = App(model=lambda: {"w": np.zeros(1)}, task="regression", train=train, evaluate=evaluate,
          data=lambda path, split: [(n, 0) for n in range(20)])
"""
    moved, facts = do(trainer_of(tmp_path, text), validate_update=True)
    assert facts.evaluation is not None
    assert (moved.sum() + facts.evaluation.loss_sum, facts.evaluation.n) == (190, 4)


def test_a_task_on_a_dataset_can_be_withdrawn(tmp_path: Path) -> None:
    cancelled = Event()
    cancelled.set()
    with pytest.raises(Exception, match="withdrawn"):
        do(lazy(tmp_path), cancelled=cancelled)
