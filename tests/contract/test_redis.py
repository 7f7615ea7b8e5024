"""A Redis that is unavailable, full, evicting, restarted empty or not ours: a clear error, no wrong model."""

import gc
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.exceptions import ResponseError

from hansa.common.models.frames import Sealer, cut, pack
from hansa.common.values.errors import Broken, InvalidInput, Refused, StoreFailed, Taken, Unreachable
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.storage.backends import opened
from hansa.controller.storage.journal import Entry, RedisJournal
from hansa.controller.storage.redis.space import FORMAT, RedisSpace, is_redis, key_below
from hansa.controller.storage.stores import Store
from hansa.controller.storage.stores.redis import RedisStore
from tests.redis_server import RedisServer
from tests.support import filled, small_spec

LEASE_KEY = "hansa:{0}:lease"
SPEC = small_spec(rows=100_000)
KEY = ModelKey("j1/v1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path / "redis").start()
    yield made
    made.kill()


@pytest.fixture
def space(server: RedisServer) -> Iterator[RedisSpace]:
    made = RedisSpace(server.url)
    made.acquire()
    yield made
    made.close()


@pytest.fixture
def store(space: RedisSpace) -> RedisStore:
    return RedisStore(space)


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    made = server.client()
    yield made
    made.close()


def key(*words: str) -> str:
    return key_below("hansa", *words)


def contents(client: Any) -> list[str]:
    """Return all keys except those that say who may write."""
    found = (name.decode() for name in client.keys("hansa:*"))
    return sorted(name for name in found if not name.endswith((":fence", ":lease")))


def put(store: Store, key: ModelKey = KEY, value: float = 1.0) -> None:
    draft, sealer = store.draft(key, SPEC), Sealer(SPEC)
    for index, frame in enumerate(cut(pack(SPEC, filled(SPEC, value)))):
        sealer.feed(frame)
        draft.write(index, frame)
    draft.publish(sealer.manifest(), sealer.peaks)


def test_a_redis_that_was_unavailable_goes_on_with_its_data(server: RedisServer, store: RedisStore) -> None:
    put(store)
    server.kill()
    with pytest.raises(StoreFailed, match="does not answer"):
        store.open(KEY)
    server.start()
    with store.open(KEY) as model:
        assert np.frombuffer(model.read(0), np.float32, 4).tolist() == [1.0] * 4


def test_a_full_redis_says_so_and_takes_more_when_there_is_room(store: RedisStore, client: Any) -> None:
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 300_000)
    with pytest.raises(StoreFailed, match="is full; raise its maxmemory"):
        put(store)
    client.config_set("maxmemory", 0)
    put(store)
    assert store.has(KEY)


def test_a_frame_that_was_evicted_is_named_and_no_model_is_made_up(store: RedisStore, client: Any) -> None:
    put(store)
    (frame,) = client.keys("hansa:*:frame:*:0")
    client.delete(frame)
    with (
        store.open(KEY) as model,
        pytest.raises(Broken, match="frame 0 of model j1/v1 is gone: Redis evicted it"),
    ):
        model.read(0)


def test_a_frame_of_another_length_is_damaged(store: RedisStore, client: Any) -> None:
    put(store)
    (frame,) = client.keys("hansa:*:frame:*:0")
    client.append(frame, b"x")
    with (
        store.open(KEY) as model,
        pytest.raises(Broken, match="frame 0 of model j1/v1 is damaged: 1048577 bytes"),
    ):
        model.read(0)


def test_a_damaged_record_of_a_model_is_named_and_nothing_else_happens(
    store: RedisStore, client: Any
) -> None:
    put(store)
    client.setrange(key("model", KEY), 20, b"\xff" * 900)
    with pytest.raises(Broken, match="model j1/v1: its record in Redis is damaged"):
        store.open(KEY)
    gc.collect()  # an error in a finalizer would fail this test


