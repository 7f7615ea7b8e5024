"""The contract of a store, checked for every implementation."""

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hansa.common.models.frames import FRAME, Layout, Sealer, cut, pack
from hansa.common.models.model import ModelSpec
from hansa.common.values.errors import Broken, InvalidInput, NotFound, StoreFailed, Taken
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.storage.backends import opened
from hansa.controller.storage.redis.space import RedisSpace
from hansa.controller.storage.stores import Draft, Store, StoredModel
from hansa.controller.storage.stores.disk import DiskStore
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.storage.stores.recent import ROOM, RecentStore
from hansa.controller.storage.stores.redis import RedisStore
from hansa.simulation.storage.store import SharedStore
from tests.unit.samples import keep, payload_of, spec_of, values

SPEC = spec_of(
    {
        "none": ("float32", (0,)),
        "long": ("float32", (FRAME // 2,)),
        "half": ("bfloat16", (3, 5)),
        "count": ("int64", ()),
    }
)
SMALL = spec_of({"w": ("float32", (5,))})
KEY = ModelKey("j1/v1")


@pytest.fixture(params=["memory", "disk", "recent", "redis", "simulated", "spilled"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Open a store, a new one for each test."""
    if request.param == "redis":
        space = RedisSpace(
            f"{request.getfixturevalue('redis').url}?prefix={request.node.name.encode().hex()[-40:]}"
        )
        space.acquire()
        yield RedisStore(space)
        space.close()
        return
    kinds: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "disk": lambda: DiskStore(tmp_path / "store"),
        "recent": lambda: RecentStore(DiskStore(tmp_path / "store"), ROOM),
        "simulated": lambda: SharedStore(1 << 30, tmp_path / "store"),
        "spilled": lambda: SharedStore(0, tmp_path / "store"),
    }
    opened_store = kinds[request.param]()
    yield opened_store
    opened_store.close()


@pytest.fixture(params=["disk", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of which several controllers may know."""
    if request.param == "redis":
        return f"{request.getfixturevalue('redis').url}?prefix=shared"
    return f"disk:{tmp_path / 'store'}"


def _same(model: StoredModel, spec: ModelSpec, seed: int) -> bool:
    return payload_of(model).tobytes() == pack(spec, values(spec, seed)).tobytes()


def _begin(store: Store, key: ModelKey, spec: ModelSpec, seed: int) -> tuple[Draft, Sealer]:
    """Write all frames of a model without publishing it."""
    draft, sealer = store.draft(key, spec), Sealer(spec)
    for index, frame in enumerate(cut(pack(spec, values(spec, seed)))):
        sealer.feed(frame)
        draft.write(index, frame)
    return draft, sealer


# Models.


def test_a_published_model_is_read_back_bit_for_bit_with_its_manifest_and_peaks(store: Store) -> None:
    draft, sealer = _begin(store, KEY, SPEC, 1)
    draft.publish(sealer.manifest(), sealer.peaks)
    with store.open(KEY) as model:
        assert _same(model, SPEC, 1)
        assert model.key == KEY
        assert model.manifest == sealer.manifest()
        assert model.peaks == tuple(sealer.peaks)
        assert [len(model.read(i)) for i in range(model.layout.frames)] == [
            Layout(SPEC).frame_size(i) for i in range(Layout(SPEC).frames)
        ]


def test_a_model_of_empty_tensors_can_be_kept(store: Store) -> None:
    spec = spec_of({"none": ("float32", (0, 3))})
    with keep(store, KEY, spec, values(spec)) as model:
        assert model.layout.frames == 0
        assert model.peaks == (0.0,)


def test_frames_may_come_in_any_order_and_twice(store: Store) -> None:
    frames = [bytes(frame) for frame in cut(pack(SPEC, values(SPEC, 2)))]
    sealer = Sealer(SPEC)
    for frame in frames:
        sealer.feed(frame)
    draft = store.draft(KEY, SPEC)
    draft.write(2, frames[2])
    draft.write(0, bytes(FRAME))
    draft.write(1, frames[1])
    draft.write(0, frames[0])
    draft.write(2, frames[2])
    draft.publish(sealer.manifest(), sealer.peaks)
    with store.open(KEY) as model:
        assert _same(model, SPEC, 2)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda f: np.frombuffer(f, np.uint8)])
def test_any_kind_of_buffer_can_be_written(store: Store, kind: Callable[[bytes], bytes]) -> None:
    payload = pack(SMALL, values(SMALL, 1))
    sealer = Sealer(SMALL)
    sealer.feed(payload)
    draft = store.draft(KEY, SMALL)
    draft.write(0, kind(payload.tobytes()))
    draft.publish(sealer.manifest(), sealer.peaks)
    with store.open(KEY) as model:
        assert _same(model, SMALL, 1)


def test_a_buffer_that_changes_after_it_was_written_does_not_change_the_model(store: Store) -> None:
    payload = pack(SMALL, values(SMALL, 1))
    sealer = Sealer(SMALL)
    sealer.feed(payload.copy())  # what is fed can change no more
    draft = store.draft(KEY, SMALL)
    draft.write(0, payload)
    payload[:] = 0
    draft.publish(sealer.manifest(), sealer.peaks)
    with store.open(KEY) as model:
        assert _same(model, SMALL, 1)


def test_a_draft_is_invisible_until_it_is_published_and_then_there_at_once(store: Store) -> None:
    draft, sealer = _begin(store, KEY, SPEC, 1)
    assert not store.has(KEY)
    assert store.keys() == []
    with pytest.raises(NotFound):
        store.open(KEY)
    draft.publish(sealer.manifest(), sealer.peaks)
    assert store.has(KEY)
    assert store.keys() == [KEY]


def test_a_discarded_draft_leaves_nothing(store: Store) -> None:
    draft, _ = _begin(store, KEY, SPEC, 1)
    draft.discard()
    draft.discard()
    assert not store.has(KEY)
    assert store.keys() == []


def test_a_discarded_draft_can_be_neither_written_nor_published(store: Store) -> None:
    draft, sealer = _begin(store, KEY, SPEC, 1)
    draft.discard()
    with pytest.raises(Broken):
        draft.write(0, bytes(64))
    with pytest.raises(Broken):
        draft.publish(sealer.manifest(), sealer.peaks)
    assert store.keys() == []
    with pytest.raises(NotFound):
        store.open(KEY)


def test_discarding_a_published_draft_is_harmless(store: Store) -> None:
    draft, sealer = _begin(store, KEY, SPEC, 1)
    draft.publish(sealer.manifest(), sealer.peaks)
    draft.discard()
    with store.open(KEY) as model:
        assert _same(model, SPEC, 1)


def test_two_drafts_of_one_key_do_not_mix_and_the_last_published_wins(store: Store) -> None:
    first, sealed_first = _begin(store, KEY, SPEC, 1)
    second, sealed_second = _begin(store, KEY, SPEC, 2)
    second.publish(sealed_second.manifest(), sealed_second.peaks)
    first.publish(sealed_first.manifest(), sealed_first.peaks)
    with store.open(KEY) as model:
        assert _same(model, SPEC, 1)


def test_a_model_is_replaced_completely_even_by_one_of_another_shape(store: Store) -> None:
    keep(store, KEY, SPEC, values(SPEC, 1)).close()
    keep(store, KEY, SMALL, values(SMALL, 2)).close()
    with store.open(KEY) as model:
        assert model.manifest.spec == SMALL
        assert _same(model, SMALL, 2)


def test_a_reader_goes_on_after_its_model_is_replaced(store: Store) -> None:
    keep(store, KEY, SPEC, values(SPEC, 1)).close()
    with store.open(KEY) as old:
        keep(store, KEY, SPEC, values(SPEC, 2)).close()
        assert _same(old, SPEC, 1)


def test_a_reader_goes_on_after_its_model_is_deleted(store: Store) -> None:
    keep(store, KEY, SPEC, values(SPEC, 1)).close()
    with store.open(KEY) as model:
        store.delete(KEY)
        assert not store.has(KEY)
        assert _same(model, SPEC, 1)


def test_sweeping_leaves_published_models_alone(store: Store) -> None:
    keep(store, KEY, SPEC, values(SPEC, 1)).close()
    store.sweep()
    with store.open(KEY) as model:
        assert _same(model, SPEC, 1)


def test_deleting_is_harmless_if_there_is_nothing(store: Store) -> None:
    store.delete(KEY)
    keep(store, KEY, SMALL, values(SMALL)).close()
    store.delete(KEY)
    store.delete(KEY)
    assert store.keys() == []


def test_a_forgotten_job_leaves_no_model_and_no_spare_space_but_readers_go_on(
    store: Store, tmp_path: Path
) -> None:
    mine, other = ModelKey("j1/v1"), ModelKey("j11/v1")
    for key in (mine, ModelKey("j1/u1"), other):
        keep(store, key, SPEC, values(SPEC, 1)).close()
    with store.open(mine) as model:
        store.forget(JobId("j1"))
        store.forget(JobId("j1"))
        assert store.keys() == [other]
        assert _same(model, SPEC, 1)
    with store.open(other) as model:
        assert _same(model, SPEC, 1)
    assert not [path for path in tmp_path.rglob("*") if path.name == "j1" or path.parent.name == "spares"]


def test_a_model_that_is_not_there_is_not_found_by_name(store: Store) -> None:
    with pytest.raises(NotFound, match="j1/v1"):
        store.open(KEY)
    assert not store.has(KEY)


def test_the_beginning_of_a_key_is_not_a_key(store: Store) -> None:
    keep(store, KEY, SMALL, values(SMALL)).close()
    assert not store.has(ModelKey("j1"))
    with pytest.raises(NotFound):
        store.open(ModelKey("j1"))
    store.delete(ModelKey("j1"))
    assert store.has(KEY)


def test_keys_are_sorted_and_chosen_by_prefix(store: Store) -> None:
    for key in ("j2/v0", "j1/v1", "j1/u10", "j1/v0", "j10/v0"):
        keep(store, key, SMALL, values(SMALL)).close()
    assert store.keys() == ["j1/u10", "j1/v0", "j1/v1", "j10/v0", "j2/v0"]
    assert store.keys("j1/") == ["j1/u10", "j1/v0", "j1/v1"]
    assert store.keys("j1/v") == ["j1/v0", "j1/v1"]
    assert store.keys("nothing") == []


def test_models_of_several_keys_are_independent(store: Store) -> None:
    models = [keep(store, f"j1/v{i}", SPEC, values(SPEC, i)) for i in range(3)]
    store.delete(ModelKey("j1/v1"))
    assert [_same(model, SPEC, i) for i, model in enumerate(models)] == [True] * 3
    for model in models:
        model.close()
    assert store.keys() == ["j1/v0", "j1/v2"]


# Threads.


def test_concurrent_writers_of_many_keys_do_not_disturb_each_other(store: Store) -> None:
    def work(i: int) -> bool:
        with keep(store, f"j{i % 3}/v{i}", SPEC, values(SPEC, i)) as model:
            return _same(model, SPEC, i)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
    assert len(store.keys()) == 12


def test_readers_of_a_key_that_is_replaced_again_and_again_never_see_half_a_model(store: Store) -> None:
    keep(store, KEY, SPEC, values(SPEC, 0)).close()
    known = {pack(SPEC, values(SPEC, seed)).tobytes() for seed in range(4)}
    done = threading.Event()

    def write() -> None:
        for i in range(12):
            keep(store, KEY, SPEC, values(SPEC, i % 4)).close()
        done.set()

    def read() -> int:
        seen = 0
        while not done.is_set() or not seen:
            with store.open(KEY) as model:
                assert payload_of(model).tobytes() in known
            seen += 1
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        pool.submit(write).result()
        assert all(reader.result() for reader in readers)


def test_one_model_can_be_read_by_many_threads(store: Store) -> None:
    with keep(store, KEY, SPEC, values(SPEC, 3)) as model, ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: _same(model, SPEC, 3), range(8)))


