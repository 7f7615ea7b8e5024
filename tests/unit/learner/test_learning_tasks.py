"""Training tasks as a learner does them: that the plugins a task names are at work in its training."""

import asyncio
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from hansa.common.methods.adaptive import ADAPTIVE, Adaptive
from hansa.common.methods.proximal import PROXIMAL, Proximal
from hansa.common.models.frames import Layout, seal, views
from hansa.common.torch import networks
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.common.values.training import LocalPluginSpec, OptimizerSpec, ValidationSpec
from hansa.learner.daemon import Learner
from hansa.learner.plugins.adaptive import Diverged
from tests.unit.learner.test_partial_tasks import learner_of

JOB = JobId("j")
LINEAR = """
from torch import nn
from hansa import App

app = App(model=lambda: nn.Linear(3, 2), classes=2)
"""
PATIENT = """
import time

class Rest(nn.Module):
    def forward(self, x):
        time.sleep(0.005)
        return x

app = App(model=lambda: nn.Sequential(Rest(), nn.Linear(3, 2)), classes=2)
"""


def do(
    learner: Learner,
    *plugins: LocalPluginSpec,
    lr: float = 0.1,
    validation: float = 0.2,
    seed: int = 7,
    round: int = 1,  # noqa: A002
    **more: Any,
) -> tuple[np.ndarray, UpdateFacts]:
    """Train from the app's first model; return how far each number has moved, and the facts."""
    ref = learner.options.apps[0]
    app = learner.shelf.get(ref).app
    network = networks.build(app, 7, "cpu")
    spec = networks.describe(network)
    payload = networks.payload_of(network, spec)
    arrays = views(Layout(spec), payload)
    fields = {"epochs": 5, "batch_size": 4, "optimizer": OptimizerSpec(lr=lr), "plugins": plugins}
    work = Train(model=ModelKey("j/v0"), version=3, **(fields | more))
    site, held = SiteName("a"), ValidationSpec(fraction=validation)
    task = Task(
        id=TaskId("j-1"), job=JOB, site=site, round=round, app=ref, seed=seed, validation=held, work=work
    )
    loop = asyncio.get_running_loop()
    manifest, made, facts = learner._train(app, task, work, seal(spec, payload), arrays, Event(), loop)
    found = views(Layout(manifest.spec), made)
    return np.concatenate([(found[name] - arrays[name]).ravel() for name in found]), facts


def adaptive(**args: Any) -> LocalPluginSpec:
    return LocalPluginSpec(
        name=ADAPTIVE, args=Adaptive(**({"vc_loss": 0, "tombstones": 0, "epochs": 2} | args)).model_dump()
    )


@pytest.mark.parametrize(("tombstones", "epochs"), [(0, 1), (2, 3), (9, 5)])
async def test_a_task_ends_with_one_failure_more_than_allowed_or_its_last_epoch(
    tmp_path: Path, tombstones: int, epochs: int
) -> None:
    learner = learner_of(tmp_path, LINEAR)
    _, facts = do(
        learner, adaptive(vc_loss=99.0, tombstones=tombstones)
    )  # no epoch lowers the loss by so much
    assert (facts.epochs, facts.steps) == (
        epochs,
        4 * epochs,
    )  # 16 of 20 examples are trained on, in batches of four


async def test_a_site_without_validation_data_makes_the_epochs_that_the_job_says(tmp_path: Path) -> None:
    _, facts = do(learner_of(tmp_path, LINEAR), adaptive(vc_loss=99.0), validation=0.0)
    assert facts.epochs == 2


async def test_a_task_ends_when_its_model_has_become_too_stale(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, LINEAR)
    patient = adaptive(tombstones=99, limit=10.0)
    assert do(learner, patient, committed=90)[1].epochs == 5  # the controller is out of reach
    learner.attendance._pulses = {}
    assert do(learner, patient, committed=90)[1].epochs == 3  # its own 12 steps
    learner.attendance._pulses = {JOB: 95}
    assert do(learner, patient, committed=90)[1].epochs == 2  # 8 and the 5 of others
    learner.attendance._pulses = {JOB: 50}  # heard before the model was given
    assert do(learner, patient, committed=90)[1].epochs == 3


async def test_a_loss_that_is_no_number_fails_the_task(tmp_path: Path) -> None:
    learner = learner_of(
        tmp_path, LINEAR.replace("classes=2", "classes=2, loss=lambda out, y: (out**40).mean()")
    )
    with pytest.raises(Diverged):
        do(learner, adaptive(tombstones=99), lr=1e30)


async def test_a_proximal_term_holds_the_whole_task_near_its_start(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, LINEAR)
    held = LocalPluginSpec(name=PROXIMAL, args=Proximal(mu=5.0).model_dump())
    free, near = do(learner)[0], do(learner, held)[0]
    assert 0 < np.abs(near).max() < np.abs(free).max() / 2


async def test_a_slow_learner_makes_the_same_update_in_more_time(tmp_path: Path) -> None:
    quick = learner_of(tmp_path, LINEAR + PATIENT)
    slow = Learner(replace(quick.options, slow=3.0), quick.shelf)
    moved, _ = do(quick)
    same, facts = do(slow)
    assert same.tobytes() == moved.tobytes()
    assert facts.seconds >= 3 * 20 * 0.005  # 20 batches


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


async def test_an_app_that_trains_by_itself_knows_seed_device_and_data(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, OWN)
    learner.options = replace(learner.options, device="meta")
    for seed in range(40):
        do(learner, seed=seed, round=1 + seed)
    told = [line.split() for line in (tmp_path / "told.txt").read_text().splitlines()]
    seeds = [int(seed) for seed, *_ in told]
    assert len(set(seeds)) == 40
    assert all(0 <= seed < 1 << 32 for seed in seeds)
    assert max(seeds) >= 1 << 31  # they are of all 32 bits
    assert {tuple(more) for _, *more in told} == {("meta", learner.options.data.name)}
