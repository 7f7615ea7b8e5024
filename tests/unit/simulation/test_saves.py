"""A simulation that ends at any moment goes on from its last save, and ends with the same models."""

from pathlib import Path
from typing import Any

import pytest

from hansa.common.values.errors import InvalidInput
from hansa.simulation.options import Options
from hansa.simulation.run import Simulation, resumed
from hansa.simulation.storage.memories import Memories
from hansa.simulation.storage.saves import FOLDER
from tests.golden.fleet import TORCH
from tests.simulated import history, simulation

INNER = "simulated"  # the folder of the results
SITES = ("s1", "s2", "s3", "s4", "s5")
SOME = {"sample": {"kind": "uniform", "fraction": 0.6}}
JOBS: dict[str, dict[str, Any]] = {
    "scaffold": {"rule": "scaffold", "pace": {"rounds": 4}, **SOME},
    "windows": {"rule": "fedmmb", "pace": {"rounds": 4}, "train": {"batches": 2}},
    "travelling": {"rule": "radfed", "pace": {"rounds": 2, "hops": 3}, **SOME},
    "kept adam": {"pace": {"rounds": 3}, "train": {"keep_optimizer": True, "optimizer": {"kind": "adam"}}},
    "personal": {"rule": "fedbn", "pace": {"rounds": 3}},
    "asynchronous": {
        "rule": "async-dvw",
        "pace": {"updates": 12},
        "simulate": {"slow": {"kind": "lognormal", "sigma": 1.0}},
    },
    "buffered": {
        "rule": "fedbuff",
        "pace": {"updates": 12, "buffer": 3},
        "simulate": {"slow": {"kind": "lognormal"}},
    },
    "adaptive": {
        "rule": "async-dvw-adaptive",
        "pace": {"updates": 8},
        "train": {"until": {"max_epochs": 3, "cycles": 1}},
        "simulate": {"slow": {"kind": "lognormal"}},
    },
    "absent": {
        "pace": {"rounds": 3, "deadline": 5},
        "sites": {"min": 1},
        "simulate": {"availability": {"kind": "random", "up": 1.0, "down": 0.3}},
    },
}


class Killed(Exception):
    """The process ends here."""


def made(folder: Path, job: dict[str, Any], workers: int = 0) -> Simulation:
    folder.mkdir()
    usual = {"train": {"batch_size": 4} | job.get("train", {})}
    return simulation(folder, job | usual, TORCH, SITES, Options(workers=workers))


def kill_after(running: Simulation, events: int) -> None:
    """Let a simulation save itself before an event, go on for a few more, and die."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == events:
            running.saves.save()
        if count == events + 7:
            raise Killed

    running.driver.tick = tick
    try:
        running.run()
    except Killed:
        return


@pytest.mark.parametrize("name", JOBS)
def test_a_simulation_that_was_killed_goes_on_and_ends_the_same(name: str, tmp_path: Path) -> None:
    whole = history(made(tmp_path / "whole", JOBS[name]).run())
    for events in (1, 9, 16, 33):
        folder = tmp_path / str(events)
        kill_after(made(folder, JOBS[name]), events)
        again = resumed(folder / INNER)
        assert history(again.run()) == whole


def test_other_workers_may_go_on(tmp_path: Path) -> None:
    whole = history(made(tmp_path / "whole", JOBS["scaffold"]).run())
    kill_after(made(tmp_path / "killed", JOBS["scaffold"]), 20)
    again = resumed(tmp_path / "killed" / INNER, Options(workers=2))
    assert history(again.run()) == whole


def test_a_simulation_that_died_before_its_first_save_begins_again(tmp_path: Path) -> None:
    whole = history(made(tmp_path / "whole", JOBS["windows"]).run())
    made(tmp_path / "early", JOBS["windows"]).close()
    assert history(resumed(tmp_path / "early" / INNER).run()) == whole


def test_one_that_was_asked_to_end_is_saved_first(tmp_path: Path) -> None:
    whole = history(made(tmp_path / "whole", JOBS["scaffold"]).run())
    stopped = made(tmp_path / "stopped", JOBS["scaffold"])
    stopped.stopping, folder = True, tmp_path / "stopped" / INNER
    assert stopped.run().status == "cancelled"
    stopped.keep_results("0")
    assert (folder / "report.json").exists()
    again = resumed(folder)
    assert history(again.run()) == whole
    again.keep_results("0")
    assert not (folder / FOLDER).exists()
    with pytest.raises(InvalidInput, match="nothing to go on with"):
        resumed(folder)


@pytest.mark.parametrize("name", ["scaffold", "kept adam", "personal"])
def test_what_sites_remember_may_be_on_the_disk(name: str, tmp_path: Path) -> None:
    whole = history(made(tmp_path / "whole", JOBS[name]).run())
    little = made(tmp_path / "little", JOBS[name])
    little.driver.memories = Memories(1, tmp_path / "spilled")
    assert history(little.run()) == whole
    assert (tmp_path / "spilled").is_dir()
    assert list((tmp_path / "spilled").iterdir()) == []


def test_memory_for_less_than_one_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    running = simulation(tmp_path / "o", JOBS["personal"], TORCH, SITES, Options(memory=100))
    with pytest.raises(InvalidInput, match=r"one takes 0\.0 MiB"):
        running.run()
