"""Training tasks as a learner does them: that the plugins a task names are at work in its training."""

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast

import numpy as np
import pytest

from hansa.common.methods.adaptive import ADAPTIVE, Adaptive
from hansa.common.methods.proximal import PROXIMAL, Proximal
from hansa.common.models.frames import Layout, views
from hansa.common.site.daemon import SiteOptions
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec, ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.plugins.adaptive import Diverged
from hansa.learner.trainer import Trainer
from tests.unit.learner.test_partial_tasks import first_model, ref_of, trainer_of

JOB = JobId("j")
LINEAR = """
from torch import nn
from hansa import App

app = App(model=lambda: nn.Linear(3, 2), classes=2)
"""


def do(
    trainer: Trainer,
    *plugins: LocalPluginSpec,
    lr: float = 0.1,
    validation: float = 0.2,
    seed: int = 7,
    round: int = 1,  # noqa: A002
    cancelled: Event | None = None,
    **more: Any,
) -> tuple[np.ndarray, UpdateFacts]:
    """Train from the app's first model; return how far each number has moved, and the facts."""
    ref = ref_of(trainer)
    app = trainer.shelf.get(ref).app
    base, arrays = first_model(app)
    fields = {"epochs": 5, "batch_size": 4, "optimizer": OptimizerSpec(lr=lr), "plugins": plugins}
    work = Train(model=ModelKey("j/v0"), version=3, **(fields | more))
    site, part = SiteName("a"), ValidationSpec(fraction=validation)
    task = Task(
        id=TaskId("j-1"), job=JOB, site=site, round=round, app=ref, seed=seed, validation=part, work=work
    )
    manifest, frames, facts = trainer.train(
        app, task, work, base, arrays, cancelled or Event(), lambda _: None
    )
    update = views(Layout(manifest.spec), frames)
    return np.concatenate([(update[name] - arrays[name]).ravel() for name in update]), facts


def adaptive(**args: Any) -> LocalPluginSpec:
    return LocalPluginSpec(
        name=ADAPTIVE, args=Adaptive(**({"vc_loss": 0, "tombstones": 0, "epochs": 2} | args)).model_dump()
    )


@pytest.mark.parametrize(("tombstones", "epochs"), [(0, 1), (2, 3), (9, 5)])
def test_a_task_ends_with_one_failure_more_than_allowed_or_its_last_epoch(
    tmp_path: Path, tombstones: int, epochs: int
) -> None:
    trainer = trainer_of(tmp_path, LINEAR)
    _, facts = do(trainer, adaptive(vc_loss=99.0, tombstones=tombstones))  # no epoch improves by that much
    assert (facts.epochs, facts.steps) == (epochs, 4 * epochs)  # on 16 of 20 examples, in batches of four


def test_a_site_without_validation_data_trains_the_jobs_epochs(tmp_path: Path) -> None:
    _, facts = do(trainer_of(tmp_path, LINEAR), adaptive(vc_loss=99.0), validation=0.0)
    assert facts.epochs == 2


@pytest.mark.parametrize(
    ("pulse", "epochs"),
    [
        pytest.param(None, 5, id="the controller is out of reach"),
        pytest.param(0, 3, id="12 steps of its own"),
        pytest.param(95, 2, id="8 steps of its own and 5 of others"),
        pytest.param(50, 3, id="the pulse is older than the model"),
    ],
)
def test_a_task_ends_when_its_model_has_become_too_stale(
    tmp_path: Path, pulse: int | None, epochs: int
) -> None:
    trainer = trainer_of(tmp_path, LINEAR, pulse=lambda _: pulse)
    assert do(trainer, adaptive(tombstones=99, limit=10.0), committed=90)[1].epochs == epochs


def test_a_loss_that_is_not_a_number_fails_the_task(tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path, LINEAR.replace("classes=2", "classes=2, loss=lambda out, y: (out**40).mean()")
    )
    with pytest.raises(Diverged):
        do(trainer, adaptive(tombstones=99), lr=1e30)


def test_a_proximal_term_keeps_the_whole_task_near_its_start(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, LINEAR)
    term = LocalPluginSpec(name=PROXIMAL, args=Proximal(mu=5.0).model_dump())
    free, near = do(trainer)[0], do(trainer, term)[0]
    assert 0 < np.abs(near).max() < np.abs(free).max() / 2


class Rests(Event):
    """A cancellation that never comes and notes how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False


def test_a_slow_learner_makes_the_same_update_and_rests_between_batches(tmp_path: Path) -> None:
    quick = trainer_of(tmp_path, LINEAR)
    slow = Trainer(replace(cast(SiteOptions, quick.options), slow=3.0), quick.shelf, lambda _: None)
    none, some = Rests(), Rests()
    update, _ = do(quick, cancelled=none)
    same, facts = do(slow, cancelled=some)
    assert same.tobytes() == update.tobytes()
    assert none.seconds == []
    assert len(some.seconds) == facts.steps + 1  # before every batch, and at the end
    assert sum(some.seconds) > 0


OWN = """
import numpy as np
from hansa import App, Evaluation

def train(arrays, run):
    np.random.seed(run.seed)
    np.random.RandomState(run.seed)
    with (run.data.parent / "told.txt").open("a") as file:
        file.write(f"{run.seed} {run.device} {run.data.name}\\n")
    return arrays

def evaluate(arrays, examples):
    return Evaluation(n=len(examples), loss_sum=0.0)

app = App(model=lambda: {"w": np.zeros(2)}, task="regression", train=train, evaluate=evaluate)
"""


def test_an_app_that_trains_by_itself_knows_seed_device_and_data(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, OWN)
    trainer.options = replace(cast(SiteOptions, trainer.options), device="meta")
    for seed in range(40):
        do(trainer, seed=seed, round=1 + seed)
    told = [line.split() for line in (tmp_path / "told.txt").read_text().splitlines()]
    seeds = [int(seed) for seed, *_ in told]
    assert len(set(seeds)) == 40
    assert all(0 <= seed < 1 << 32 for seed in seeds)
    assert max(seeds) >= 1 << 31  # they are of all 32 bits
    assert {tuple(more) for _, *more in told} == {("meta", trainer.options.data.name)}