# Several controllers.


CLAIM = """
import sys
from pathlib import Path
from hansa.common.values.errors import Taken
from hansa.controller.storage.backends import opened
try:
    opened(sys.argv[1], Path(sys.argv[2])).__enter__()
except Taken as error:
    print(error)
with opened(sys.argv[1], Path(sys.argv[2]), lease=False) as backends:
    print(backends.store.has("j1/v1"))
"""


def test_a_claimed_store_cannot_be_claimed_by_another_controller_but_can_be_read(
    shared: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with opened(shared, tmp_path / "a") as first:
        keep(first.store, KEY, SMALL, values(SMALL, 1)).close()
        words = [sys.executable, "-c", CLAIM, shared, str(tmp_path / "b")]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    refusal, readable = shown.splitlines()
    assert f"in use by the controller with pid {os.getpid()}" in refusal
    assert readable == "True"


# URLs.


@pytest.mark.parametrize("url", ["", "memory", "memory:x", "disk:", "disk", "s3:bucket", "/path"])
def test_a_url_that_is_not_a_store_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="is not a store"), opened(url, tmp_path):
        pass


@pytest.mark.parametrize(("url", "kind"), [("memory:", MemoryStore), ("disk:{}/store", DiskStore)])
def test_a_url_leads_to_a_store_that_knows_it(tmp_path: Path, url: str, kind: type[Store]) -> None:
    with opened(url.format(tmp_path), tmp_path) as backends:
        assert type(backends.store) is kind
        assert backends.store.url == url.format(tmp_path)


