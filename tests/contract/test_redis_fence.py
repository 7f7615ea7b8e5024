"""Every write to Redis passes a fence: a controller that was overtaken changes nothing, whatever it sends."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import RedisCluster

from hansa.common.models.frames import Layout, Sealer, cut, pack
from hansa.common.values.errors import Broken, Refused, StoreFailed, Taken
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.storage.backends import opened
from hansa.controller.storage.journal import Entry, JobRecord, RedisJournal
from hansa.controller.storage.redis.lease import TAGS
from hansa.controller.storage.redis.space import RedisSpace
from hansa.controller.storage.stores import Store
from hansa.controller.storage.stores.redis import RedisStore
from hansa.controller.values.snapshots import Snapshot
from tests.redis_server import RedisServer, start_cluster
from tests.support import filled, small_spec

SPEC = small_spec(rows=100_000)
OLD, NEW, JOB = ModelKey("j1/v1"), ModelKey("j1/v2"), JobId("j1")
WRITES = {
    "set",
    "setnx",
    "del",
    "unlink",
    "hset",
    "hsetnx",
    "hdel",
    "sadd",
    "srem",
    "xadd",
    "pexpire",
    "getset",
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    servers = start_cluster(tmp_path_factory.mktemp("cluster"))
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture(params=["one server", "a cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """The same space on one server, and on a cluster of three."""
    prefix = request.node.name.encode().hex()[-40:]
    if request.param == "one server":
        return f"{request.getfixturevalue('redis').url}?prefix={prefix}"
    return f"redis+cluster://127.0.0.1:{request.getfixturevalue('nodes')[0].port}?prefix={prefix}"


@pytest.fixture
def spaces(url: str) -> Iterator[Callable[[], RedisSpace]]:
    """Open the space as another controller does; in the same process, the one before counts as dead."""
    made: list[RedisSpace] = []

    def opened_again() -> RedisSpace:
        made.append(RedisSpace(url))
        return made[-1]

    yield opened_again
    for space in made:
        space.close()


def put(store: Store, key: ModelKey, value: float = 1.0) -> None:
    draft, sealer = store.draft(key, SPEC), Sealer(SPEC)
    for index, frame in enumerate(cut(pack(SPEC, filled(SPEC, value)))):
        sealer.feed(frame)
        draft.write(index, frame)
    draft.publish(sealer.manifest(), sealer.peaks)


def contents(space: RedisSpace) -> dict[bytes, bytes]:
    """Return everything below the prefix."""
    everywhere = {"target_nodes": "primaries"} if isinstance(space.client, RedisCluster) else {}
    return {key: space.client.dump(key) for key in space.client.keys(f"{space.prefix}:*", **everywhere)}


def deeds(space: RedisSpace) -> dict[str, Callable[[], Any]]:
    """Return every operation that writes, prepared in advance."""
    store, journal = RedisStore(space), RedisJournal(space)
    put(store, OLD)
    journal.append(JOB, [Entry(1, "one")])
    draft, sealer = store.draft(NEW, SPEC), Sealer(SPEC)
    frames = list(cut(pack(SPEC, filled(SPEC, 2.0))))
    for index, frame in enumerate(frames):
        sealer.feed(frame)
        draft.write(index, frame)
    forgotten = RedisStore(space)
    forgotten.draft(ModelKey("j1/v3"), SPEC).write(0, b"x")
    return {
        "frame": lambda: draft.write(0, frames[0]),
        "draft": lambda: store.draft(ModelKey("j1/v4"), SPEC).write(0, b"x"),
        "publish": lambda: draft.publish(sealer.manifest(), sealer.peaks),
        "replace": lambda: put(store, OLD, 3.0),
        "delete": lambda: store.delete(OLD),
        "discard": draft.discard,
        "sweep": forgotten.sweep,
        "job": lambda: journal.create(JobRecord(JOB, "{}", 1.0)),
        "event": lambda: journal.append(JOB, [Entry(2, "two")]),
        "snapshot": lambda: journal.save_snapshot(JOB, Snapshot(1, "{}", {0: "[]"})),
        "summary": lambda: journal.conclude(JOB, "{}"),
        "format": lambda: space.check_format(mark=True),
    }


def test_nothing_that_an_overtaken_controller_sends_is_done(spaces: Callable[[], RedisSpace]) -> None:
    first = spaces()
    first.acquire()
    late = deeds(first)
    second = spaces()
    second.acquire()
    before = contents(second)
    for name, deed in late.items():
        with pytest.raises(StoreFailed, match="is in use by the controller with pid"):
            deed()
        assert contents(second) == before, name
    RedisStore(second).sweep()
    assert RedisStore(second).keys() == [OLD]
    assert len([key for key in contents(second) if b":frame:" in key]) == Layout(SPEC).frames


def test_a_controller_whose_successor_is_gone_writes_nothing_either(spaces: Callable[[], RedisSpace]) -> None:
    """The lease is free, but what this one knows about its jobs is out of date."""
    first, second = spaces(), spaces()
    first.acquire()
    late = deeds(first)
    second.acquire()
    second.close()
    before = contents(first)
    for name, deed in late.items():
        with pytest.raises(
            StoreFailed, match="was in use by another controller while this one was suspended"
        ):
            deed()
        assert contents(first) == before, name
    with pytest.raises(Taken, match="what this one knows about its jobs is out of date; start it again"):
        first.acquire()


def test_an_expired_lease_that_nobody_took_is_taken_again(spaces: Callable[[], RedisSpace]) -> None:
    space = spaces()
    space.acquire()
    lease = f"{space.prefix}:{{0}}:lease"
    space.client.delete(lease)
    put(RedisStore(space), OLD)  # the fence is still ours
    space.acquire()
    assert space.client.pttl(lease) > 0
    assert RedisStore(space).has(OLD)


def test_where_a_fence_is_missing_nothing_is_written(spaces: Callable[[], RedisSpace]) -> None:
    space = spaces()
    space.acquire()
    late = deeds(space)
    late.pop("discard")  # what Redis has lost needs no discarding
    for tag in range(TAGS):
        space.client.delete(f"{space.prefix}:{{{tag}}}:fence")
    before = contents(space)
    for name, deed in late.items():
        with pytest.raises(Broken, match="lost the mark that lets this controller write") as caught:
            deed()
        assert not isinstance(caught.value, StoreFailed), "waiting would not help"
        assert contents(space) == before, name
    with pytest.raises(Broken, match="Nothing is written until the controller is started again"):
        space.acquire()


def test_a_space_that_is_open_for_reading_only_cannot_be_written(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path):
        pass
    with opened(url, tmp_path, lease=False) as held:
        with pytest.raises(Refused, match="open for reading only"):
            held.journal.append(JOB, [Entry(1, "one")])
        with pytest.raises(Refused, match="open for reading only"):
            put(held.store, OLD)


@pytest.mark.parametrize("key", ["format", "tagged format"])
def test_a_space_of_another_hansa_is_refused_before_its_fences_are_taken(
    url: str, tmp_path: Path, key: str
) -> None:
    """A suspended controller of that Hansa may have lost its lease, and must be able to go on."""
    space = RedisSpace(url)
    space.acquire()
    space.client.delete(f"{space.prefix}:{{0}}:lease")
    space.client.set(f"{space.prefix}:format" if key == "format" else space.key("format"), 99)
    before = contents(space)
    with pytest.raises(Refused, match="written by a newer Hansa"), opened(url, tmp_path):
        pass
    assert contents(space) == before
    space.acquire()
    space.close()


def test_a_takeover_that_is_overtaken_gives_up(
    spaces: Callable[[], RedisSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended after it took the lease and before it had replaced all fences."""
    slow, fast = spaces(), spaces()
    takeovers = 0

    def suspended(run_script: Any) -> Any:
        def run(*arguments: Any) -> Any:
            nonlocal takeovers
            outcome = run_script(*arguments)
            if not takeovers and isinstance(outcome, list) and outcome[0] == b"ours":
                takeovers += 1
                fast.acquire()
                fast.client.set(f"{fast.prefix}:{{0}}:lease", json.dumps({"host": "elsewhere", "pid": 7}))
            return outcome

        return run

    for command in ("eval", "evalsha"):
        monkeypatch.setattr(slow.client, command, suspended(getattr(slow.client, command)))
    with pytest.raises(Taken, match="pid 7 on elsewhere"):
        slow.acquire()
    assert takeovers == 1
    put(RedisStore(fast), OLD)
    assert RedisStore(fast).keys() == [OLD]


