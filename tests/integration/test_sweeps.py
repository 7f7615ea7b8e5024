"""A sweep as jobs of a standing controller: submitted one by one, followed, continued and cancelled."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import pytest

from hansa.common.values.tasks import Task, Train
from tests.e2e.conftest import hansa
from tests.support import APP, LightSite, Served, serving
from tests.waiting import until

SWEEP = f"""
base: {{app: "{APP}", pace: {{kind: sync, rounds: 2}}, data: {{source: digits}}}}
axes: {{weigh.kind: [examples, equal]}}
seeds: [1]
"""


class Patient:
    """How a site trains: only when it is told to."""

    def __init__(self) -> None:
        self.released, self.asked = asyncio.Event(), asyncio.Event()

    async def answer(self, site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            self.asked.set()
            await self.released.wait()
        await site.do(task)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SWEEP)
    return path


def words(file: Path, served: Served) -> list[str]:
    return ["sweep", str(file), "--out", str(file.parent / "out"), "--controller", served.address]


async def command(file: Path, served: Served, *more: str) -> Any:
    """Run the command to its end: the controller is in this process."""
    return await asyncio.to_thread(hansa, *words(file, served), *more, cwd=file.parent)


async def begin(file: Path, served: Served) -> Process:
    """Start the command as a process that a test can end."""
    environment = os.environ | {"HANSA_CONFIG": ""}
    python = [sys.executable, "-m", "hansa", *words(file, served)]
    return await asyncio.create_subprocess_exec(*python, env=environment, stdout=PIPE, stderr=PIPE)


async def test_the_runs_of_a_sweep_are_jobs_of_the_controller(tmp_path: Path, file: Path) -> None:
    async with serving(tmp_path / "state") as served:
        async with LightSite(served.address, "a").attending():
            async with LightSite(served.address, "a", role="evaluator").attending():
                done = await command(file, served, "--json")
                assert done.returncode == 0, done.stderr
                names = sorted(view.name for view in served.jobs.views())
                again = await command(file, served)
        assert names == ["small-equal-1", "small-examples-1"]
        assert len(served.jobs.views()) == 2, "finished runs are not submitted again"
    whole = json.loads(done.stdout)
    assert whole["way"] == f"controller {served.address}"
    assert [run["status"] for run in whole["runs"]] == ["completed"] * 2
    assert [row["metrics"]["accuracy"]["final"]["mean"] for row in whole["rows"]] == [0.75, 0.75]
    assert again.returncode == 0
    assert "margins are of a single pair" in again.stdout
    for run in whole["runs"]:
        folder = tmp_path / "out" / run["folder"]
        left = {path.name for path in folder.iterdir()}
        models = {"model.safetensors", "model-1.safetensors"}  # the last, and the best
        assert left == models | {"report.json", "report.html", "job.resolved.yaml", "run.json"}


async def test_a_sweep_that_was_killed_goes_on_with_the_job_that_it_had_submitted(
    tmp_path: Path, file: Path
) -> None:
    patient = Patient()
    async with serving(tmp_path / "state") as served:
        async with LightSite(served.address, "a", answer=patient.answer).attending():
            process = await begin(file, served)
            await patient.asked.wait()
            record = next((tmp_path / "out" / "runs").glob("*/run.json"))
            await asyncio.to_thread(
                until, lambda: json.loads(record.read_text())["job"], 20, "no job is noted"
            )
            process.kill()
            await process.communicate()
            patient.released.set()
            done = await command(file, served)
            assert done.returncode == 0, done.stderr
            assert len(served.jobs.views()) == 2
            assert {view.status for view in served.jobs.views()} == {"completed"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_cancels_the_job_and_the_same_command_continues(
    tmp_path: Path, file: Path, number: signal.Signals
) -> None:
    patient = Patient()
    async with serving(tmp_path / "state") as served:
        async with LightSite(served.address, "a", answer=patient.answer).attending():
            process = await begin(file, served)
            await patient.asked.wait()
            process.send_signal(number)
            _, complaint = await process.communicate()
            assert process.returncode == 130
            assert b"stopped; finished runs are kept, and `hansa sweep " in complaint
            assert [view.status for view in served.jobs.views()] == ["cancelled"]
            patient.released.set()
            done = await command(file, served)
            assert done.returncode == 0, done.stderr
            assert sorted(view.status for view in served.jobs.views()) == ["cancelled", *["completed"] * 2]


async def test_a_job_that_fails_shows_in_the_table(tmp_path: Path, file: Path) -> None:
    text = SWEEP.replace("[examples, equal]", "[examples]") + "set: {sites: {min: 2, wait: 0.1}}\n"
    await asyncio.to_thread(file.write_text, text)
    async with serving(tmp_path / "state") as served:
        async with LightSite(served.address, "a").attending():
            done = await command(file, served)
    assert done.returncode == 1
    assert "0 of 1" in done.stdout
    assert "failed: weigh.kind=examples, seed=1: job " in done.stdout


async def test_without_a_controller_nothing_is_run(tmp_path: Path, file: Path) -> None:
    done = await asyncio.to_thread(hansa, "sweep", str(file), "--controller", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 3
    assert "no controller answers at 127.0.0.1:1" in done.stderr