def test_foreign_keys_below_the_prefix_are_reported_in_our_words(space: RedisSpace, client: Any) -> None:
    client.set(key("jobs"), "somebody else's")
    with pytest.raises(
        Broken, match=r"prefix hansa: WRONGTYPE .*; does another program use this prefix"
    ) as caught:
        RedisJournal(space).jobs()
    assert not isinstance(caught.value, StoreFailed)  # waiting would not help


def test_a_redis_that_is_busy_with_a_script_is_waited_for(server: RedisServer) -> None:
    space = RedisSpace(server.url)
    space.acquire()
    store = RedisStore(space)
    put(store)
    other, client = server.client(), server.client()
    client.config_set("lua-time-limit", 1)

    def occupy() -> None:
        with pytest.raises(ResponseError, match="killed by user"):
            other.eval("while true do end", 0)

    def ask_until_it_is_busy() -> None:
        while busy.is_alive():
            store.has(KEY)

    busy = threading.Thread(target=occupy)
    busy.start()
    with pytest.raises(StoreFailed, match="BUSY"):
        ask_until_it_is_busy()
    client.script_kill()
    busy.join()
    assert store.has(KEY)
    for each in (other, client, space):
        each.close()


def test_a_redis_that_was_restarted_empty_takes_no_further_entries_of_old_jobs(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", durable=False).start()
    space = RedisSpace(server.url)
    space.acquire()
    journal = RedisJournal(space)
    journal.append(JobId("j"), [Entry(1, "one")])
    journal.append(JobId("j"), [Entry(2, "two")])
    server.kill()
    server.start()
    with pytest.raises(
        Broken, match=r"lost the mark that lets this controller write .* restarted empty"
    ) as caught:
        journal.append(JobId("j"), [Entry(3, "three")])
    assert not isinstance(caught.value, StoreFailed)  # waiting would not help
    with pytest.raises(Broken, match="restarted empty"):
        space.acquire()  # nor does renewing the lease: whatever a controller knows is out of date
    again = RedisSpace(server.url)
    again.acquire()
    with pytest.raises(Broken, match="entry 3 cannot follow entry 0: the journal lost entries"):
        RedisJournal(again).append(JobId("j"), [Entry(3, "three")])
    again.close()
    space.close()
    server.kill()


def test_a_redis_that_evicts_or_forgets_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path / "redis", "--maxmemory-policy", "allkeys-lru", durable=False).start()
    with opened(server.url, tmp_path, lease=False):
        assert not caplog.text  # `hansa job verify` and the like only read
    with opened(server.url, tmp_path):
        pass
    assert "evicts keys when it is full (maxmemory-policy allkeys-lru): set noeviction" in caplog.text
    assert "if it is restarted, models and jobs are lost" in caplog.text
    server.kill()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("redis://127.0.0.1:1/0", Unreachable),
        ("redis://no.such.host.invalid/0", Unreachable),
        ("unix:///no/such/socket", Unreachable),
        ("redis://127.0.0.1:6379/zero", InvalidInput),
        ("redis://127.0.0.1:6379/0?prefix=a/b", InvalidInput),
        ("rediss://127.0.0.1:1/0", Unreachable),
        ("redis+cluster://127.0.0.1:1", Unreachable),
        ("redis://127.0.0.1:port/0", InvalidInput),
        ("redis://127.0.0.1:99999/0", InvalidInput),
        ("redis://[::1/0", InvalidInput),
        ("redis:localhost", InvalidInput),
        ("redis://127.0.0.1:1/0?no_such_option=1", InvalidInput),
        ("redis://127.0.0.1:1/0?password_file=", InvalidInput),
    ],
)
def test_a_wrong_url_is_named(url: str, error: type[Exception]) -> None:
    assert is_redis(url)
    with pytest.raises(error, match="--store"):
        RedisSpace(url)


