"""Disturbed uploads (broken, doubled, overtaken, damaged): nothing bad gets in, nothing is left behind."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hansa.common.models.frames import FRAME, Buffer, Layout, cut
from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.rpc.guard import Limits
from hansa.common.values.errors import Refused, Rejected, Stale, StoreFailed, TooLarge, Unproven
from hansa.common.values.ids import ModelKey
from hansa.controller.engine import events as ev
from hansa.controller.storage.stores import Draft
from hansa.controller.transfers.gate import Gate
from hansa.protos import fleet_pb2 as fleet
from tests.integration.test_transfer import Scene, refused, stop_at_train
from tests.redis_server import RedisServer
from tests.support import LightSite, ended, job, model_of, nothing, pace_checked, sealed, serving
from tests.waiting import eventually

LONG = ModelSpec(
    (
        TensorInfo("a", "float32", (3 * FRAME // 4,), Role.PARAM),
        TensorInfo("b", "float32", (3 * FRAME // 4,), Role.PARAM),
        TensorInfo("c", "float32", (3 * FRAME // 4 + 5,), Role.PARAM),
        TensorInfo("n", "int64", (), Role.COUNT),
    )
)
FRAMES = Layout(LONG).frames  # three batches


@pytest.fixture
def limits() -> Limits | None:
    """The limits of the scene's controller; a test that needs others gives this parameter a value."""
    return None


@pytest.fixture(params=["memory", "disk", "redis"])
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, limits: Limits | None
) -> AsyncIterator[Scene]:
    url = {"memory": "memory:", "disk": ""}.get(request.param)
    if url is None:
        server: RedisServer = request.getfixturevalue("redis")
        url = f"{server.url}?prefix={tmp_path.name.encode().hex()[-40:]}"
    async with serving(tmp_path, store=url, limits=limits) as served:
        site = LightSite(served.address, "a", spec=LONG, answer=stop_at_train)
        async with site.attending():
            site.ready.clear()
            runner = await served.submit(job(pace={"rounds": 1}), None, nothing())
            await asyncio.wait_for(site.ready.wait(), 10)
            yield Scene(served, site, runner)


class Line:
    """A connection that sends the frames it is given, and hangs up on request."""

    def __init__(self, scene: Scene, start: int = 0) -> None:
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._start, self._task = start, scene.task.id
        self.call = scene.stub.Upload(self._messages())

    async def _messages(self) -> AsyncIterator[bytes]:
        yield fleet.UploadHeader(site="a", task=self._task, start=self._start).SerializeToString()
        while (frame := await self._frames.get()) is not None:
            yield frame

    def send(self, *frames: bytes | None) -> None:
        for frame in frames:
            self._frames.put_nowait(frame)

    async def hang_up(self) -> None:
        self.call.cancel()
        await self.call.code()


