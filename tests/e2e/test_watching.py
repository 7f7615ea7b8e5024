"""Watching a job through the command line while its controller is killed, is away, and comes back."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cutting_proxy import CuttingProxy
from tests.e2e.conftest import Site
from tests.waiting import until

SLOW = ("--set", "sites.min=1", "--set", "pace.rounds=8", "--set", "train.epochs=1")


class Watched(Site):
    """A scene in which commands are left running."""

    grace = 60.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.commands: list[asyncio.subprocess.Process] = []

    async def begin(self, *words: str, controller: str = "") -> asyncio.subprocess.Process:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hansa", *words, "--controller", controller or self.address),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.commands.append(command)
        return command

    async def version(self, least: int) -> None:
        """Wait until a job has made a version."""

        def is_there() -> bool:
            done = self.cli("job", "list", "--json")
            return done.returncode == 0 and any(job["version"] >= least for job in json.loads(done.stdout))

        await asyncio.to_thread(until, is_there, 60)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    made = Watched(tmp_path)
    try:
        yield made
    finally:
        for command in made.commands:
            if command.returncode is None:
                command.kill()
                await command.wait()
        await asyncio.to_thread(made.close)


async def said(command: asyncio.subprocess.Process) -> tuple[str, str]:
    out, err = await asyncio.wait_for(command.communicate(), 60)
    return out.decode(), err.decode()


async def heard(stream: asyncio.StreamReader | None, words: str) -> str:
    """Read what a command says until the words come."""
    assert stream
    text = ""
    async with asyncio.timeout(60):
        while words not in text:
            line = (await stream.readline()).decode()
            assert line, text
            text += line
    return text


@pytest.mark.timeout(180)
@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
async def test_watching_goes_on_after_a_restart_and_neither_repeats_nor_skips_a_line(
    watched: Watched, stopped: bool
) -> None:
    hub = await asyncio.to_thread(watched.controller)
    watched.daemon("learner", "a", pause=0.1)
    waiting = await watched.begin("job", "submit", "job.yaml", *SLOW, "--wait")
    begun = await heard(waiting.stdout, "round 2/8")
    if stopped:
        await asyncio.to_thread(watched.nursery.stop, ["controller"])
    else:
        watched.kill("controller")
    lost = await heard(waiting.stderr, "lost the connection")
    await asyncio.to_thread(watched.controller, "controller-2", hub)
    out, err = await said(waiting)
    assert waiting.returncode == 0, err
    assert re.findall(r"round (\d)/8", begun + out) == list("12345678")
    assert (begun + out).count("completed") == 1
    assert f"hansa: lost the connection to {hub}; trying again (Ctrl-C stops watching, not the job)" in lost
    assert f"hansa: connected to {hub} again after" in err
    assert "Traceback" not in err


@pytest.mark.timeout(180)
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_job_that_ended_while_the_connection_was_lost_ends_the_watching(
    watched: Watched, cancelled: bool
) -> None:
    hub = await asyncio.to_thread(watched.controller)
    watched.daemon("learner", "a", pause=0.1)
    rounds = "pace.rounds=1000" if cancelled else "pace.rounds=6"
    async with CuttingProxy(hub).listening() as proxy:
        words = ("job.yaml", *SLOW, "--set", rounds, "--wait", "--json")
        silent = await watched.begin("job", "submit", *words, controller=proxy.address)
        await watched.version(0)
        plain = await watched.begin("job", "watch", "plane", controller=proxy.address)
        begun = await heard(plain.stdout, "round 1/")
        proxy.passes.clear()
        proxy.cut()
        await heard(plain.stderr, "lost the connection")
        await heard(silent.stderr, "lost the connection")
        if cancelled:
            await asyncio.to_thread(watched.json, "job", "cancel", "plane")
        else:
            await watched.version(6)
        proxy.passes.set()
        (out, _), (document, err) = await said(plain), await said(silent)
    assert plain.returncode == silent.returncode == (1 if cancelled else 0)
    assert f"{'cancelled' if cancelled else 'completed'}: " in out.splitlines()[-1]
    seen = [int(n) for n in re.findall(r"round (\d+)/", begun + out)]
    assert seen == list(range(1, len(seen) + 1))
    assert cancelled or len(seen) == 6
    assert json.loads(document)["status"] == ("cancelled" if cancelled else "completed")
    assert "connected to" in err


@pytest.mark.timeout(120)
async def test_ctrl_c_while_waiting_says_that_the_job_goes_on(watched: Watched) -> None:
    await asyncio.to_thread(watched.controller)
    watched.daemon("learner", "a", pause=0.1)
    for words in (("submit", "job.yaml", *SLOW, "--set", "pace.rounds=1000", "--wait"), ("watch", "plane")):
        command = await watched.begin("job", *words)
        job = (await heard(command.stdout, "round 1/")).split()[1]
        command.send_signal(signal.SIGINT)
        _, err = await said(command)
        assert command.returncode == 130
        assert (
            f"hansa: stopped watching; job {job} continues: `hansa job watch {job}` follows it again" in err
        )
        assert "Traceback" not in err
    shown: Any = await asyncio.to_thread(watched.json, "job", "show", "plane")
    assert shown["status"] == "running"


async def test_a_controller_that_never_answered_is_not_waited_for(watched: Watched) -> None:
    command = await watched.begin("job", "watch", "plane", controller="127.0.0.1:1")
    _, err = await said(command)
    assert command.returncode == 3
    assert "no controller answers at 127.0.0.1:1" in err