def test_a_password_is_needed_and_never_shown(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", "--requirepass", "geheim").start()
    with pytest.raises(InvalidInput, match=r"it asks for a password; give \?password_file=PATH"):
        RedisSpace(server.url)
    with pytest.raises((InvalidInput, Unreachable)) as caught:
        RedisSpace(f"redis://:falsch@127.0.0.1:{server.port}/0")
    assert "falsch" not in str(caught.value)
    space = RedisSpace(f"redis://:geheim@127.0.0.1:{server.port}/0")
    space.acquire()
    assert "geheim" not in space.name
    put(RedisStore(space))
    space.close()
    server.kill()


@pytest.mark.parametrize("special", "/?#@:")
def test_no_part_of_a_password_that_breaks_the_url_is_shown(special: str) -> None:
    with pytest.raises((InvalidInput, Unreachable), match="--store") as caught:
        RedisSpace(f"redis://user:ge{special}heim@127.0.0.1:1/0")
    assert not {"ge", "heim", "user"} & set(re.split(r"[^a-z]+", str(caught.value)))


def test_a_unix_socket_works(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", "--unixsocket", str(tmp_path / "s")).start()
    space = RedisSpace(f"unix://{tmp_path / 's'}")
    space.acquire()
    put(RedisStore(space))
    space.close()
    server.kill()


def test_a_cluster_works(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", "--cluster-enabled", "yes").start()
    client: Any = server.client()
    client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
    while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
        pass
    with opened(f"redis+cluster://127.0.0.1:{server.port}", tmp_path) as held:
        put(held.store)
        held.journal.append(JobId("j"), [Entry(1, "one", "receipt")])
        assert held.journal.entries(JobId("j")) == [Entry(1, "one", "receipt")]
        assert held.store.keys() == [KEY]
        held.store.delete(KEY)
        assert [key for key in client.keys("*") if b"frame" in key] == []
        server.kill()
        with pytest.raises(StoreFailed, match="does not answer"):
            held.journal.append(JobId("j"), [Entry(2, "two")])
    client.close()


def test_two_controllers_cannot_share_a_space(server: RedisServer, tmp_path: Path) -> None:
    client = server.client()
    with opened(server.url, tmp_path):
        held = json.loads(client.get(LEASE_KEY))  # type: ignore[arg-type]
        client.set(LEASE_KEY, json.dumps({"host": "elsewhere", "pid": 7}), px=400)
        with pytest.raises(
            Taken, match=r"in use by the controller with pid 7 on elsewhere; .* its lease ends in"
        ):
            RedisSpace(server.url).acquire()
        with opened(f"{server.url}?prefix=other", tmp_path):
            pass  # another prefix is another space
    assert held["pid"] > 0
    while client.exists(LEASE_KEY):
        pass  # a stale lease expires
    with opened(server.url, tmp_path):
        pass
    assert not client.exists(LEASE_KEY)
    client.set(LEASE_KEY, json.dumps(held | {"pid": 2**22 + 1}))
    with opened(server.url, tmp_path):
        pass  # its holder was on this machine and is dead
    client.close()


@pytest.mark.parametrize("held", ["{", "[]", '{"host": "h"}', '{"pid": "x"}', b"\xff"])
def test_a_damaged_lease_has_to_end_by_itself(space: RedisSpace, client: Any, held: str | bytes) -> None:
    client.set(LEASE_KEY, held, px=60_000)
    with pytest.raises(Taken, match=r"pid unknown on an unknown machine; .* its lease ends in (59|60) s"):
        space.acquire()
    client.delete(LEASE_KEY)
    space.acquire()


def test_a_process_id_of_another_container_says_nothing(server: RedisServer) -> None:
    """Containers on two machines may have the same host name, and their controllers the same process id."""
    client, first, second = server.client(), RedisSpace(server.url), RedisSpace(server.url)
    first.acquire()
    held = json.loads(client.get(LEASE_KEY))  # type: ignore[arg-type]
    for pid in (held["pid"], 2**22 + 1):
        client.set(LEASE_KEY, json.dumps(held | {"inside": "another machine's", "pid": pid}))
        with pytest.raises(Taken, match=f"pid {pid} on {held['host']}"):
            second.acquire()
    client.close()
    for space in (first, second):
        space.close()


def test_a_full_redis_lets_a_controller_keep_its_lease(server: RedisServer) -> None:
    space, client = RedisSpace(server.url), server.client()
    space.acquire()
    client.pexpire(LEASE_KEY, 2000)
    client.config_set("maxmemory", 1)
    space.acquire()
    assert client.pttl(LEASE_KEY) > 2000
    client.config_set("maxmemory", 0)
    client.close()
    space.close()


def test_a_password_that_was_changed_is_waited_for(server: RedisServer) -> None:
    space = RedisSpace(server.url)
    server.client().config_set("requirepass", "new")
    space.client.connection_pool.disconnect()
    with pytest.raises(StoreFailed, match="refuses"):
        RedisStore(space).keys()


@pytest.mark.parametrize(("age", "number"), [("a newer", FORMAT + 1), ("an older", FORMAT - 1)])
def test_the_data_of_another_hansa_are_refused_and_not_touched(
    server: RedisServer, tmp_path: Path, age: str, number: int
) -> None:
    client = server.client()
    with opened(server.url, tmp_path):
        assert client.get(key("format")) == str(FORMAT).encode()
    client.set(key("format"), number)
    before = sorted(client.keys())
    for lease in (True, False):
        with pytest.raises(
            Refused,
            match=rf"prefix hansa\) was written by {age} Hansa \(format {number}, this one knows {FORMAT}\)",
        ):
            opened(server.url, tmp_path, lease=lease).__enter__()
    assert sorted(client.keys()) == before
    client.set(key("format"), "x")
    with pytest.raises(Broken, match=r"hansa:\{\d+\}:format is damaged"):
        opened(server.url, tmp_path).__enter__()
    client.close()


def test_data_written_before_keys_had_tags_are_refused_and_not_touched(
    server: RedisServer, tmp_path: Path
) -> None:
    client = server.client()
    client.set("hansa:format", 3)
    with pytest.raises(
        Refused, match=r"an older Hansa \(format 3, this one knows \d+\); choose another prefix"
    ):
        opened(server.url, tmp_path).__enter__()
    assert client.get(key("format")) is None
    client.close()


def test_frames_that_could_not_be_removed_while_redis_was_unavailable_are_removed_later(
    server: RedisServer, store: RedisStore, client: Any
) -> None:
    put(store)
    model = store.open(KEY)
    store.delete(KEY)  # its reader may go on
    server.kill()
    model.close()
    server.start()
    store.close()
    assert contents(client) == []


def test_a_deletion_that_is_tried_again_leaves_no_frames(store: RedisStore, client: Any) -> None:
    put(store)
    client.set(key("models"), "in the way")
    with pytest.raises(Broken):
        store.delete(KEY)
    assert not store.has(KEY)
    client.delete(key("models"))
    store.delete(KEY)
    assert contents(client) == []


def test_a_frame_that_comes_after_its_draft_was_discarded_is_not_kept(space: RedisSpace, client: Any) -> None:
    draft = RedisStore(space).draft(KEY, SPEC)
    draft.write(0, b"a frame")
    draft.discard()
    with pytest.raises(Broken, match="the draft of j1/v1 was discarded"):
        draft.write(1, b"the next")
    assert contents(client) == []


def test_drafts_of_a_killed_controller_are_swept(space: RedisSpace, store: RedisStore, client: Any) -> None:
    store.draft(KEY, SPEC).write(0, b"x")
    assert client.keys("hansa:*:frame:*")
    RedisStore(space).sweep()
    assert client.keys("hansa:*:frame:*") == []
    assert not client.exists(key("drafts"))


def test_a_key_whose_record_was_never_written_is_swept_and_models_stay(
    store: RedisStore, client: Any
) -> None:
    put(store)
    unfinished = store.draft(ModelKey("j1/u7"), SPEC)
    unfinished.write(0, b"x")
    client.sadd(key("models"), "j1/u7")  # Redis was killed before it took the record
    assert store.keys() == [KEY]
    store.sweep()
    assert client.smembers(key("models")) == {b"j1/v1"}
    assert store.keys() == [KEY]
