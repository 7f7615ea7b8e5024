"""However a simulation ends, the processes that work for it end, too."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.conftest import hansa
from tests.e2e.simulated_scene import Scene, alive
from tests.processes import marked, new_mark
from tests.waiting import until

CREWS = [
    pytest.param(["--workers", "2"], id="workers"),
    pytest.param(
        ["--ray", "auto", "--workers", "2"],
        id="ray",
        marks=(
            pytest.mark.slow,
            pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install 'hansa[ray]'"),
        ),
    ),
]


@pytest.mark.parametrize("crew", CREWS)
def test_nothing_outlives_a_driver_that_is_killed(crew: list[str], tmp_path: Path) -> None:
    scene, mark = Scene(tmp_path), new_mark()
    scene.hold()
    with scene.start("out", *crew, env=mark) as driver:
        assert scene.busy(2)
        driver.kill()
    until(lambda: not marked(mark), 20, lambda: f"these are left: {marked(mark)}")


@pytest.mark.slow
def test_a_driver_that_was_killed_goes_on_from_its_save(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    alone = hansa("simulate", "job.yaml", "--out", "alone", "--json", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    scene.hold()
    with scene.start("out", "--workers", "2", saving=True) as driver:
        pids = scene.busy(2)
        until((tmp_path / "out/save/state").exists, 20, "nothing was saved")
        driver.kill()
    until(lambda: not any(map(alive, pids)), 20, "a worker is left")
    scene.go_on()
    done = hansa("simulate", "--resume", "out", "--workers", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert scene.digests("out") == scene.digests("alone")


@pytest.mark.parametrize("crew", CREWS)
@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_keeps_the_results(crew: list[str], tmp_path: Path) -> None:
    scene, mark = Scene(tmp_path), new_mark()
    scene.hold()
    with scene.start("out", *crew, env=mark) as driver:
        assert scene.busy(2)
        os.killpg(driver.pid, signal.SIGINT)
        assert driver.stderr is not None
        until(lambda: "stopping" in (driver.stderr.readline() if driver.stderr else ""), 20)
        scene.go_on()
        assert driver.wait(60) == 130
    assert scene.digests("out")
    until(lambda: not marked(mark), 20, lambda: f"these are left: {marked(mark)}")