def test_epochs_go_on_where_the_first_fence_was_lost(spaces: Callable[[], RedisSpace]) -> None:
    """A Redis that evicts keys dropped it: the other fences have the newest epoch."""
    first = spaces()
    first.acquire()
    for _ in range(3):
        spaces().acquire()
    first.client.delete(f"{first.prefix}:{{0}}:fence", f"{first.prefix}:{{0}}:lease")
    late = spaces()
    late.acquire()
    put(RedisStore(late), OLD)
    fences = {first.client.get(f"{first.prefix}:{{{tag}}}:fence") for tag in range(TAGS)}
    assert len(fences) == 1


def test_scripts_that_redis_has_forgotten_are_sent_again(spaces: Callable[[], RedisSpace]) -> None:
    space = spaces()
    space.acquire()
    space.client.script_flush()
    put(RedisStore(space), OLD)
    space.client.script_flush()
    RedisJournal(space).append(JOB, [Entry(1, "one")])
    space.client.script_flush()
    space.acquire()
    assert RedisJournal(space).entries(JOB) == [Entry(1, "one")]


def test_every_write_passes_the_fence(redis: RedisServer, tmp_path: Path) -> None:
    """Every write is a script that begins with the guard."""
    watched: Any = redis.client()
    done = redis.client()
    with watched.monitor() as monitor:
        with opened(f"{redis.url}?prefix=monitored", tmp_path) as held:
            for deed in deeds(held.store.space).values():  # type: ignore[attr-defined]
                deed()
            held.journal.create(JobRecord(JOB, "{}", 1.0))
        done.echo("that is all")
        seen = []
        for said in monitor.listen():
            if "that is all" in said["command"]:
                break
            if "monitored" in said["command"]:
                seen.append((said["command"].split()[0].lower(), said["client_type"]))
    writes = {name for name, by in seen if by == "lua"}
    assert writes >= {"set", "setnx", "del", "unlink", "hset", "hsetnx", "hdel", "sadd", "srem", "xadd"}
    reads = {name for name, by in seen if by != "lua"}
    assert reads <= {
        "evalsha",
        "eval",
        "get",
        "exists",
        "type",
        "getrange",
        "hgetall",
        "smembers",
        "xrange",
        "pttl",
    }
    assert not reads & WRITES
    for client in (watched, done):
        client.close()


def test_a_holder_says_who_it_is(spaces: Callable[[], RedisSpace]) -> None:
    space = spaces()
    space.acquire()
    said = json.loads(space.client.get(f"{space.prefix}:{{0}}:lease"))
    assert said.keys() == {"host", "inside", "pid", "token"}
    assert space.client.get(f"{space.prefix}:{{5}}:fence") == f"1 {said['token']}".encode()
