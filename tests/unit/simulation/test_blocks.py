"""Small clients are trained in blocks where that gives the same bits, and no result tells which they were."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.torch.model import spec_of
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import Failure
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import AuxiliarySpec, LocalPluginSpec, Travel, ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.simulation.batched import agreement
from hansa.simulation.batched.blocks import ALONE, SPOT_CHECKS, TOGETHER
from hansa.simulation.batched.plain import obstacle_in_app, obstacle_in_network, obstacle_in_task
from hansa.simulation.crew.base import Assignment, Model, Models, Outcome, Update
from hansa.simulation.options import Options
from hansa.simulation.sites.data import FileForEach
from hansa.simulation.sites.desk import Desk
from hansa.simulation.storage.memory import SiteMemory
from tests.simulated import history, simulation
from tests.unit.learner.test_partial_tasks import first_model
from tests.unit.simulation import batched_app, clock_app

APPS = Path(batched_app.__file__)
SITES = [f"s{number:02}" for number in range(40)]
USUAL = {"train": {"batch_size": 4}, "validation": {"fraction": 0}, "evaluate": {"every": 1000}}
pytestmark = pytest.mark.usefixtures("one_thread", "always_worthwhile")


@pytest.fixture
def always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks however long they take: a busy machine must not decide."""
    monkeypatch.setattr(agreement, "SHARE", math.inf)


def simulated(folder: Path, job: dict[str, Any], app: str, batched: bool) -> tuple[list[Any], list[str]]:
    run = simulation(folder, USUAL | job, f"{APPS}:{app}", SITES, Options(batched=batched))
    return history(run.run()), run.driver.remarks


JOBS: dict[str, dict[str, Any]] = {
    "rounds": {"rule": "fedavg", "pace": {"rounds": 2}},
    "samples and momentum": {
        "pace": {"rounds": 3},
        "sample": {"kind": "uniform", "fraction": 0.6},
        "train": {"epochs": 2, "batch_size": 5, "optimizer": {"momentum": 0.9, "weight_decay": 0.01}},
    },
    "no rounds": {
        "rule": "async-fedavg",
        "pace": {"updates": 120},
        "simulate": {"slow": {"kind": "lognormal", "sigma": 1.0}},
    },
    "steps": {"rule": "semisync-fedavg", "pace": {"rounds": 2, "lambda": 1}},
    "held out": {"pace": {"rounds": 2}, "validation": {"fraction": 0.3}},
}


@pytest.mark.parametrize("name", JOBS)
def test_blocks_give_the_same_versions_updates_and_losses(name: str, tmp_path: Path) -> None:
    together, remarks = simulated(tmp_path / "together", JOBS[name], "app", batched=True)
    alone, nothing = simulated(tmp_path / "alone", JOBS[name], "app", batched=False)
    assert together == alone
    assert (remarks, nothing) == ([TOGETHER], [])


@pytest.mark.parametrize(
    ("job", "app", "why"),
    [
        ({}, "dropout", "the app draws random numbers in training"),
        ({"rule": "fedprox"}, "app", "the plugin proximal takes part in training"),
        ({"train": {"optimizer": {"kind": "adam"}}}, "app", "the optimizer is adam, not sgd"),
    ],
)
def test_other_training_goes_one_by_one_and_the_reason_is_given_once(
    job: dict[str, Any], app: str, why: str, tmp_path: Path
) -> None:
    job = job | {"pace": {"rounds": 2}}
    together, remarks = simulated(tmp_path / "together", job, app, batched=True)
    assert together == simulated(tmp_path / "alone", job, app, batched=False)[0]
    assert remarks == [ALONE + why]


def test_blocks_that_are_not_faster_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "SHARE", -1.0)
    _, remarks = simulated(tmp_path, JOBS["rounds"], "app", batched=True)
    assert remarks == [ALONE + "it would not be faster"]


# A desk, without an engine.


class FirstModel(Models):
    """All tasks start from the same model."""

    def __init__(self, app: App) -> None:
        self._model = Model(*first_model(app))

    def read(self, key: ModelKey) -> Model:
        """Return it."""
        return self._model


def desk_of(folder: Path, app: str, batched: bool = True) -> Desk:
    for number, site in enumerate(SITES):
        (folder / site).write_text(str(number))
    data = FileForEach({site: folder / site for site in SITES}, "validation")
    return Desk(f"{batched_app.__name__}:{app}", data, FirstModel(getattr(batched_app, app)), batched)


def task_of(site: int, round: int = 1, **work: Any) -> Task:  # noqa: A002
    usual = {"model": "j/v0", "version": 0, "epochs": 1, "batch_size": 4, "optimizer": OptimizerSpec()}
    return Task(
        id=TaskId(f"j-{round}-{site}"),
        job=JobId("j"),
        site=SiteName(SITES[site]),
        round=round,
        app="app.py:app",
        seed=1,
        validation=ValidationSpec(fraction=0),
        work=Train(**usual | work),
    )


def round_of(number: int) -> list[Assignment]:
    return [Assignment(task_of(site, number), site) for site in range(len(SITES))]


