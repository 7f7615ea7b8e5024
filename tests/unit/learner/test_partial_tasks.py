"""Training tasks for some tensors only: what comes back, and what stays (divide-and-conquer §2, §8)."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from hansa.common.app import App
from hansa.common.models.frames import Layout, seal, views
from hansa.common.models.model import Manifest
from hansa.common.site.connection import Identity
from hansa.common.site.daemon import SiteOptions
from hansa.common.site.shelf import Shelf
from hansa.common.torch import networks
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.trainer import Trainer

TORCH = """
from torch import nn
from hansa import App

def build():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 2))

app = App(model=build, classes=2)
"""
OWN = """
import numpy as np
from hansa import App
from hansa.common.values.results import Evaluation

seen = []

def train(arrays, run):
    seen.append(run.tensors)
    return {name: array + 1 for name, array in arrays.items()}  # more than it was asked for

def evaluate(arrays, examples):
    return Evaluation(n=len(examples), loss_sum=float(sum(array.sum() for array in arrays.values())))

app = App(
    model=lambda: {"w1": np.zeros((3, 4)), "b1": np.zeros(4), "w2": np.zeros((4, 1)), "b2": np.zeros(1)},
    task="regression", train=train, evaluate=evaluate,
)
"""
Made = tuple[Manifest, dict[str, np.ndarray], UpdateFacts]


def trainer_of(folder: Path, text: str, pulse: Callable[[JobId], int | None] = lambda _: None) -> Trainer:
    """Return a trainer for an app, with twenty random examples."""
    (folder / "app.py").write_text(text)
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.normal(size=(20, 3)).astype(np.float32), y=rng.integers(0, 2, 20))
    ref = f"{folder / 'app.py'}:app"
    options = SiteOptions(
        Identity("127.0.0.1:1", SiteName("a"), "learner"), folder / "data.npz", (ref,), folder
    )
    return Trainer(options, Shelf((ref,), folder / "data.npz", "train"), pulse)


def ref_of(trainer: Trainer) -> str:
    """Return how tasks name the app of a trainer that `trainer_of` made."""
    return f"{trainer.options.data.parent / 'app.py'}:app"


def first_model(app: App) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Return an app's own first model."""
    network = networks.build(app, 7, "cpu")
    spec = networks.describe(network)
    payload = networks.payload_of(network, spec)
    return seal(spec, payload), views(Layout(spec), payload)


def do(trainer: Trainer, tensors: tuple[str, ...]) -> tuple[Task, dict[str, np.ndarray], Made]:
    """Train from the app's own first model; return the task, that model and the update."""
    ref = ref_of(trainer)
    app = trainer.shelf.get(ref).app
    base, arrays = first_model(app)
    optimizer = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.1)
    work = Train(
        model=ModelKey("j/v0"),
        version=0,
        epochs=2,
        batch_size=5,
        optimizer=optimizer,
        tensors=tensors,
        validate_update=True,
    )
    task = Task(
        id=TaskId("j-1"),
        job=JobId("j"),
        site=SiteName("a"),
        round=1,
        app=ref,
        seed=7,
        validation=ValidationSpec(fraction=0.2),
        work=work,
    )
    manifest, made, facts = trainer.train(app, task, work, base, arrays, Event(), lambda _: None)
    return task, arrays, (manifest, views(Layout(manifest.spec), made), facts)


@pytest.mark.parametrize("first", [True, False])
def test_a_network_returns_exactly_the_tensors_of_its_task(tmp_path: Path, first: bool) -> None:
    trainer = trainer_of(tmp_path, TORCH)
    _, start, _ = do(trainer, ())
    names = tuple(name for name in start if name.startswith("4.") is not first)
    before = {name: array.tobytes() for name, array in start.items()}
    for _ in range(2):  # the second time the network has been trained before
        task, _, (manifest, made, facts) = do(trainer, names)
        assert manifest.spec.names == names
        assert all(made[name].tobytes() != before[name] for name in names)
        network = trainer.jobs.network(trainer.shelf.get(task.app).app, task)
        after = network.state_dict()
        assert all(after[name].numpy().tobytes() == before[name] for name in before if name not in names)
        assert facts.steps == (6 if first else 8)  # a batch of one is no use to a norm that is trained
        assert facts.evaluation is not None


def test_an_app_that_trains_by_itself_knows_which_tensors_count_and_the_rest_is_left_as_it_was(
    tmp_path: Path,
) -> None:
    trainer = trainer_of(tmp_path, OWN)
    _, _, (manifest, made, facts) = do(trainer, ("w2", "b2"))
    assert manifest.spec.names == ("w2", "b2")
    assert manifest.spec.layers == ("w1", "w2")
    assert all((array == 1).all() for array in made.values())
    assert facts.evaluation is not None
    assert facts.evaluation.loss_sum == 4 + 1  # w1 and b1 count as they were
    assert trainer.shelf.get(ref_of(trainer)).app.train.__globals__["seen"] == [("w2", "b2")]  # type: ignore[union-attr]
