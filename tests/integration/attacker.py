"""What tests of attacks share: a controller with short patience, and callers that say what they like."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc

from hansa.common.models.model import MAX_TENSORS
from hansa.common.rpc.guard import Limits
from hansa.common.values.ids import PROTOCOL
from hansa.common.values.tasks import Task, Train
from hansa.protos import fleet_pb2, model_pb2
from tests.support import LightSite, Served, job, nothing

CODE = grpc.StatusCode
QUICK = Limits(calls=50, counted=4, patience=1.0, silence=1.0)


async def status(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    try:
        async with asyncio.timeout(20):
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    return CODE.OK, ""


async def training(served: Served, **more: Any) -> tuple[Any, Task]:
    """Submit a job and return it with the training task of its only site."""
    runner = await served.submit(job(**more), None, nothing())
    while not (
        open_ := [task for task in runner.machine.state.tasks.values() if isinstance(task.work, Train)]
    ):
        await runner.next_change().wait()
    return runner, open_[0]


async def only_init(site: LightSite, task: Task) -> None:
    if isinstance(task.work, Train):
        await asyncio.Event().wait()
    await site.do(task)


def enrolment(**fields: Any) -> fleet_pb2.FromSite:
    given: dict[str, Any] = {
        "protocol": PROTOCOL,
        "site": "a",
        "role": fleet_pb2.LEARNER,
        "instance": "x",
    } | fields
    return fleet_pb2.FromSite(enrol=fleet_pb2.Enrol(**given))


async def attend(stub: Any, *messages: fleet_pb2.FromSite) -> tuple[grpc.StatusCode, str]:
    async def words() -> AsyncIterator[fleet_pb2.FromSite]:
        for message in messages:
            yield message

    return await status(anext(aiter(stub.Attend(words()))))


def bomb(kind: str) -> model_pb2.Manifest:
    wire = model_pb2.Manifest()
    if kind == "many":
        for _ in range(MAX_TENSORS + 1):
            wire.tensors.add(role=model_pb2.PARAM)
        return wire
    shape = {
        "overflow": [1 << 40, 1 << 40],
        "negative": [(1 << 64) - 1],
        "absurd": [1 << 41],
        "deep": [2] * 100_000,
        "deep and wide": [(1 << 63)] * 100_000,
    }[kind]
    wire.tensors.add(name="w", dtype="float32", shape=shape, role=model_pb2.PARAM, digest=bytes(32))
    return wire