# What lasts.


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return where a store on disk is opened."""
    return tmp_path / "store"


def _file(tmp_path: Path) -> Path:
    return tmp_path / "store" / "models" / "j1" / "v1"


def test_a_store_on_disk_keeps_its_models_and_drafts_are_swept_when_it_is_opened_again(
    tmp_path: Path, disk: Path
) -> None:
    killed = DiskStore(disk)
    keep(killed, KEY, SPEC, values(SPEC, 1)).close()
    _begin(killed, ModelKey("j1/v2"), SPEC, 2)
    assert list((tmp_path / "store" / "drafts").iterdir())
    again = DiskStore(disk)
    again.sweep()
    assert again.keys() == [KEY]
    assert list((tmp_path / "store" / "drafts").iterdir()) == []
    with again.open(KEY) as model:
        assert _same(model, SPEC, 1)
    again.close()


def test_closing_a_store_on_disk_keeps_its_models(tmp_path: Path, disk: Path) -> None:
    store = DiskStore(disk)
    keep(store, KEY, SMALL, values(SMALL, 1)).close()
    store.close()
    assert _file(tmp_path).is_file()


@pytest.mark.parametrize("left", [0, 1, 23, 24, 1000, FRAME, FRAME + 100, -1, -24, -200])
def test_a_truncated_file_is_broken_and_named(tmp_path: Path, disk: Path, left: int) -> None:
    store = DiskStore(disk)
    keep(store, KEY, SPEC, values(SPEC, 1)).close()
    whole = _file(tmp_path).read_bytes()
    _file(tmp_path).write_bytes(whole[:left])
    with pytest.raises(Broken, match="j1/v1"):
        store.open(KEY)
    store.close()


def _no_magic(whole: bytes) -> bytes:
    return whole[:-1] + b"x"


def _garbled_manifest(whole: bytes) -> bytes:
    size = Layout(SPEC).size
    return whole[:size] + b"\xff" * (len(whole) - size - 24) + whole[-24:]


def _garbled_lengths(whole: bytes) -> bytes:
    return whole[:-24] + b"\xff" * 16 + whole[-8:]


def _frame_missing(whole: bytes) -> bytes:
    return whole[FRAME:]


def _longer(whole: bytes) -> bytes:
    return whole + b"more"


@pytest.mark.parametrize("damage", [_no_magic, _garbled_manifest, _garbled_lengths, _frame_missing, _longer])
def test_a_garbled_file_is_broken_and_named(
    tmp_path: Path, disk: Path, damage: Callable[[bytes], bytes]
) -> None:
    store = DiskStore(disk)
    keep(store, KEY, SPEC, values(SPEC, 1)).close()
    _file(tmp_path).write_bytes(damage(_file(tmp_path).read_bytes()))
    with pytest.raises(Broken, match="j1/v1"):
        store.open(KEY)
    assert store.has(KEY)
    keep(store, KEY, SPEC, values(SPEC, 1)).close()  # and can be written anew
    store.close()


def test_a_file_that_shrinks_under_a_reader_is_broken_and_named(tmp_path: Path, disk: Path) -> None:
    store = DiskStore(disk)
    with keep(store, KEY, SPEC, values(SPEC, 1)) as model:
        with _file(tmp_path).open("r+b") as file:
            file.truncate(FRAME + 10)
        assert len(model.read(0)) == FRAME
        with pytest.raises(Broken, match="j1/v1"):
            model.read(1)
    store.close()


def test_a_disk_that_cannot_be_read_for_a_moment_is_waited_for(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    store = DiskStore(disk)
    with keep(store, KEY, SPEC, values(SPEC, 1)) as model:
        with monkeypatch.context() as patched:
            patched.setattr("os.pread", failing)
            with pytest.raises(StoreFailed, match=r"reading frame 0 of model .*: Input/output error"):
                model.read(0)
            with pytest.raises(StoreFailed, match=r"reading .*: Input/output error"):
                store.open(KEY)
        assert model.read(0)
    store.open(KEY).close()
    store.close()


def test_a_place_that_cannot_hold_a_store_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(Broken, match="file"):
        DiskStore(tmp_path / "file")


def test_a_disk_that_takes_only_a_part_of_a_write_does_not_publish_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: whole(handle, bytes(data)[:1000], at))
    store = DiskStore(tmp_path / "store")
    draft, sealer = _begin(store, KEY, SMALL, 1)
    draft.publish(sealer.manifest(), sealer.peaks)
    with store.open(KEY) as model:
        assert _same(model, SMALL, 1)


def test_publishing_may_be_tried_again_after_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path / "store")
    draft, sealer = _begin(store, KEY, SMALL, 1)

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as while_full:
        while_full.setattr("hansa.controller.storage.stores.disk.sync_folder", full)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="No space left"):
                draft.publish(sealer.manifest(), sealer.peaks)
    draft.publish(sealer.manifest(), sealer.peaks)
    with store.open(KEY) as model:
        assert _same(model, SMALL, 1)
    assert list((tmp_path / "store" / "drafts").iterdir()) == []


def test_a_draft_on_disk_that_is_discarded_while_a_frame_is_written_writes_to_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = DiskStore(tmp_path / "store"), os.pwrite
    draft = store.draft(KEY, SMALL)
    begun, lets = threading.Event(), threading.Event()

    def slow(handle: int, data: memoryview, at: int) -> int:
        begun.set()
        lets.wait(10)
        return real(handle, data, at)

    monkeypatch.setattr(os, "pwrite", slow)
    other = tmp_path / "other"
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(draft.write, 0, bytes(64))
        begun.wait(10)
        discarding = threads.submit(draft.discard)
        wait([discarding], timeout=0.2)
        with other.open("wb"):  # it would have the draft's handle, were that closed
            lets.set()
            writing.result(10)
            discarding.result(10)
    assert other.read_bytes() == b""
    assert list((tmp_path / "store" / "drafts").iterdir()) == []


def test_a_lost_draft_does_not_become_a_model(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "store")
    draft, sealer = _begin(store, KEY, SMALL, 1)
    DiskStore(tmp_path / "store").sweep()
    with pytest.raises(Broken, match="v1"):
        draft.publish(sealer.manifest(), sealer.peaks)
    assert not store.has(KEY)


def test_two_controllers_cannot_share_a_store_on_disk_even_with_state_directories_of_their_own(
    tmp_path: Path,
) -> None:
    url = f"disk:{tmp_path / 'store'}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with opened(url, tmp_path / "a") as first:
        begun, sealer = _begin(first.store, KEY, SMALL, 1)
        with pytest.raises(Taken, match=rf"store .* is in use by the controller with pid {os.getpid()}"):
            opened(url, tmp_path / "b").__enter__()
        with opened(url, tmp_path / "b", lease=False):
            pass  # looking is harmless
        begun.publish(sealer.manifest(), sealer.peaks)
        assert first.store.has(KEY)
    with opened(url, tmp_path / "b"):
        pass


def test_a_full_disk_gets_back_the_files_that_were_kept_to_save_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path / "store")
    keep(store, KEY, SMALL, values(SMALL, 1)).close()
    keep(store, ModelKey("j1/v2"), SMALL, values(SMALL, 1)).close()
    draft, _ = _begin(store, ModelKey("j1/v3"), SMALL, 1)
    for name in ("j1/v1", "j1/v2"):
        store.delete(ModelKey(name))
    spares = tmp_path / "store" / "spares"
    assert len(list(spares.iterdir())) == 2

    def full(handle: int, data: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreFailed, match="No space left"):
            draft.write(0, b"x")
    assert list(spares.iterdir()) == []
    draft.write(0, b"x")


@contextmanager
def out_of_handles() -> Iterator[None]:
    """Keep this process from opening files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("spares", [0, 3])
