"""Jobs without common rounds: any two simulations are equal, whoever does the work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hansa.common.values.views import JobView
from hansa.simulation.options import Options
from tests.golden.fleet import SITES, TORCH
from tests.simulated import history, simulation

TRAIN = {"batch_size": 4, "optimizer": {"lr": 0.03125}}
UNTIL = {"cycles": 2, "max_epochs": 6, "vc_loss": 0.0, "tombstones": 3}
RANDOM = {"slow": {"kind": "lognormal"}, "availability": {"kind": "random", "up": 0.8, "down": 0.1}}
JOBS: dict[str, dict[str, Any]] = {
    "fedasync": {"rule": "fedasync", "pace": {"updates": 12}},
    "fedbuff": {"rule": "fedbuff", "pace": {"updates": 12, "buffer": 3}},
    "semisync with a deadline": {
        "rule": "semisync-fedavg",
        "pace": {"rounds": 4, "lambda": 2, "deadline": 0.25, "quorum": 2},
    },
    "radfed with a deadline": {"rule": "radfed", "pace": {"rounds": 2, "hops": 3, "deadline": 0.16}},
    "adaptive": {"rule": "async-dvw-adaptive", "pace": {"updates": 25}, "train": TRAIN | {"until": UNTIL}},
    "sites that come and go": {
        "rule": "async-dvw-adaptive",
        "pace": {"updates": 15},
        "train": TRAIN | {"until": UNTIL, "keep_optimizer": True},
        "sites": {"min": 2},
        "simulate": RANDOM,
    },
}
USUAL = {"train": TRAIN, "validation": {"fraction": 0.25}, "simulate": {"slow": {"kind": "lognormal"}}}
# What simulates a job in a process of its own, in which sets have another order.
SCRIPT = """
import json, sys, pathlib
from tests.simulated import history, simulation
from tests.golden.fleet import SITES, TORCH
view = simulation(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), TORCH, SITES).run()
print(json.dumps(history(view)))
"""


def simulated(folder: Path, job: dict[str, Any], workers: int, app: str = TORCH) -> JobView:
    return simulation(folder, USUAL | job, app, SITES, Options(workers=workers)).run()


@pytest.mark.parametrize("name", JOBS)
def test_the_number_of_workers_makes_no_difference(name: str, tmp_path: Path) -> None:
    alone = history(simulated(tmp_path / "alone", JOBS[name], 0))
    for workers in (1, 2, 4):
        assert history(simulated(tmp_path / str(workers), JOBS[name], workers)) == alone


@pytest.mark.slow
def test_the_order_of_sets_makes_no_difference(tmp_path: Path) -> None:
    job = USUAL | JOBS["sites that come and go"]
    here = json.loads(json.dumps(history(simulation(tmp_path / "here", job, TORCH, SITES).run())))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "there"), json.dumps(job)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "7"}
    )
    assert json.loads(done.stdout) == here


APP = """
import os, signal
from dataclasses import replace
from pathlib import Path
from tests.golden.apps import pytorch

calls = 0
flag = Path(__file__).with_name("killed")

def transform(x):
    global calls
    calls += 1
    if calls == 150 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x

app = replace(pytorch.app, transform=transform)
"""


def test_training_that_listens_begins_again_elsewhere_when_its_worker_dies(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    killing = simulated(tmp_path / "killing", JOBS["adaptive"], 2, app=f"{tmp_path / 'app.py'}:app")
    assert (tmp_path / "killed").exists()
    assert history(killing) == history(simulated(tmp_path / "alone", JOBS["adaptive"], 0))


CHANCE = """
import random
from dataclasses import replace
import numpy as np
from torch import nn
from tests.golden.apps import pytorch

def model():
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))

def transform(x):
    return x + 0.1 * np.random.rand() + 0.1 * random.random()

app = replace(pytorch.app, model=model, transform=transform)
"""


def test_trainings_that_wait_do_not_share_chance_with_those_that_go_on(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CHANCE)
    app = f"{tmp_path / 'app.py'}:app"
    alone = history(simulated(tmp_path / "alone", JOBS["adaptive"], 0, app))
    assert history(simulated(tmp_path / "others", JOBS["adaptive"], 3, app)) == alone
