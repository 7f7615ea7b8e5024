"""After any job sites serve the next one: random jobs with extreme numbers, against real processes.

`HANSA_EXTREME_JOBS=500 pytest tests/e2e/test_extreme_jobs.py -s` is the long form; `HANSA_EXTREME_SEED`
chooses others.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from hansa.common.client.connection import DOCUMENT
from hansa.common.job.file import load_job
from hansa.common.rpc.channel import connect
from hansa.common.rpc.methods import Stub
from hansa.protos import operator_pb2 as operator
from tests.e2e.conftest import APP, Site
from tests.extreme_jobs import Extremes

JOBS, SEED = int(os.environ.get("HANSA_EXTREME_JOBS", "40")), int(os.environ.get("HANSA_EXTREME_SEED", "14"))
REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
ENDED = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED}  # before it could be cancelled
MOMENT = 0.7  # seconds that a job may run before it is cancelled
PATIENCE = 10.0  # seconds in which an ordinary job is done, whatever was before it


class Desk:
    """An operator who speaks gRPC without the checks of our command line."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = Stub(channel, operator.DESCRIPTOR.services_by_name["Operator"])
        self._count = 0

    async def submit(self, document: Any) -> Any:
        self._count += 1  # each job is somebody else's: nobody may submit so many
        header = operator.SubmitHeader(job_json=json.dumps(document), operator=f"operator{self._count}")

        async def messages() -> AsyncIterator[bytes]:
            yield header.SerializeToString()

        reply = await self._stub.Submit(messages(), timeout=20)
        return json.loads(reply.view_json)

    async def wait(self, job: str) -> Any:
        async for reply in self._stub.Watch(operator.JobRequest(job=job)):
            view = json.loads(reply.view_json)
        return view

    async def cancel(self, job: str) -> Any:
        try:
            return json.loads((await self._stub.Cancel(operator.JobRequest(job=job), timeout=20)).view_json)
        except grpc.aio.AioRpcError as error:
            if error.code() not in ENDED:
                raise
            return await self.wait(job)


async def trial(address: str, ordinary: Any) -> Counter[str]:
    """Submit extreme jobs, and after each that was accepted an ordinary one, which must be done in time."""
    outcomes: Counter[str] = Counter()
    extremes = Extremes(SEED, APP)
    channel = connect(address, DOCUMENT)
    slowest, desk = 0.0, Desk(channel)
    try:
        for number in range(JOBS):
            document = extremes.job()
            said = f"job {number} of seed {SEED}: {json.dumps(document)[:2000]}"
            try:
                view = await desk.submit(document)
            except grpc.aio.AioRpcError as error:
                if error.code() not in REFUSALS:
                    raise AssertionError(f"{error.code()} {error.details()}: {said}") from None
                outcomes["refused"] += 1
                continue
            try:
                async with asyncio.timeout(MOMENT):
                    view = await desk.wait(view["job"])
            except TimeoutError:
                view = await desk.cancel(view["job"])
            outcomes[view["status"]] += 1
            began = time.monotonic()
            next_ = (await desk.submit(ordinary))["job"]
            try:
                async with asyncio.timeout(PATIENCE):
                    view = await desk.wait(next_)
            except TimeoutError:
                raise AssertionError(f"the next job was not done in {PATIENCE:g} s after {said}") from None
            assert view["status"] == "completed", f"{view['reason']} after {said}"
            slowest = max(slowest, time.monotonic() - began)
    finally:
        await channel.close()
    print(f"{JOBS} jobs of seed {SEED}: {dict(outcomes)}; the slowest next job took {slowest:.2f} s")
    return outcomes


@pytest.mark.timeout(120 + 4 * JOBS)
@pytest.mark.slow
def test_after_any_job_with_extreme_numbers_every_site_serves_the_next_one(scene: Site) -> None:
    address = scene.controller()
    daemons = [scene.daemon(role, site) for site in "abc" for role in ("learner", "evaluator")]
    scene.until(lambda: len(scene.json("site", "list")) == len(daemons), seconds=60)
    changes = ["pace.rounds=1", "sites.min=3", "train.epochs=1"]
    ordinary = load_job(scene.folder / "job.yaml", changes).model_dump(
        mode="json", exclude={"data", "operator"}
    )
    outcomes = asyncio.run(trial(address, ordinary))
    assert outcomes["refused"] > JOBS // 10, outcomes
    assert outcomes.total() - outcomes["refused"] > JOBS // 10, outcomes
    after = {(daemon["site"], daemon["role"]): daemon["state"] for daemon in scene.json("site", "list")}
    assert after == {(site, role): "attending" for site in "abc" for role in ("learner", "evaluator")}
    for daemon in daemons:
        log = scene.log(daemon).read_text()
        assert "out of reach" not in log, log[-3000:]
