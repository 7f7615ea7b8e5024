"""Uploads and downloads over real gRPC: resumed, refused, repeated, partial."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.models.frames import cut
from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.rpc import codec
from hansa.common.rpc.errors import translate
from hansa.common.site.transfer import Fetcher
from hansa.common.values.errors import (
    HansaError,
    InvalidInput,
    Refused,
    Rejected,
    Stale,
    Unoffered,
    Unreachable,
)
from hansa.common.values.ids import PROTOCOL, ModelKey
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine import events as ev
from hansa.protos import fleet_pb2 as fleet
from tests.support import LightSite, ended, filled, fleet_stub, job, model_of, sealed, serving, small_spec
from tests.waiting import eventually

BIG = ModelSpec(
    (
        TensorInfo("a", "float32", (600_000,), Role.PARAM),
        TensorInfo("b", "float64", (200_000,), Role.PARAM),
        TensorInfo("n", "int64", (), Role.COUNT),
    )
)
FACTS = codec.facts_to_wire(UpdateFacts(n_train=1, n_used=1, steps=1, epochs=1, seconds=0))


async def stop_at_train(site: LightSite, task: Task) -> None:
    """Answer init; leave train tasks to the test."""
    if isinstance(task.work, Train):
        site.held = task  # type: ignore[attr-defined]
        site.ready.set()
        await asyncio.Event().wait()
    await site.do(task)


class Scene:
    """A job whose only site waits with its train task in hand."""

    def __init__(self, served: Any, site: LightSite, runner: Any) -> None:
        self.served, self.site, self.runner = served, site, runner
        self.task: Task = site.held  # type: ignore[attr-defined]
        self.stub = site.attendance.stub

    def offer(self, manifest: Manifest) -> Any:
        wire = codec.manifest_to_wire(manifest)
        return self.stub.Offer(fleet.OfferRequest(site="a", task=self.task.id, manifest=wire, facts=FACTS))

    def upload(self, frames: list[bytes], start: int = 0, site: str = "a", stuck: bool = False) -> Any:
        async def messages() -> AsyncIterator[bytes]:
            yield fleet.UploadHeader(site=site, task=self.task.id, start=start).SerializeToString()
            for frame in frames:
                yield frame
            if stuck:
                await asyncio.Event().wait()

        return self.stub.Upload(messages())

    async def quarantined(self) -> str:
        """Wait until the update is quarantined; return the reason in the journal. The site is asked again."""
        journal = self.served.journal
        async with asyncio.timeout(10):
            while True:
                events = [ev.EVENT.validate_json(entry.event) for entry in journal.entries(self.runner.id)]
                for event in events:
                    if isinstance(event, ev.UpdateQuarantined):
                        assert event.task == self.task.id
                        return event.reason
                await self.runner.next_change().wait()

    async def has(self, manifest: Manifest, frames: int) -> bool:
        """Offer an update again: has the controller so many frames of it?"""
        return bool((await self.offer(manifest)).start >= frames)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with serving(tmp_path) as served:
        site = LightSite(served.address, "a", spec=BIG, answer=stop_at_train)
        async with site.attending():
            site.ready.clear()
            runner = await served.submit(job(pace={"rounds": 1}), None, _none())
            await asyncio.wait_for(site.ready.wait(), 10)
            yield Scene(served, site, runner)


async def _none() -> AsyncIterator[bytes]:
    return
    yield


def update() -> tuple[Manifest, list[bytes]]:
    rng = np.random.default_rng(1)
    arrays = {
        "a": rng.normal(size=600_000).astype(np.float32),
        "b": rng.normal(size=200_000),
        "n": np.int64(3),
    }
    manifest, payload = sealed(BIG, arrays)  # type: ignore[arg-type]
    return manifest, [frame.tobytes() for frame in cut(payload)]


async def test_a_broken_upload_goes_on_at_the_frame_that_was_missing(scene: Scene) -> None:
    manifest, frames = update()
    assert len(frames) == 4
    assert (await scene.offer(manifest)).start == 0
    broken = scene.upload(frames[:3], stuck=True)
    await eventually(lambda: scene.has(manifest, 3))
    broken.cancel()
    assert (await scene.offer(manifest)).start == 3
    receipt = await scene.upload(frames[3:], start=3)
    assert receipt.digest == manifest.digest
    await ended(scene.runner)
    np.testing.assert_array_equal(
        model_of(scene.served, scene.runner)["a"], np.frombuffer(b"".join(frames), np.float32, 600_000)
    )


async def test_an_update_that_is_committed_already_gets_its_receipt_again(scene: Scene) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    receipt = await scene.upload(frames)
    again = await scene.offer(manifest)
    assert again.receipt == receipt
    assert scene.runner.machine.state.version <= 1


async def test_a_receipt_is_given_only_once_the_update_is_durable(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    records, durable = scene.served.federation.records, asyncio.Event()
    append = records.append

    async def slow(*entries: Any) -> None:
        await durable.wait()
        await append(*entries)

    monkeypatch.setattr(records, "append", slow)
    upload = asyncio.ensure_future(scene.upload(frames))
    state, guard = scene.runner.machine.state, scene.served.guard
    await eventually(lambda: "a" in state.receipts and scene.task.id not in state.tasks)
    before = guard.calls
    again = asyncio.ensure_future(scene.offer(manifest))
    await eventually(lambda: guard.calls > before or again.done())
    async with AsyncClient(scene.served.address) as client:
        await client.show(scene.runner.id)  # by the time it is answered, the others could have been, too
    assert not upload.done()
    assert not again.done()
    durable.set()
    assert (await again).receipt == await upload


async def test_many_sites_that_fetch_one_model_cost_the_store_one_reading(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = scene.served.federation.store
    reads: list[int] = []
    opened = store.open

    def watched(key: ModelKey) -> Any:
        model = opened(key)
        read: Any = model.read

        def counted(index: int) -> bytes:
            reads.append(index)
            return read(index)  # type: ignore[no-any-return]

        model.read = counted
        return model

    monkeypatch.setattr(store, "open", watched)
    key = ModelKey(scene.runner.machine.state.current)
    with ThreadPoolExecutor(1) as pool:
        models = [(await Fetcher(scene.site.attendance, pool).fetch(key))[1] for _ in range(3)]
    assert sorted(reads) == [0, 1, 2, 3]
    for model in models[1:]:
        np.testing.assert_array_equal(model["b"], models[0]["b"])


async def refused(call: Callable[[], Any], match: str, kind: type[HansaError]) -> None:
    """Call until the answer comes through: a call that is refused while it is sending may be cut off."""
    for _ in range(20):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()
        error = translate(caught.value)
        if not isinstance(error, Unreachable):
            break
    assert match in str(error)
    assert type(error) is kind


async def test_an_upload_without_offer_or_by_a_stranger_is_refused(scene: Scene) -> None:
    manifest, frames = update()
    await refused(lambda: scene.upload(frames), "offer the update before", Unoffered)
    await scene.offer(manifest)
    await refused(lambda: scene.upload(frames, site="b"), "is over", Stale)
    await refused(lambda: scene.upload(frames, start=2), "frame 0 is expected", Unoffered)
    stranger = fleet.OfferRequest(site="b", task=scene.task.id)
    await refused(lambda: scene.stub.Offer(stranger), "is over", Stale)
    assert not scene.runner.machine.ended


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: Manifest(BIG.subset(["a", "b"]), m.digests[:2]), "missing n"),
        (
            lambda m: Manifest(
                ModelSpec((*BIG.tensors, small_spec().tensors[0])), (*m.digests, m.digests[0])
            ),
            "unexpected",
        ),
        (
            lambda m: Manifest(
                ModelSpec((TensorInfo("a", "float32", (3,), Role.PARAM), *BIG.tensors[1:])), m.digests
            ),
            "[3]",
        ),
        (
            lambda m: Manifest(
                ModelSpec((TensorInfo("a", "float16", (600_000,), Role.PARAM), *BIG.tensors[1:])), m.digests
            ),
            "float16",
        ),
        (lambda m: Manifest(ModelSpec(tuple(reversed(BIG.tensors))), tuple(reversed(m.digests))), "order"),
        (lambda m: Manifest(BIG, (b"short", *m.digests[1:])), "digest has 5 bytes"),
    ],
)
async def test_an_offer_that_does_not_fit_the_task_is_quarantined(
    scene: Scene, damage: Any, reason: str
) -> None:
    manifest, _ = update()
    await refused(lambda: scene.offer(damage(manifest)), reason, Rejected)
    assert reason in await scene.quarantined()
    assert scene.runner.view().version == 0


async def test_frames_that_are_damaged_too_long_or_too_many_are_quarantined(scene: Scene) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    flipped = bytearray(frames[3])
    flipped[100] ^= 1
    broken = [*frames[:3], bytes(flipped)]
    await refused(lambda: scene.upload(broken), "does not match its digest", Rejected)
    await refused(lambda: scene.offer(manifest), "does not match its digest", Rejected)
    assert "does not match its digest" in await scene.quarantined()
    assert scene.served.federation.store.keys(f"{scene.runner.id}/u2") == []


async def test_frames_of_a_stream_that_ends_early_are_kept(scene: Scene) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    await refused(lambda: scene.upload(frames[:2]), "ended after 2 frames", Refused)
    assert (await scene.offer(manifest)).start == 2


async def test_garbage_instead_of_a_header_is_invalid(scene: Scene) -> None:
    async def garbage() -> AsyncIterator[bytes]:
        yield b"\xff\xff\xff\xff"

    await refused(lambda: scene.stub.Upload(garbage()), "does not begin with", InvalidInput)


async def test_a_model_is_sent_only_to_a_site_with_a_task_on_it(scene: Scene) -> None:
    key = scene.runner.machine.state.current
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in scene.stub.Fetch(fleet.FetchRequest(site="spy", model=key)):
            pass
    assert caught.value.code() is grpc.StatusCode.ABORTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in scene.stub.Fetch(fleet.FetchRequest(site="a", model="../../etc/passwd")):
            pass
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_tensors_that_a_site_holds_do_not_travel_again(tmp_path: Path) -> None:
    """Of two tensors the site changes only one, which is all that travels in the next round."""
    bytes_down: list[int] = []
    wanted = filled(BIG, 0)

    async def change_a(site: LightSite, task: Task) -> None:
        if not isinstance(task.work, Train):
            await site.do(task)
            return
        for _ in range(2):
            before = runner.traffic.down
            _, arrays = await fetcher.fetch(task.work.model)
            bytes_down.append(runner.traffic.down - before)
            for name in BIG.names:
                np.testing.assert_array_equal(arrays[name], wanted[name])
        wanted["a"] += 1
        await site.send(task, wanted)

    with ThreadPoolExecutor(1) as pool:
        async with (
            serving(tmp_path) as served,
            LightSite(served.address, "a", spec=BIG, answer=change_a).attending() as site,
            asyncio.timeout(20),
        ):
            fetcher = Fetcher(site.attendance, pool)
            runner = await served.submit(job(pace={"rounds": 2}), None, _none())
            assert (await ended(runner)).view().status == "completed"
    whole, nothing, part, nothing_again = bytes_down
    assert whole > BIG.nbytes
    assert max(nothing, nothing_again) < 1000
    assert 2_400_000 < part < 2_401_000


async def test_another_protocol_version_is_refused_with_both_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        channel, stub = fleet_stub(served.address)

        async def old() -> AsyncIterator[fleet.FromSite]:
            yield fleet.FromSite(enrol=fleet.Enrol(protocol=99, version="9.9", site="a", role=fleet.LEARNER))

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Attend(old()):
                pass
        assert "protocol 99 (Hansa 9.9)" in caught.value.details()
        assert f"protocol {PROTOCOL}" in caught.value.details()
        await channel.close()


async def test_a_stream_that_does_not_enrol_or_has_a_bad_name_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        channel, stub = fleet_stub(served.address)
        enrol = fleet.Enrol(protocol=PROTOCOL, site="../x", role=fleet.LEARNER)
        for first in (fleet.FromSite(heartbeat=fleet.Heartbeat()), fleet.FromSite(enrol=enrol)):

            async def once(message: fleet.FromSite = first) -> AsyncIterator[fleet.FromSite]:
                yield message

            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Attend(once()):
                    pass
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await channel.close()


async def test_nonsense_from_an_evaluator_counts_for_nothing(tmp_path: Path) -> None:
    async def nonsense(site: LightSite, task: Task) -> None:
        report = fleet.TaskReport(site=site.name, task=task.id)
        report.evaluation.MergeFrom(fleet.Evaluation(n=4, loss_sum=2.0, classes=2, confusion=[9, 9, 9, 9]))
        with pytest.raises(HansaError, match="does not count 4 examples"):
            await site.attendance.insist(lambda: site.attendance.stub.Report(report))

    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        evaluator = LightSite(served.address, "a", role="evaluator", answer=nonsense)
        async with evaluator.attending():
            runner = await ended(await served.submit(job(pace={"rounds": 1}), None, _none()))
            assert runner.view().status == "completed"
            assert runner.view().metrics == {}


async def test_an_empty_manifest_is_rejected(scene: Scene) -> None:
    with pytest.raises(Rejected, match="names no tensors"):
        await scene.site.attendance.insist(lambda: scene.offer(Manifest(ModelSpec(()), ())))
    assert filled(small_spec(), 0)


async def test_an_update_is_offered_again_if_the_controller_forgot_the_offer_before_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had been restarted between the two."""
    offered: list[int] = []
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending() as site:

        def reach(point: str) -> None:
            if point == "task-offered":
                offered.append(1)
                if len(offered) % 2:
                    for task in list(served.federation.uploads.under_way):
                        served.federation.uploads.discard(task)

        monkeypatch.setattr("hansa.common.site.transfer.faults.reach", reach)
        async with asyncio.timeout(30):
            runner = await ended(await served.submit(job(pace={"rounds": 1}), None, _none()))
            # The job may end before its site has the last receipt.
            await eventually(lambda: len(site.receipts) == 2)
    assert runner.view().status == "completed", runner.view().reason
    assert len(offered) == 4  # the first model and the update, twice each
    assert [receipt.task for receipt in site.receipts] == [f"{runner.id}-1", f"{runner.id}-2"]
