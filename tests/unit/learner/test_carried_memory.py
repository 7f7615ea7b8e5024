"""A site's memory as a value: whoever has it does the site's next task, with the same bits as its learner."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

import tests.unit.learner.local_parts  # noqa: F401 - registers the plugins
from hansa.common.site.files import Files
from hansa.common.site.memory_files import MemoryFiles
from hansa.common.torch.model import as_array, as_tensor
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec, Travel, ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.memory.secret import read_key
from hansa.learner.trainer import Trainer
from hansa.learner.training.memory import PlainMemory
from tests.unit.learner.test_partial_tasks import TORCH, first_model, ref_of, trainer_of

JOB = JobId("j")
KINDS: dict[str, dict[str, Any]] = {
    "kept Adam": {
        "optimizer": OptimizerSpec(kind="adam", lr=0.1),
        "keep_optimizer": True,
        "local_statistics": True,
    },
    "kept momentum": {"optimizer": OptimizerSpec(lr=0.1, momentum=0.9), "keep_optimizer": True},
    "windows": {"batches": 1},
    "plugins": {
        "plugins": (
            LocalPluginSpec(name="sum"),
            LocalPluginSpec(name="noise"),
            LocalPluginSpec(name="ditto", args={"lam": 0.1, "epochs": 1}),
        )
    },
    "personal tensors": {"travel": Travel(kind="personal", last=1)},
}


@dataclass
class Place:
    """A virtual site: its files are in memory."""

    data: Path
    files: Files
    personal_files: Files
    split: str = "train"
    device: str = "cpu"
    slow: float = 1.0


@dataclass
class Carried:
    """A site without a learner of its own: each task is done by a new one, which gets the site's memory."""

    home: Trainer
    files: MemoryFiles = field(default_factory=MemoryFiles)
    memory: PlainMemory | None = None

    def work(self, do: Callable[[Trainer], tuple[bytes, str]]) -> tuple[bytes, str]:
        """Do a task as a new process would, and keep what it leaves."""
        files, memory = pickle.loads(pickle.dumps((self.files, self.memory)))
        place = Place(self.home.options.data, files, files.folder("personal"))
        trainer = Trainer(place, self.home.shelf, lambda _: None)
        trainer.jobs.put_memory(JOB, memory)
        result = do(trainer)
        self.files, self.memory = pickle.loads(pickle.dumps((files, trainer.jobs.memory(JOB))))
        return result


def task_of(ref: str, number: int, after: str, more: dict[str, Any]) -> Task:
    fields: dict[str, Any] = {"epochs": 1, "batch_size": 5, "optimizer": OptimizerSpec(lr=0.1)}
    task = {"local_statistics": False, "travel": Travel()}
    for name, value in more.items():
        (task if name in task else fields)[name] = value
    work = Train(model=ModelKey("j/v0"), version=0, after=after, **fields)
    part = ValidationSpec(fraction=0.2)
    place: dict[str, Any] = {"job": JOB, "site": SiteName("a"), "app": ref, "validation": part}
    return Task(id=TaskId(f"j-{number}"), round=number, seed=7, work=work, **task, **place)


def doing(task: Task, commit: bool) -> Callable[[Trainer], tuple[bytes, str]]:
    """Return what does a task; with `commit` its receipt arrives."""

    def do(trainer: Trainer) -> tuple[bytes, str]:
        app = trainer.shelf.get(task.app).app
        base, arrays = first_model(app)
        assert isinstance(task.work, Train)
        if not task.travel.whole:
            travelling = trainer.jobs.resident(app, task).sets.travelling
            base, arrays = trainer.initialise(app, task).manifest, {n: arrays[n] for n in travelling}
        update = trainer.train(app, task, task.work, base, arrays, Event(), lambda _: None)
        if commit:
            trainer.commit(task)
        return update.payload.tobytes(), repr(update.facts.model_copy(update={"seconds": 0}))

    return do


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_that_is_carried_from_learner_to_learner_gives_the_updates_of_one_that_stays(
    tmp_path: Path, kind: str
) -> None:
    home = trainer_of(tmp_path, TORCH)
    ref, carried = ref_of(home), Carried(home)
    carried.files.write("secret.key", read_key(home.options.files))
    updates, after = [], ""
    for number in (1, 2, 3):
        task = task_of(ref, number, after, KINDS[kind])
        for commit in (False, True):  # each task is done twice, as if its first update had been lost
            do = doing(task, commit)
            here, there = do(home), carried.work(do)
            assert here == there, (number, commit)
            updates.append(here)
        after = task.id
    assert [updates[i] == updates[i + 1] for i in (0, 2, 4)] == [True, True, True]
    assert len({payload for payload, _ in updates}) == 3
    assert (carried.memory is not None) == kind.startswith("kept")


def test_a_learner_without_a_memory_starts_from_nothing(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, TORCH)
    tasks = [task_of(ref_of(trainer), number, "", KINDS["kept Adam"]) for number in (1, 2)]
    doing(tasks[0], commit=True)(trainer)
    memory = trainer.jobs.memory(JOB)
    second = doing(tasks[1], commit=True)
    went_on = second(trainer)
    trainer.jobs.put_memory(JOB, None)
    assert second(trainer) != went_on
    trainer.jobs.put_memory(JOB, memory)
    assert second(trainer) == went_on


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_and_arrays_stand_for_each_other(dtype: torch.dtype) -> None:
    for tensor in (torch.arange(6, dtype=dtype).reshape(2, 3), torch.tensor(3, dtype=dtype)):
        array = as_array(tensor)
        assert np.shares_memory(array, as_array(as_tensor(array)))
        array.flags.writeable = False
        back = as_tensor(array)
        assert torch.equal(back, tensor)
        assert back.dtype == tensor.dtype
        back += 1
        assert not torch.equal(back, tensor)
