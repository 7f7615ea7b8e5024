"""Downloads share an open model: none closes it for others, and none waits for an unavailable store."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from hansa.common.models.auxiliary import with_auxiliary
from hansa.common.models.frames import cut, pack, seal
from hansa.common.rpc import codec
from hansa.common.values.errors import NotFound, StoreFailed
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import StoredModel
from hansa.controller.storage.stores.disk import DiskStore
from hansa.controller.transfers.downloads import Downloads
from hansa.controller.work.workers import Workers
from hansa.protos import fleet_pb2
from tests.unit.samples import keep, spec_of, values
from tests.waiting import eventually

SPEC = spec_of({"w": ("float32", (1_500_000,)), "b": ("float32", (10,))})  # six frames
KEY = ModelKey("j/v1")


class Library(DiskStore):
    """A disk store that opens models when the test allows it, and that may be unavailable."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lets = threading.Event()
        self.lets.set()
        self.away = False
        self.asked = 0

    def open(self, key: ModelKey) -> StoredModel:
        self.asked += 1
        self.lets.wait(10)
        if self.away:
            raise StoreFailed("the disk is away")
        return super().open(key)


@pytest.fixture
def store(tmp_path: Path) -> Library:
    found = Library(tmp_path / "store")
    keep(found, KEY, SPEC, values(SPEC)).close()
    found.asked = 0
    return found


@pytest.fixture
def workers(store: Library) -> Iterator[Workers]:
    workers = Workers()
    yield workers
    store.lets.set()
    workers.close()


@pytest.fixture
async def downloads(store: Library, workers: Workers) -> Downloads:
    return Downloads(store, workers, 1 << 30)


async def received(downloads: Downloads, key: ModelKey = KEY, who: str = "a") -> bytes:
    return b"".join([message async for message in downloads.send(key, set(), who)][1:])


async def until_asked(store: Library, times: int) -> None:
    await eventually(lambda: store.asked >= times)


def whole() -> bytes:
    arrays = values(SPEC)
    return b"".join(np.ascontiguousarray(arrays[name]).tobytes().ljust(64, b"\0") for name in SPEC.names)


async def test_downloads_at_the_same_time_open_a_model_once_and_close_it_after_the_last(
    store: Library, downloads: Downloads
) -> None:
    found = await asyncio.gather(*(received(downloads, who=f"site {i}") for i in range(5)))
    assert set(found) == {whole()}
    assert (store.asked, store.readers, downloads.open_models) == (1, 0, set())


async def test_a_receiver_that_hangs_up_while_a_model_is_opened_does_not_disturb_the_others(
    store: Library, downloads: Downloads
) -> None:
    store.lets.clear()
    first, second = (asyncio.create_task(received(downloads, who=who)) for who in "ab")
    await until_asked(store, 1)
    first.cancel()
    await asyncio.wait([first])
    store.lets.set()
    assert await second == whole()
    assert (store.asked, store.readers, downloads.open_models) == (1, 0, set())


async def test_a_receiver_that_hangs_up_in_the_middle_does_not_close_the_model_for_the_others(
    store: Library, downloads: Downloads
) -> None:
    async with (
        aclosing(downloads.send(KEY, set(), "a")) as first,
        aclosing(downloads.send(KEY, set(), "b")) as second,
    ):
        await anext(first)
        header = await anext(second)
        assert header
        await anext(first)
        await first.aclose()
        assert store.readers == 1
        assert b"".join([frame async for frame in second]) == whole()
    assert (store.readers, downloads.open_models) == (0, set())


