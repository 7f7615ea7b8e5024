"""Offers, uploads and downloads of a hostile or broken caller, and the status they get."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hansa.common.models.frames import FRAME, cut
from hansa.common.rpc import codec
from hansa.common.rpc.guard import Limits
from hansa.common.values.bounds import STEPS
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Init, Task, Train
from hansa.protos import fleet_pb2, model_pb2, operator_pb2
from tests.consortium import Consortium, channel, fleet
from tests.integration.attacker import CODE, QUICK, bomb, enrolment, only_init, status, training
from tests.support import (
    LightSite,
    Served,
    ended,
    filled,
    fleet_stub,
    job,
    nothing,
    sealed,
    serving,
    small_spec,
)
from tests.waiting import eventually


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, limits=QUICK) as found:
        yield found


def offered(task: Task, value: float = 1.0) -> tuple[fleet_pb2.OfferRequest, Any]:
    manifest, payload = sealed(small_spec(), filled(small_spec(), value))
    facts = UpdateFacts(n_train=1, n_used=1, steps=1, epochs=1, seconds=0)
    request = fleet_pb2.OfferRequest(
        site="a", task=task.id, manifest=codec.manifest_to_wire(manifest), facts=codec.facts_to_wire(facts)
    )
    return request, payload


async def upload(stub: Any, task: Task, frames: AsyncIterator[bytes]) -> tuple[grpc.StatusCode, str]:
    async def words() -> AsyncIterator[bytes]:
        yield fleet_pb2.UploadHeader(site="a", task=task.id).SerializeToString()
        async for frame in frames:
            yield frame

    return await status(stub.Upload(words()))


async def frames_of(*frames: bytes, endless: bool = False) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame
    if endless:
        await asyncio.Event().wait()


async def test_an_update_counts_once_however_often_it_is_sent(served: Served) -> None:
    async with LightSite(served.address, "a", answer=only_init).attending() as site:
        runner, task = await training(served, pace={"kind": "sync", "rounds": 2})
        stub = site.attendance.stub
        request, payload = offered(task)
        await stub.Offer(request)
        whole = [frame.tobytes() for frame in cut(payload)]
        assert (await upload(stub, task, frames_of(*whole)))[0] is CODE.OK
        again = await stub.Offer(request)  # a replay gets the receipt it got before
        assert again.receipt.task == task.id
        # A replay of the frames gets it, too, and nobody reads them.
        assert (await upload(stub, task, frames_of(*whole)))[0] is CODE.OK
        other, _ = offered(task, 9.0)
        assert (await stub.Offer(other)).receipt.digest == again.receipt.digest  # nor can it be exchanged
        entries = served.journal.entries(runner.id)
        receipts = [entry for entry in entries if task.id in entry.receipt]
        updates = [entry for entry in receipts if json.loads(entry.event)["kind"] == "update"]
        assert len(updates) == 1


@pytest.mark.parametrize(
    "facts", [{"steps": (1 << 64) - 1}, {"n_train": 1 << 63}, {"seconds": 1e300}, {"epochs": 1e300}]
)
async def test_absurd_facts_are_refused(served: Served, facts: dict[str, Any]) -> None:
    async with LightSite(served.address, "a", answer=only_init).attending() as site:
        _, task = await training(served)
        request, _ = offered(task)
        for name, value in facts.items():
            setattr(request.facts, name, value)
        code, text = await status(site.attendance.stub.Offer(request))
        assert (code, "facts are invalid" in text) == (CODE.INVALID_ARGUMENT, True)


async def test_facts_at_their_limits_disturb_nobody(served: Served) -> None:
    async def boast(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            await site.send(task, filled(site.spec, 1.0), steps=STEPS, epochs=1e-300, seconds=1e9, n_train=1)
        else:
            await site.do(task)

    async with (
        LightSite(served.address, "a", answer=boast).attending(),
        LightSite(served.address, "b").attending(),
    ):
        pace = {"kind": "semisync", "rounds": 3}
        runner = await served.submit(job(pace=pace, sites={"min": 2}), None, nothing())
        async with asyncio.timeout(20):
            await ended(runner)
        assert runner.machine.state.status == "completed"


async def test_an_upload_that_never_ends_is_ended(served: Served) -> None:
    async with LightSite(served.address, "a", answer=only_init).attending() as site:
        _, task = await training(served)
        stub = site.attendance.stub
        request, payload = offered(task)
        await stub.Offer(request)
        code, text = await upload(stub, task, frames_of(endless=True))
        assert (code, "1 s" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        code, text = await upload(stub, task, frames_of(bytes(FRAME + 1)))
        assert (code, str(FRAME) in text) == (CODE.RESOURCE_EXHAUSTED, True)
        code, text = await upload(stub, task, frames_of(payload.tobytes(), payload.tobytes()))
        assert (code, "more than" in text) == (CODE.DATA_LOSS, True)


async def test_a_site_that_never_builds_the_first_model_does_not_hold_up_the_job(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hansa.controller.engine.handlers.first_model.PATIENCE", 0.5)

    async def hang(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Init):
            await asyncio.wait_for(withdrawn.wait(), 20)
        else:
            await site.do(task)

    withdrawn = asyncio.Event()
    async with LightSite(served.address, "a", answer=hang).attending() as site:
        async with LightSite(served.address, "b").attending():
            runner = await served.submit(job(sites={"min": 2}), None, nothing())
            async with asyncio.timeout(20):
                await eventually(lambda: site.cancelled)
                withdrawn.set()
                await ended(runner)
    assert runner.machine.state.status == "completed"


async def test_a_site_that_asks_for_models_and_reads_none_does_not_hold_up_the_others(tmp_path: Path) -> None:
    big = small_spec(rows=1 << 20)  # more than a connection holds
    async with serving(tmp_path, limits=Limits(counted=100)) as served:
        async with LightSite(served.address, "a", answer=only_init, spec=big).attending() as evil:
            _, task = await training(served, sites={"min": 1, "names": ["a"]})
            request = fleet_pb2.FetchRequest(site="a", model=getattr(task.work, "model", ""))
            calls = [evil.attendance.stub.Fetch(request) for _ in range(100)]
            for call in calls[:3]:  # one after the other has the place, and the rest are in line by then
                await anext(aiter(call))
            async with LightSite(served.address, "b").attending():
                runner = await served.submit(job(sites={"min": 1, "names": ["b"]}), None, nothing())
                async with asyncio.timeout(5):  # each of the hundred would have a place for half a second
                    await ended(runner)
            for call in calls:
                call.cancel()


async def test_downloads_that_nobody_reads_are_few(served: Served) -> None:
    big = small_spec(rows=1 << 20)  # more than a connection holds
    async with LightSite(served.address, "a", answer=only_init, spec=big).attending() as site:
        _, task = await training(served)
        request = fleet_pb2.FetchRequest(site="a", model=getattr(task.work, "model", ""))
        calls = [site.attendance.stub.Fetch(request) for _ in range(QUICK.counted)]
        for call in calls:
            await anext(aiter(call))
        code, text = await status(anext(aiter(site.attendance.stub.Fetch(request))))
        assert (code, f"{QUICK.counted} downloads" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        for call in calls:
            call.cancel()


async def test_offers_of_one_caller_are_few_and_counted_before_they_are_read(tmp_path: Path) -> None:
    """A message may have 16 MiB: thousands of unfinished ones would use up all memory."""
    pki = Consortium(tmp_path / "pki")
    limits = Limits(patience=3.0)
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub"), limits=limits) as served:
        of = channel(served.address, pki.issue("learner", "evil"))

        async def silent() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        begun = [of.stream_unary("/hansa.v1.Fleet/Offer")(silent()) for _ in range(4)]
        await eventually(lambda: len(served.guard.calls) == 4)
        code, text = await status(fleet(of).Offer(fleet_pb2.OfferRequest(site="evil", task="j00000000-1")))
        assert (code, text) == (
            CODE.RESOURCE_EXHAUSTED,
            "learner evil has 4 offers under way, which is the limit",
        )
        for call in begun:
            assert "no message arrived for 3 s" in (await status(call))[1]
        await of.close()


def large(method: str) -> tuple[bytes, grpc.StatusCode]:
    """Return a large message for an RPC, and the status it gets."""
    long = "x" * (4 * FRAME)
    match method:
        case "Fleet/Offer":
            offer = fleet_pb2.OfferRequest(
                site="a", task="j00000000-1", manifest=model_pb2.Manifest(layers=[long])
            )
            return offer.SerializeToString(), CODE.NOT_FOUND
        case "Fleet/Report":
            report = fleet_pb2.TaskReport(
                site="a", task="j00000000-1", failure=fleet_pb2.Failure(reason=long)
            )
            return report.SerializeToString(), CODE.NOT_FOUND
        case "Fleet/Attend":
            return enrolment(
                protocol=9, version=long[: FRAME // 2]
            ).SerializeToString(), CODE.FAILED_PRECONDITION
        case "Operator/Submit":
            header = operator_pb2.SubmitHeader(job_json="{}", manifest=model_pb2.Manifest(layers=[long]))
            return header.SerializeToString(), CODE.INVALID_ARGUMENT
        case _:
            return long.encode(), CODE.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "method", ["Fleet/Offer", "Fleet/Report", "Fleet/Attend", "Operator/Submit", "Operator/Show"]
)
async def test_refused_messages_are_not_kept(served: Served, method: str) -> None:
    """Large messages do not make Python collect garbage: none of them may be part of a cycle."""
    of = grpc.aio.insecure_channel(served.address)
    message, wanted = large(method)

    async def words() -> AsyncIterator[bytes]:
        yield message

    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            call = of.stream_stream(f"/hansa.v1.{method}")(words())
            assert (await status(anext(aiter(call), None)))[0] is wanted
        await eventually(lambda: not served.guard.calls)
        found = [held for each in gc.get_objects() for held in gc.get_referents(each) if type(held) is bytes]
    finally:
        gc.enable()
    kept = {id(held) for held in found if len(held) == len(message)} - {id(message)}
    assert len(kept) <= 1
    await of.close()


async def test_an_offer_that_nobody_waits_for_is_refused_before_its_manifest_is_decoded(
    served: Served,
) -> None:
    of, stub = fleet_stub(served.address)
    async with LightSite(served.address, "a", answer=only_init).attending():
        _, task = await training(served)
        for site, name, wanted in (("b", task.id, CODE.ABORTED), ("a", "j00000000-1", CODE.NOT_FOUND)):
            offer = fleet_pb2.OfferRequest(site=site, task=name, manifest=bomb("many"))
            assert (await status(stub.Offer(offer)))[0] is wanted
    await of.close()


async def test_an_upload_of_another_site_is_refused(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub")) as served:
        mine = pki.issue("learner", "a")
        async with LightSite(served.address, "a", tls=mine, answer=only_init).attending() as site:
            _, task = await training(served)
            request, _ = offered(task)
            await site.attendance.stub.Offer(request)
            thief = fleet(channel(served.address, pki.issue("learner", "b")))
            theirs = fleet_pb2.OfferRequest(
                site="b", task=task.id, manifest=request.manifest, facts=request.facts
            )
            assert (await status(thief.Offer(theirs)))[0] is CODE.ABORTED
            assert (await status(thief.Offer(request)))[0] is CODE.PERMISSION_DENIED
            stolen = thief.Fetch(fleet_pb2.FetchRequest(site="b", model=getattr(task.work, "model", "")))
            assert (await status(anext(aiter(stolen))))[0] is CODE.ABORTED