def update(changes: dict[str, float] | None = None, seed: int = 1) -> tuple[Manifest, list[bytes]]:
    """Return the manifest and the frames of an update, with some first numbers changed."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {
        info.name: rng.normal(size=info.shape).astype(np.float32) for info in LONG.tensors[:3]
    }
    arrays["n"] = np.asarray(3)
    for name, value in (changes or {}).items():
        arrays[name][0] = value
    manifest, payload = sealed(LONG, arrays)
    return manifest, [frame.tobytes() for frame in cut(payload)]


async def quarantined(scene: Scene, manifest: Manifest, frames: list[bytes], why: str) -> None:
    """Upload an invalid update, and offer it again: an answer that comes while we upload may be cut off."""
    with pytest.raises(grpc.aio.AioRpcError):
        await scene.upload(frames)
    await refused(lambda: scene.offer(manifest), why, Rejected)
    assert why in await scene.quarantined()
    assert scene.served.federation.store.keys(f"{scene.runner.id}/u2") == []
    await nothing_is_left(scene)


async def nothing_is_left(scene: Scene) -> None:
    """Wait until no upload, no place at the gate and no draft is left."""
    federation = scene.served.federation
    gate, room = federation.gate, Gate(federation.memory).free
    await eventually(lambda: not federation.uploads.under_way)
    await eventually(lambda: (gate.free, gate.callers) == (room, set()))
    await eventually(lambda: not drafts(scene))


def drafts(scene: Scene) -> list[Any]:
    below: Any = getattr(scene.served.federation.store, "below", None)
    if hasattr(below, "drafts"):
        return list(below.drafts.iterdir())
    if hasattr(below, "space"):
        return list(below.space.client.hkeys(below.space.key("drafts")))
    return []


@pytest.mark.parametrize("where", ["a", "b", "c"])
@pytest.mark.parametrize("how", ["nan", "digest"])
async def test_a_damaged_update_is_quarantined_in_whichever_batch_it_is(
    scene: Scene, where: str, how: str
) -> None:
    manifest, frames = update({where: float("nan")}) if how == "nan" else update()
    if how == "digest":
        frames = update({where: 7.0})[1]
    assert (await scene.offer(manifest)).start == 0
    why = f"tensor {where} " + ("holds NaN" if how == "nan" else "does not match its digest")
    await quarantined(scene, manifest, frames, why)


@pytest.mark.parametrize("limits", [Limits(silence=0.5)], ids=["impatient"])
@pytest.mark.parametrize("how", ["nan", "digest"])
async def test_a_damaged_last_frame_is_not_forgotten_when_the_connection_is_ended(
    scene: Scene, how: str
) -> None:
    """All frames have come, but the stream did not end: the next connection has nothing more to send."""
    manifest, frames = update({"c": float("nan")}) if how == "nan" else update()
    if how == "digest":
        frames = update({"c": 7.0})[1]
    await scene.offer(manifest)
    line = Line(scene)
    line.send(*frames)
    await eventually(lambda: scene.has(manifest, FRAMES))
    await refused(lambda: line.call, "no further message arrived for 0.5 s", TooLarge)
    await refused(lambda: scene.upload([], start=FRAMES), "tensor c", Rejected)
    assert "tensor c" in await scene.quarantined()
    assert scene.served.federation.store.keys(f"{scene.runner.id}/u2") == []
    await nothing_is_left(scene)


async def test_a_stream_that_is_damaged_and_ends_early_is_quarantined(scene: Scene) -> None:
    manifest, frames = update({"a": float("nan")})
    await scene.offer(manifest)
    await quarantined(scene, manifest, frames[:4], "tensor a holds NaN")


@pytest.mark.parametrize("extra", [1, 3, 20])
async def test_a_stream_with_too_many_frames_is_quarantined(scene: Scene, extra: int) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    await quarantined(scene, manifest, [*frames, *frames[:1] * extra], "more than the 10 frames")


@pytest.mark.parametrize("at", [0, 5, FRAMES - 1])
async def test_a_frame_of_another_size_is_quarantined(scene: Scene, at: int) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    wrong = [*frames[:at], frames[at][:-64], *frames[at + 1 :]]
    await quarantined(scene, manifest, wrong, f"frame {at} has")


async def test_an_upload_that_is_committed_since_its_offer_gets_the_receipt(scene: Scene) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    receipt = await scene.upload(frames)
    assert await scene.upload([], start=FRAMES) == receipt


@pytest.mark.parametrize("cut_at", [0, 1, 4, 5, FRAMES - 1, FRAMES])
async def test_an_upload_that_breaks_anywhere_is_resumed_and_the_model_is_the_same(
    scene: Scene, cut_at: int
) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    line = Line(scene)
    line.send(*frames[:cut_at])
    await eventually(lambda: scene.has(manifest, cut_at))
    assert (await scene.offer(manifest)).start == cut_at
    await line.hang_up()
    receipt = await scene.upload(frames[cut_at:], start=cut_at)
    assert receipt.digest == manifest.digest
    await ended(scene.runner)
    np.testing.assert_array_equal(
        model_of(scene.served, scene.runner)["a"], np.frombuffer(b"".join(frames), np.float32, 3 * FRAME // 4)
    )
    await nothing_is_left(scene)


async def test_frames_that_came_over_an_older_connection_after_the_offer_are_passed_over(
    scene: Scene,
) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    old = Line(scene)
    old.send(*frames[:2])
    await eventually(lambda: scene.has(manifest, 2))
    upload = scene.served.federation.uploads.under_way[scene.task.id]
    old.send(frames[2])
    await eventually(lambda: upload.conveyor.waiting or upload.check.next == 3)
    await old.hang_up()
    receipt = await scene.upload(frames[2:], start=2)
    assert receipt.digest == manifest.digest
    await ended(scene.runner)
    await nothing_is_left(scene)


async def test_a_place_is_not_lost_to_a_slow_upload_that_is_offered_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload loses its place, the offer takes one, and the old connection goes on to its end."""
    monkeypatch.setattr("hansa.controller.transfers.gate.SLOW", 0.05)
    manifest, frames = update()
    await scene.offer(manifest)
    upload = scene.served.federation.uploads.under_way[scene.task.id]
    line = Line(scene)
    line.send(frames[0])
    await eventually(lambda: upload.conveyor and not upload.place.held)  # it is slow
    assert (await scene.offer(manifest)).start == 1
    line.send(*frames[1:], None)
    assert (await line.call).digest == manifest.digest
    await ended(scene.runner)
    await nothing_is_left(scene)


