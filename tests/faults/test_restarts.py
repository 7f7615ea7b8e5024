"""A controller that is killed and restarted at moments that only a proxy in the network can choose."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cutting_proxy import CuttingProxy
from tests.e2e.conftest import Site, weights
from tests.waiting import eventually

# Large enough that an update has a connection of its own; training waits until the test writes to a pipe.
APP = """
from pathlib import Path
import numpy as np
from hansa import App
from hansa.common.values.results import Evaluation

def train(arrays, run):
    with Path("trained").open("a") as file:
        file.write("x")
    Path("go").read_text()
    arrays["w"] += 1
    return arrays

def evaluate(arrays, examples):
    return Evaluation(n=1, loss_sum=1.0, confusion=((1, 0), (0, 0)))

app = App(model=lambda: {"w": np.zeros(SIZE, np.float32)}, classes=2, train=train, evaluate=evaluate)
"""
ONE = (
    "--set",
    "sites={min: 1, wait: 60}",
    "--set",
    "pace.rounds=1",
    "--set",
    "train={epochs: 1, batch_size: 8}",
)


class Restarts(Site):
    """A learner behind a proxy."""

    grace = 60.0

    async def until_there(self, what: Path) -> None:
        await eventually(what.exists, 60)


@pytest.fixture
async def restarts(tmp_path: Path) -> AsyncIterator[Restarts]:
    os.mkfifo(tmp_path / "go")
    made = Restarts(tmp_path)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


@pytest.mark.timeout(120)
async def test_an_update_survives_a_controller_that_is_killed_between_offer_and_upload(
    restarts: Restarts,
) -> None:
    (restarts.folder / "app.py").write_text(APP.replace("SIZE", str(9 << 18)))
    hub = await asyncio.to_thread(restarts.controller)
    async with CuttingProxy(hub).listening() as proxy:
        restarts.address = proxy.address
        restarts.daemon("learner", "a")
        restarts.address = hub
        job = (await asyncio.to_thread(restarts.json, "job", "submit", "job.yaml", *ONE))["job"]
        await restarts.until_there(restarts.folder / "trained")
        proxy.passes.clear()
        proxy.made.clear()
        await asyncio.to_thread((restarts.folder / "go").write_text, "")
        await asyncio.wait_for(proxy.made.wait(), 30)  # the offer was answered over the old connection
        restarts.kill("controller")
        await asyncio.to_thread(restarts.controller, "controller-2", hub)
        proxy.passes.set()
        watched = await asyncio.to_thread(restarts.cli, "job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    shown = await asyncio.to_thread(restarts.json, "job", "show", job)
    assert weights(shown["history"][-1]) == {"a": 48.0}
    assert (restarts.folder / "trained").read_text() == "x"
    log = restarts.log("learner-a").read_text()
    assert log.count("receipt") == 2  # for the first model and for the update
    assert "failed" not in log
    assert "Traceback" not in log + restarts.log("controller-2").read_text()


@pytest.mark.timeout(120)
async def test_an_update_survives_a_controller_that_is_killed_while_it_comes(restarts: Restarts) -> None:
    """The frames are lost with the controller; the update is offered again and uploaded from the start."""
    (restarts.folder / "app.py").write_text(APP.replace("SIZE", str(9 << 18)))
    hub = await asyncio.to_thread(restarts.controller)
    async with CuttingProxy(hub).listening() as proxy:
        restarts.address = proxy.address
        restarts.daemon("learner", "a")
        restarts.address = hub
        job = (await asyncio.to_thread(restarts.json, "job", "submit", "job.yaml", *ONE))["job"]
        await restarts.until_there(restarts.folder / "trained")
        proxy.up, before = 4 << 20, proxy.sent
        await asyncio.to_thread((restarts.folder / "go").write_text, "")
        await asyncio.wait_for(proxy.stuck.wait(), 30)
        assert proxy.sent - before >= 4 << 20
        restarts.kill("controller")
        proxy.up = None
        await asyncio.to_thread(restarts.controller, "controller-2", hub)
        watched = await asyncio.to_thread(restarts.cli, "job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    assert (restarts.folder / "trained").read_text() == "x"
    assert "failed" not in restarts.log("learner-a").read_text()


async def dialled(address: str, times: int) -> None:
    """Hang up on everybody who connects to an address, until so many have tried."""
    dials, enough = 0, asyncio.Event()

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dials
        dials += 1
        if dials == times:
            enough.set()
        writer.transport.abort()

    host, _, port = address.rpartition(":")
    async with await asyncio.start_server(hang_up, host, int(port)):
        await asyncio.wait_for(enough.wait(), 30)


@pytest.mark.timeout(120)
async def test_sites_reconnect_soon_after_their_controller_which_was_down_for_some_seconds(
    restarts: Restarts,
) -> None:
    hub = await asyncio.to_thread(restarts.controller)
    names = [
        restarts.daemon(role, site) for role, site in (("learner", "a"), ("evaluator", "a"), ("learner", "b"))
    ]
    logs = [restarts.log(name) for name in names]
    for number in (1, 2):
        await eventually(
            lambda: all(log.read_text().count("is connected to") == number for log in logs),  # noqa: B023
            60 if number == 1 else 5,
        )
        if number == 1:
            restarts.kill("controller")
            await dialled(hub, 8 * len(names))  # doubled from try to try, the pauses would be long by now
            await asyncio.to_thread(restarts.controller, "controller-2", hub)
    assert all(log.read_text().count("out of reach") == 1 for log in logs)