def test_a_draft_that_cannot_be_begun_leaves_no_file(tmp_path: Path, spares: int) -> None:
    """The process has no file handles left, and tries again and again; there may be some spare files."""
    store = DiskStore(tmp_path / "store")
    names = [ModelKey(f"j1/v{number}") for number in range(spares)]
    for name in names:
        keep(store, name, SMALL, values(SMALL, 1)).close()
    for name in names:
        store.delete(name)
    with out_of_handles():
        for _ in range(5):
            with pytest.raises(StoreFailed, match="Too many open files"):
                store.draft(KEY, SMALL)
        with pytest.raises(StoreFailed, match="Too many open files"):
            store.sweep()
    assert list((tmp_path / "store" / "drafts").iterdir()) == []
    keep(store, KEY, SMALL, values(SMALL, 1)).close()
    assert list((tmp_path / "store" / "drafts").iterdir()) == []


def test_publishing_without_handles_may_be_tried_again_and_then_the_new_folder_is_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try made the job's folder and could not sync its name."""
    store, synced, fsync = DiskStore(tmp_path / "store"), list[Path](), os.fsync
    draft, sealer = _begin(store, KEY, SMALL, 1)
    with out_of_handles(), pytest.raises(StoreFailed, match="Too many open files"):
        draft.publish(sealer.manifest(), sealer.peaks)

    def observed(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        fsync(handle)

    monkeypatch.setattr(os, "fsync", observed)
    draft.publish(sealer.manifest(), sealer.peaks)
    assert synced == [tmp_path / "store" / "models", tmp_path / "store" / "models" / "j1"]
    assert list((tmp_path / "store" / "drafts").iterdir()) == []
    keep(store, ModelKey("j1/v2"), SMALL, values(SMALL, 1)).close()
    assert synced[2:] == [tmp_path / "store" / "models" / "j1"]  # once is enough


def test_a_draft_that_cannot_be_removed_just_now_is_removed_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path / "store")
    draft, _ = _begin(store, KEY, SMALL, 1)

    def failing(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", failing)
        with pytest.raises(StoreFailed, match="Input/output error"):
            draft.discard()
    draft.discard()
    assert list((tmp_path / "store" / "drafts").iterdir()) == []