async def test_no_frames_gather_for_an_upload_that_has_no_place(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred slow sites are served at once: each may have a frame in memory, not a batch."""
    monkeypatch.setattr("hansa.controller.transfers.gate.SLOW", 0.05)
    manifest, frames = update()
    await scene.offer(manifest)
    upload = scene.served.federation.uploads.under_way[scene.task.id]
    line = Line(scene)
    line.send(*frames[:2])
    await eventually(lambda: upload.check.next == 2 and not upload.place.held)
    monkeypatch.setattr("hansa.controller.transfers.gate.SLOW", 0)  # every frame is long in coming
    for number, frame in enumerate(frames[2:], 3):
        line.send(frame)
        await eventually(lambda: upload.check.next == number)  # noqa: B023
        assert not upload.place.held
    line.send(None)
    assert (await line.call).digest == manifest.digest
    await ended(scene.runner)
    await nothing_is_left(scene)


async def test_an_offer_that_waits_at_the_gate_gets_the_receipt_if_the_update_came_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hansa.controller.transfers.gate.SLOW", 0.05)
    manifest, frames = update()
    gate, room = scene.served.federation.gate, Gate(scene.served.federation.memory).free
    await scene.offer(manifest)
    upload = scene.served.federation.uploads.under_way[scene.task.id]
    line = Line(scene)
    line.send(frames[0])
    await eventually(lambda: upload.conveyor and not upload.place.held)
    monkeypatch.setattr("hansa.controller.transfers.gate.SLOW", 60)  # nobody else loses a place
    places = [await gate.enter(f"other {i}", FRAME) for i in range(room // FRAME)]
    again = asyncio.ensure_future(_reply(scene.offer(manifest)))
    await eventually(lambda: "a" in gate.callers)
    monkeypatch.setattr("hansa.controller.transfers.gate.SLOW", 0)  # every frame of it is long in coming
    for number, frame in enumerate(frames[1:], 1):
        await eventually(lambda: upload.check.next == number)  # noqa: B023
        line.send(frame)
    line.send(None)
    assert (await line.call).digest == manifest.digest
    for place in places:
        place.leave()
    assert (await again).receipt.digest == manifest.digest
    await ended(scene.runner)
    await nothing_is_left(scene)


async def _reply(call: Any) -> Any:
    return await call


async def test_a_connection_that_waited_for_another_cannot_publish_a_discarded_update(scene: Scene) -> None:
    first, frames = update()
    second, others = update(seed=2)
    await scene.offer(first)
    line = Line(scene)
    line.send(*frames)
    await eventually(lambda: scene.has(first, FRAMES))
    upload = scene.served.federation.uploads.under_way[scene.task.id]
    late = asyncio.ensure_future(_reply(scene.upload([], start=FRAMES)))  # waits for the line that is stuck
    await eventually(lambda: upload.stream == 2)
    assert (await scene.offer(second)).start == 0
    await line.hang_up()
    await refused(lambda: late, "another connection took over", Stale)
    receipt = await scene.upload(others)
    assert receipt.digest == second.digest
    await ended(scene.runner)
    assert scene.runner.view().status == "completed"
    await nothing_is_left(scene)


async def test_an_offer_that_is_quarantined_discards_the_frames_that_had_come(scene: Scene) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    await refused(lambda: scene.upload(frames[:5]), "ended after 5 frames", Refused)
    bad = Manifest(LONG.subset(["a", "b"]), manifest.digests[:2])
    await refused(lambda: scene.offer(bad), "missing c", Rejected)
    assert "missing c" in await scene.quarantined()
    await nothing_is_left(scene)


async def test_a_task_that_is_withdrawn_leaves_nothing_of_its_upload(scene: Scene) -> None:
    manifest, frames = update()
    await scene.offer(manifest)
    line = Line(scene)
    line.send(*frames[:6])
    await eventually(lambda: scene.has(manifest, 6))
    await scene.served.jobs.runner(scene.runner.id).post(
        ev.CancelAsked(at=scene.served.federation.clock.now(), operator="")
    )
    line.send(*frames[6:], None)
    with pytest.raises(grpc.aio.AioRpcError):  # it may be cut off while it is sending
        await line.call
    await refused(lambda: scene.offer(manifest), "is over", Stale)
    await nothing_is_left(scene)


class Flaky(Draft):
    """A draft in a store that fails every other time: before it has done its work, or after."""

    def __init__(self, draft: Draft, chance: random.Random) -> None:
        self._draft, self._chance = draft, chance

    def _fail(self) -> None:
        if self._chance.random() < 0.5:
            raise StoreFailed("the store is away")

    def write(self, index: int, frame: Buffer) -> None:
        self._fail()
        self._draft.write(index, frame)
        self._fail()

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        self._fail()
        self._draft.publish(manifest, peaks)

    def discard(self) -> None:
        self._fail()
        self._draft.discard()


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_store_that_fails_every_other_time_gets_every_frame_once(
    scene: Scene, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hansa.controller.work.workers.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("hansa.controller.work.workers.LONGEST_PAUSE", 0.001)
    store, chance = scene.served.federation.store, random.Random(3)
    made = store.draft

    def draft(key: ModelKey, spec: ModelSpec) -> Draft:
        if chance.random() < 0.5:
            raise StoreFailed("the store is away")
        return Flaky(made(key, spec), chance)

    monkeypatch.setattr(store, "draft", draft)
    manifest, frames = update({"c": float("nan")} if damaged else None)
    await scene.offer(manifest)
    if damaged:
        await quarantined(scene, manifest, frames, "tensor c")
        return
    await refused(lambda: scene.upload(frames[:6]), "ended after 6", Refused)
    assert (await scene.offer(manifest)).start == 6
    assert (await scene.upload(frames[6:], start=6)).digest == manifest.digest
    monkeypatch.undo()
    await ended(scene.runner)
    np.testing.assert_array_equal(
        model_of(scene.served, scene.runner)["c"],
        np.frombuffer(b"".join(frames[6:]), np.float32, 3 * FRAME // 4 + 5),
    )
    await nothing_is_left(scene)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_a_site_does_its_update_is_committed_completely_or_not_at_all(
    scene: Scene, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    updates = [update(seed=1), update(seed=2), update({"b": float("nan")}, seed=1)]
    lines: list[tuple[Line, list[bytes], int]] = []
    offers: list[asyncio.Future[Any]] = []

    async def offer(manifest: Manifest) -> int:
        reply = await scene.offer(manifest)
        return -1 if reply.HasField("receipt") else int(reply.start)

    for _ in range(60):
        manifest, frames = updates[chance.choice([0, 0, 0, 1, 2])]
        match chance.choice(
            ["offer", "offer at once", "begin", "send", "send", "send", "end", "hang up", "wait"]
        ):
            case "offer":
                offers.append(asyncio.ensure_future(offer(manifest)))
                await asyncio.wait([offers[-1]])
            case "offer at once":
                offers.append(asyncio.ensure_future(offer(manifest)))
            case "begin":
                start = chance.choice([0, *(o.result() for o in offers if o.done() and not o.exception())])
                lines.append((Line(scene, max(0, start)), frames, max(0, start)))
            case "send" if lines:
                at = chance.randrange(len(lines))
                line, frames, next_ = lines[at]
                count = chance.choice([1, 4, 10])
                line.send(*frames[next_ : next_ + count])
                lines[at] = line, frames, next_ + count
            case "end" if lines and chance.random() < 0.3:
                lines.pop(chance.randrange(len(lines)))[0].send(None)
            case "hang up" if lines:
                lines.pop(chance.randrange(len(lines)))[0].call.cancel()
            case _:
                for _ in range(chance.choice([0, 1, 20])):  # the store needs about as long for a frame
                    await scene.served.federation.workers.io(scene.served.federation.store.keys)
        if len(lines) > 8:
            lines.pop(0)[0].call.cancel()
    for line, _, _ in lines:
        line.call.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait(offers)
        while scene.task.id in scene.runner.machine.state.tasks:
            manifest, frames = updates[0]
            with suppress(grpc.aio.AioRpcError):
                start = (await scene.offer(manifest)).start
                await scene.upload(frames[start:], start=start)
    assert "unexpected" not in caplog.text
    if scene.runner.machine.state.tasks:  # the site was asked once more
        assert await scene.quarantined()
    else:
        assert (await ended(scene.runner)).view().status == "completed"
        found = model_of(scene.served, scene.runner)
        assert any(
            found["a"].tobytes() == b"".join(frames)[: 3 * FRAME]
            and found["c"].tobytes() == b"".join(frames[6:])[: 3 * FRAME + 20]
            for _, frames in updates[:2]
        )
    await nothing_is_left(scene)


class Held(Draft):
    """A draft whose writing or publishing waits until the test releases it."""

    def __init__(self, draft: Draft, write: threading.Event, publish: threading.Event) -> None:
        self._draft, self._write, self._publish = draft, write, publish

    def write(self, index: int, frame: Buffer) -> None:
        assert self._write.wait(20)
        self._draft.write(index, frame)

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        assert self._publish.wait(20)
        self._draft.publish(manifest, peaks)

    def discard(self) -> None:
        self._draft.discard()


@pytest.fixture
def lets(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold up the drafts of the scene's store: writing and publishing wait for these events."""
    events, made = (threading.Event(), threading.Event()), scene.served.federation.store.draft
    monkeypatch.setattr(
        scene.served.federation.store, "draft", lambda key, spec: Held(made(key, spec), *events)
    )
    yield events
    for event in events:
        event.set()


async def test_an_update_whose_site_hangs_up_while_it_is_published_gets_in_and_has_its_place_until_then(
    scene: Scene, lets: tuple[threading.Event, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hansa.controller.transfers.gate.SLOW", 0.02)
    write, publish = lets
    write.set()
    manifest, frames = update()
    await scene.offer(manifest)
    upload = scene.served.federation.uploads.under_way[scene.task.id]
    before = scene.served.guard.calls
    line = Line(scene)
    line.send(*frames, None)
    await eventually(lambda: upload.commit and upload.check.complete)
    await line.hang_up()
    await eventually(lambda: scene.served.guard.calls <= before)
    await pace_checked(upload.place)
    assert upload.place.held
    publish.set()
    assert (await scene.offer(manifest)).receipt.digest == manifest.digest
    await ended(scene.runner)
    assert scene.runner.view().status == "completed"
    await nothing_is_left(scene)


async def test_a_connection_that_is_ended_twice_while_frames_are_written_leaves_them_to_the_next_once(
    scene: Scene, lets: tuple[threading.Event, threading.Event]
) -> None:
    """The site hangs up and the guard ends the call: it no longer waits for the thread that writes frames."""
    write, publish = lets
    publish.set()
    manifest, frames = update()
    await scene.offer(manifest)
    upload, before = scene.served.federation.uploads.under_way[scene.task.id], scene.served.guard.calls
    line = Line(scene)
    line.send(*frames[:6])
    await eventually(lambda: upload.conveyor and upload.conveyor.busy and upload.conveyor.waiting == 2)
    (call,) = scene.served.guard.calls - before
    assert call.task is not None
    call.task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.end(Unproven("the certificate was revoked"))
    await asyncio.wait([call.task])
    assert upload.conveyor is not None
    assert upload.conveyor.busy
    second = asyncio.ensure_future(_reply(scene.upload(frames)))
    await eventually(lambda: upload.stream == 2)
    write.set()
    assert (await second).digest == manifest.digest
    await ended(scene.runner)
    await nothing_is_left(scene)