def bits(outcomes: list[Outcome]) -> list[Any]:
    """Return all that outcomes consist of, except remarks and the seconds that training took."""
    plain = []
    for outcome in outcomes:
        update = outcome.result
        assert isinstance(update, Update)
        assert isinstance(update.payload, np.ndarray)
        facts = update.facts.model_dump_json(exclude={"seconds"})
        rest = (outcome.memory, outcome.steps, outcome.examples)
        plain.append((update.manifest, update.peaks, update.payload.tobytes(), facts, rest))
    return plain


def test_outcomes_of_a_block_are_those_of_single_tasks_in_every_respect(tmp_path: Path) -> None:
    desk = desk_of(tmp_path, "app")
    together, alone = desk.do_all(round_of(1)), [desk.do(each) for each in round_of(1)]
    assert bits(together) == bits(alone)
    assert [outcome.remarks for outcome in together] == [(TOGETHER,), *[()] * (len(SITES) - 1)]


def test_sites_without_readable_data_fail_alone(tmp_path: Path) -> None:
    desk = desk_of(tmp_path, "app")
    (tmp_path / SITES[3]).write_text("nothing")
    outcomes = desk.do_all(round_of(1))
    failures = [site for site, each in enumerate(outcomes) if isinstance(each.result, Failure)]
    assert failures == [3]
    assert outcomes[0].remarks == (TOGETHER,)


def test_a_spot_check_that_fails_ends_blocks_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes unnoticed when blocks are first tried is found sooner or later, and said."""
    desk, alone = desk_of(tmp_path, "two_faced"), desk_of(tmp_path, "two_faced", batched=False)
    assert desk.do_all(round_of(1))[0].remarks == (TOGETHER,)
    monkeypatch.setattr(batched_app.TwoFaced, "lies", True)
    rounds = range(2, SPOT_CHECKS + 3)
    remarks = {number: desk.do_all(round_of(number))[0].remarks for number in rounds}
    assert {number for number, each in remarks.items() if each} == {SPOT_CHECKS + 1}
    assert "--batched off" in remarks[SPOT_CHECKS + 1][0]
    late = round_of(SPOT_CHECKS + 3)
    assert bits(desk.do_all(late)) == bits(alone.do_all(late))


# What is not plain.

PLUGIN = LocalPluginSpec(name="mine")
TASKS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [  # what is said, what the task is and asks for
    ("adamw", {}, {"optimizer": OptimizerSpec(kind="adamw")}),
    ("keep their optimizers", {}, {"keep_optimizer": True}),
    ("the plugin mine", {}, {"plugins": (PLUGIN,)}),
    ("the plugin mine", {}, {"source": PLUGIN}),
    ("windows", {}, {"batches": 2}),
    ("only some tensors", {}, {"tensors": ("weight",)}),
    ("only some tensors", {}, {"base": "j/v0"}),
    ("stay at the sites", {"travel": Travel(kind="trainable")}, {}),
    ("stay at the sites", {"local_statistics": True}, {}),
    ("stay at the sites", {}, {"personal_epochs": 1}),
    ("encoded", {}, {"encoding": PLUGIN}),
    ("beside the model", {}, {"auxiliary": (AuxiliarySpec(name="c"),)}),
    ("evaluate their updates", {}, {"validate_update": True}),
]


@pytest.mark.parametrize(("why", "fields", "asked"), TASKS)
def test_a_task_that_asks_for_more_than_the_loop_is_not_plain(
    why: str, fields: dict[str, Any], asked: dict[str, Any]
) -> None:
    assignment = Assignment(task_of(0, **asked).model_copy(update=fields), 0)
    assert isinstance(assignment.task.work, Train)
    assert why in obstacle_in_task(assignment, assignment.task.work)


def test_sites_that_remember_or_listen_are_not_plain() -> None:
    plain = Assignment(task_of(0), 0)
    assert isinstance(plain.task.work, Train)
    assert obstacle_in_task(plain, plain.task.work) == ""
    assert "remember" in obstacle_in_task(replace(plain, memory=SiteMemory()), plain.task.work)
    assert "others" in obstacle_in_task(replace(plain, pulses=(0,)), plain.task.work)


def test_an_app_that_trains_or_transforms_by_itself_is_not_plain() -> None:
    assert obstacle_in_app(batched_app.app) == ""
    assert "transforms" in obstacle_in_app(replace(batched_app.app, transform=lambda x: x))
    assert "of its own" in obstacle_in_app(clock_app.plain)


def frozen() -> nn.Module:
    network = batched_app.mlp()
    next(network.parameters()).requires_grad_(False)
    return network


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


NETWORKS: dict[str, nn.Module] = {
    "buffers": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
    "over batches": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)),
    "frozen": frozen(),
    "tied": tied(),
    "float32": nn.Linear(3, 4, dtype=torch.float64),
    "512 KiB": nn.Linear(1000, 200),
}


@pytest.mark.parametrize("why", NETWORKS)
def test_a_network_with_more_than_trained_parameters_is_not_plain(why: str) -> None:
    assert why in obstacle_in_network(NETWORKS[why], spec_of(NETWORKS[why]))


def test_a_network_that_is_not_the_jobs_is_not_plain() -> None:
    assert obstacle_in_network(nn.Linear(3, 4), spec_of(nn.Linear(3, 4))) == ""
    assert "does not fit" in obstacle_in_network(nn.Linear(3, 4), spec_of(nn.Linear(3, 5)))
