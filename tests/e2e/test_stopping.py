"""Stopping a learner: the task in hand is finished if there is time, and given up if there is not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from hansa.protos import fleet_pb2
from tests.e2e.conftest import APP, Site


@pytest.mark.parametrize(("drain", "finished"), [("60", True), ("0", False)])
def test_a_stopped_learner_finishes_its_task_if_it_may(scene: Site, drain: str, finished: bool) -> None:
    scene.controller()
    learner = scene.daemon("learner", "a", pause=0.4, HANSA_DRAIN=drain)
    submitted = scene.cli("job", "submit", "job.yaml", "--set", "sites.min=1", "--set", "pace.rounds=1")
    assert submitted.returncode == 0, submitted.stderr
    scene.until(
        lambda: [task for each in scene.json("site", "list") for task in each["doing"] if task[-2:] == "-2"],
        60,
    )
    process = scene.nursery.processes[learner]
    process.terminate()
    process.join(60)
    log = scene.log(learner).read_text()
    assert process.exitcode == 0, log
    assert ("finishing task" in log) is finished
    job = scene.json("job", "show", "plane")
    assert (job["version"] == 1) is finished, job
    if finished:
        assert job["status"] == "completed"


def test_a_learner_in_a_task_of_any_number_of_batches_stops_at_once(scene: Site) -> None:
    """The longest rounds that semisync allows, on windows of batches: weeks of steps in one task."""
    scene.controller()
    learner = scene.daemon("learner", "a")
    sets = ["rule=semisync-fedavg", "pace={lambda: 10000.0, rounds: 2}", "train={batches: 1, batch_size: 1}"]
    more = ["sites.min=1", "name=long"]
    submitted = scene.cli(
        "job", "submit", "job.yaml", *(word for each in [*sets, *more] for word in ("--set", each))
    )
    assert submitted.returncode == 0, submitted.stderr
    scene.until(
        lambda: [task for each in scene.json("site", "list") for task in each["doing"] if task[-2:] == "-3"],
        60,
    )
    process = scene.nursery.processes[learner]
    process.terminate()
    process.join(20)
    assert process.exitcode == 0, scene.log(learner).read_text()


ABSURD = {
    "batches": (1 << 32) - 1,
    "epochs": (1 << 32) - 1,
    "steps": (1 << 64) - 1,
    "batch_size": (1 << 32) - 1,
}


def test_a_learner_refuses_the_absurd_tasks_of_a_hostile_controller_and_goes_on(scene: Site) -> None:
    reports = asyncio.run(hostile(scene))
    assert set(reports) == {f"j1-{number}" for number in range(len(ABSURD))}
    for number, field in enumerate(ABSURD):
        failure = reports[f"j1-{number}"].failure
        assert failure.final
        assert "cannot read the task" in failure.reason
        assert field in failure.reason


async def hostile(scene: Site) -> "dict[str, fleet_pb2.TaskReport]":
    """Be a controller that asks a real learner for absurd numbers; return what it reports."""
    reports: dict[str, fleet_pb2.TaskReport] = {}
    done = asyncio.Event()

    async def attend(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        enrolled = fleet_pb2.Enrolled(controller="x", heartbeat_seconds=5)
        yield fleet_pb2.ToSite(enrolled=enrolled).SerializeToString()
        for number, (field, value) in enumerate(ABSURD.items()):
            task = fleet_pb2.Task(id=f"j1-{number}", job="j1", site="a", round=1, app=APP, seed=1)
            fields: dict[str, Any] = {"model": "j1/v0", "epochs": 1, "batch_size": 8} | {field: value}
            task.train.MergeFrom(
                fleet_pb2.TrainWork(optimizer=fleet_pb2.Optimizer(kind="sgd", lr=0.1), **fields)
            )
            yield fleet_pb2.ToSite(task=task).SerializeToString()
        async for _ in messages:
            pass

    async def report(message: bytes, _: Any) -> bytes:
        said = fleet_pb2.TaskReport.FromString(message)
        reports[said.task] = said
        if len(reports) == len(ABSURD):
            done.set()
        return b""

    kinds = {
        "Attend": grpc.stream_stream_rpc_method_handler(attend),
        "Report": grpc.unary_unary_rpc_method_handler(report),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hansa.v1.Fleet", kinds),))
    scene.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    learner = scene.daemon("learner", "a")
    try:
        async with asyncio.timeout(60):
            await done.wait()
        assert scene.nursery.processes[learner].exitcode is None
    finally:
        await server.stop(None)
    return reports