@pytest.mark.parametrize("held", [set(), {"b"}], ids=["whole", "part"])
async def test_a_receiver_that_hangs_up_while_frames_are_read_leaves_the_model_open_until_they_are(
    store: Library, downloads: Downloads, held: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.open(KEY) as model:
        kind, digests = type(model), dict(zip(SPEC.names, model.manifest.digests, strict=True))
    real, lets, open_then = kind.read, threading.Event(), list[bool]()

    def slow(model: StoredModel, index: int) -> bytes:
        if index < 2:
            return real(model, index)
        lets.wait(10)
        open_then.append(store.readers == 1)
        return real(model, index)

    monkeypatch.setattr(kind, "read", slow)
    sending = downloads.send(KEY, {digests[name] for name in held}, "a")
    await anext(sending)
    await anext(sending)
    hanging_up = asyncio.create_task(sending.aclose())
    await asyncio.wait([hanging_up], timeout=0.2)
    lets.set()
    await hanging_up
    assert open_then == [True, True]
    assert (store.readers, downloads.open_models) == (0, set())


async def test_the_last_to_hang_up_does_not_wait_for_a_store_that_is_unavailable(
    store: Library, workers: Workers, downloads: Downloads
) -> None:
    store.away = True
    waiting = [asyncio.create_task(received(downloads, who=who)) for who in "ab"]
    await until_asked(store, 1)
    for task in waiting:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait(waiting)
    assert not downloads.open_models
    assert workers.trouble == ""
    store.away = False
    assert await received(downloads) == whole()


async def test_a_model_that_was_opened_for_nobody_is_closed(store: Library, downloads: Downloads) -> None:
    store.lets.clear()
    alone = asyncio.create_task(received(downloads))
    await until_asked(store, 1)
    alone.cancel()
    store.lets.set()
    await asyncio.wait([alone])
    await eventually(lambda: not store.readers)
    assert not downloads.open_models


async def test_a_model_that_is_not_there_is_missed_by_all_who_ask_and_found_later(
    store: Library, downloads: Downloads
) -> None:
    key = ModelKey("j/v2")
    found = await asyncio.gather(*(received(downloads, key, who) for who in "abc"), return_exceptions=True)
    assert [type(each) for each in found] == [NotFound] * 3
    assert not downloads.open_models
    keep(store, key, SPEC, values(SPEC)).close()
    assert await received(downloads, key) == whole()


async def test_a_model_that_is_deleted_while_it_is_sent_is_sent_completely(
    store: Library, downloads: Downloads
) -> None:
    async with aclosing(downloads.send(KEY, set(), "a")) as sending:
        await anext(sending)
        store.delete(KEY)
        keep(store, "j/v2", SPEC, values(SPEC, 2)).close()  # takes the files of models that are gone
        assert b"".join([frame async for frame in sending]) == whole()
    assert (store.readers, downloads.open_models) == (0, set())


BESIDE = with_auxiliary(spec_of({"w": ("float32", (600_000,)), "b": ("float32", (10,))}), ["c", "d"])


@pytest.mark.parametrize("names", [(), ("c",), ("d",), ("c", "d"), ("e",)])
async def test_of_the_tensors_beside_a_model_only_those_are_sent_that_are_asked_for(
    store: Library, downloads: Downloads, names: tuple[str, ...]
) -> None:
    key = ModelKey("j/v2")
    keep(store, key, BESIDE, values(BESIDE)).close()
    spec = BESIDE.subset(with_auxiliary(BESIDE, names).names)
    wanted = [bytes(frame) for frame in cut(pack(spec, values(BESIDE)))]
    for start in (0, 1, 2, len(wanted)):
        header, *frames = [message async for message in downloads.send(key, set(), "a", auxiliary=names)]
        assert frames == wanted
        manifest = codec.manifest_from_wire(fleet_pb2.FetchHeader.FromString(header).manifest)
        assert manifest == seal(spec, pack(spec, values(BESIDE)))
        continued = blake3(header).digest()
        empty, *rest = [
            message async for message in downloads.send(key, set(), "a", start, continued, auxiliary=names)
        ]
        assert (empty, rest) == (b"", wanted[start:])
    held = set(manifest.digests[:1])  # what a site holds already does not travel, wherever it is
    _, *frames = [message async for message in downloads.send(key, held, "a", auxiliary=names)]
    assert frames == [bytes(frame) for frame in cut(pack(spec.subset(spec.names[1:]), values(BESIDE)))]
