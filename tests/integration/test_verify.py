"""Offline verification: one changed byte in a model, an update, a receipt or an event is found and named."""

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.values.errors import Broken, Refused, StoreFailed
from hansa.common.values.ids import ModelKey
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.engine import events as ev
from hansa.controller.storage.backends import opened
from hansa.controller.storage.redis.space import key_below
from hansa.controller.storage.stores import StoredModel
from hansa.controller.storage.stores.redis import RedisStore
from hansa.controller.verify.check import Finding, verify
from tests.redis_server import RedisServer
from tests.support import LightSite, ended, job, nothing, renew_checksums, serving, wait_for_ever


async def run_job(folder: Path, store: str, rule: str) -> str:
    """Run a small job to its end and return its id."""
    pace = {"updates": 9} if rule == "async-fedavg" else {"rounds": 3}
    async with serving(folder, store=store) as served, AsyncExitStack() as sites:
        for name, value in (("a", 1.0), ("b", 4.0)):
            site = LightSite(served.address, name, value=value, examples=int(value))
            await sites.enter_async_context(site.attending())
        runner = await served.submit(job(rule=rule, pace=pace, sites={"min": 2}), None, nothing())
        assert (await ended(runner)).view().status == "completed"
        return runner.id


def findings(folder: Path, store: str, job_id: str) -> list[Finding]:
    with opened(store or f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        return verify(backends, record)[2]


def needed(folder: Path, job_id: str) -> list[str]:
    """Return the keys of the community model and of the updates it is made of."""
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = backends.journal.jobs()
        state = verify(backends, record)[0].state
    return [str(state.current), *(member.model for held in state.members.values() for member in held)]


@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg"])
async def test_a_byte_changed_on_disk_is_found_and_named(tmp_path: Path, rule: str) -> None:
    job_id = await run_job(tmp_path, "", rule)
    assert findings(tmp_path, "", job_id) == []
    chance = random.Random(rule)
    for path in [tmp_path / "store" / "models" / key for key in needed(tmp_path, job_id)]:
        whole = path.read_bytes()
        for at in [0, *(chance.randrange(len(whole)) for _ in range(25)), len(whole) - 1]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert [f.where for f in findings(tmp_path, "", job_id)] == [f"model {job_id}/{path.name}"], at
        path.write_bytes(whole)
    path.unlink()
    assert any(path.name in found.where for found in findings(tmp_path, "", job_id))
    path.write_bytes(whole)
    assert findings(tmp_path, "", job_id) == []


async def test_a_byte_changed_in_an_update_that_waits_to_be_merged_is_found_and_named(tmp_path: Path) -> None:
    """Its learner has the receipt; the controller is stopped before the round is over."""
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        async with LightSite(served.address, "b", answer=wait_for_ever).attending():
            runner = await served.submit(job(sites={"min": 2}), None, nothing())
            while not runner.machine.state.unmerged:
                await runner.next_change().wait()
    assert findings(tmp_path, "", runner.id) == []
    (key,) = runner.machine.state.unmerged
    path = tmp_path / "store" / "models" / key
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert [found.where for found in findings(tmp_path, "", runner.id)] == [f"model {key}"]


@pytest.mark.parametrize(
    ("column", "forged", "where"),
    [("receipt", False, "receipt"), ("event", False, "journal entry"), ("event", True, "receipt")],
)
async def test_a_character_changed_in_the_journal_is_found_and_named(
    tmp_path: Path, column: str, forged: bool, where: str
) -> None:
    """The same holds if its checksum was changed to match."""
    job_id = await run_job(tmp_path, "", "fedavg")
    db = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    rows: list[tuple[int, str]] = db.execute(
        f"select sequence, {column} from entries where job = ? and receipt != '' order by sequence", (job_id,)
    ).fetchall()
    for sequence, text in rows:
        at = text.index('"digest":"') + len('"digest":"') + 5
        other = "0" if text[at] != "0" else "1"
        change = f"update entries set {column} = ? where job = ? and sequence = ?"
        db.execute(change, (text[:at] + other + text[at + 1 :], job_id, sequence))
        if forged:
            renew_checksums(db)
        found = findings(tmp_path, "", job_id)
        assert any(f"{where} {sequence}" == finding.where for finding in found), (sequence, found)
        db.execute(change, (text, job_id, sequence))
        renew_checksums(db)
    db.close()
    assert findings(tmp_path, "", job_id) == []


async def test_a_missing_entry_is_named_and_the_job_does_not_go_on_without_it(tmp_path: Path) -> None:
    """The same holds if the entry has no consequences and the job has not ended."""
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        async with LightSite(served.address, "b", role="evaluator").attending():
            runner = await served.submit(job(pace={"rounds": 10_000}), None, nothing())
            while runner.machine.state.version < 9:
                await runner.next_change().wait()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        report = 'job = ? and event like \'%"kind":"reported"%\''
        (number,) = db.execute(f"select min(sequence) from entries where {report}", (runner.id,)).fetchone()
        db.execute("delete from entries where job = ? and sequence = ?", (runner.id, number))
    db.close()
    words = f"journal entry {number} of job {runner.id} is missing"
    assert words in {found.what for found in findings(tmp_path, "", runner.id)}
    async with serving(tmp_path) as served:
        assert words in served.jobs.runner(runner.id).view().reason


async def test_times_which_no_receipt_covers_cannot_be_changed_either(tmp_path: Path) -> None:
    job_id = await run_job(tmp_path, "", "fedavg")
    db = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    rows: list[tuple[int, str]] = db.execute(
        "select sequence, event from entries where job = ? order by sequence", (job_id,)
    ).fetchall()
    change = "update entries set event = ? where job = ? and sequence = ?"
    for sequence, text in rows:
        db.execute(change, (text.replace('"at":', '"at":1'), job_id, sequence))
        assert findings(tmp_path, "", job_id)[0].what.endswith("is damaged: its checksum is wrong"), (
            sequence,
            text,
        )
        renew_checksums(db)
        assert findings(tmp_path, "", job_id), (sequence, text)
        db.execute(change, (text, job_id, sequence))
        renew_checksums(db)
    db.execute("update jobs set spec = replace(spec, '\"lr\":0.01', '\"lr\":0.02')")
    with pytest.raises(Broken, match=f"the record of job {job_id} is damaged"):
        findings(tmp_path, "", job_id)
    renew_checksums(db)
    assert [finding.where for finding in findings(tmp_path, "", job_id)] == ["audit log", "audit log"]
    db.close()


async def test_a_byte_changed_in_redis_is_found_and_named(tmp_path: Path, redis: RedisServer) -> None:
    store = f"{redis.url}?prefix=verify"
    job_id = await run_job(tmp_path, store, "async-fedavg")
    assert findings(tmp_path, store, job_id) == []
    client: Any = redis.client()
    records = [client.get(key) for key in client.keys("verify:*:model:*")]
    frames = [key_below("verify", "frame", record[:16].decode(), 0) for record in records]
    named = set()
    for frame in frames:
        whole = client.get(frame)
        client.setrange(frame, 3, bytes([whole[3] ^ 1]))
        named |= {found.where for found in findings(tmp_path, store, job_id)}
        client.delete(frame)
        assert all("is gone" in found.what for found in findings(tmp_path, store, job_id))
        client.set(frame, whole)
    assert (
        len(named) == 3
    )  # the community model and two updates; an update that came too late does not matter
    client.close()


@pytest.mark.parametrize("kind", ["disk", "redis"])
async def test_a_job_under_way_is_not_accused(tmp_path: Path, kind: str, redis: RedisServer) -> None:
    """Its models come and go while they are being checked."""
    store = f"{redis.url}?prefix=underway" if kind == "redis" else ""
    async with serving(tmp_path, store=store) as served, LightSite(served.address, "a").attending():
        runner = await served.submit(job(rule="async-fedavg", pace={"updates": 10_000}), None, nothing())
        refusal = ""
        while not refusal:
            version = runner.machine.state.version
            while runner.machine.state.version < version + 3:
                await runner.next_change().wait()
            try:
                found = await asyncio.to_thread(findings, tmp_path, store, runner.id)
            except Refused as error:
                refusal = str(error)
            else:
                assert found == []
        assert f"job {runner.id} is under way" in refusal
        runner.post(ev.CancelAsked(at=served.federation.clock.now()))
        await ended(runner)
    assert findings(tmp_path, store, runner.id) == []


@pytest.mark.parametrize(
    ("held", "why"), [(b"99\n", "by a newer Hansa"), (b"1\n", "by an older Hansa"), (b"\xff\n", "is damaged")]
)
@pytest.mark.parametrize("words", [("job", "verify", "test"), ("audit", "verify")])
async def test_state_of_another_format_is_not_verified(
    tmp_path: Path, words: tuple[str, ...], held: bytes, why: str
) -> None:
    await run_job(tmp_path, "", "fedavg")
    (tmp_path / "format").write_bytes(held)
    done = CliRunner().invoke(hansa, [*words, "--state", str(tmp_path)])
    assert done.exit_code == 1
    assert why in done.output


async def test_a_store_that_becomes_unavailable_is_not_a_fault_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisServer(tmp_path / "redis", durable=False).start()
    job_id = await run_job(tmp_path, server.url, "fedavg")
    begun = RedisStore.open

    def away(store: RedisStore, key: ModelKey) -> StoredModel:
        model = begun(store, key)
        server.kill()
        return model

    monkeypatch.setattr(RedisStore, "open", away)
    with pytest.raises(StoreFailed, match="does not answer"):
        findings(tmp_path, server.url, job_id)


@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg", "fedadam"])
async def test_a_model_that_the_rule_does_not_compute_from_the_updates_is_found(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journal, receipts and digests agree with the wrong model; only the updates do not."""
    right = Accumulator.frames

    def wrong(*args: Any) -> Iterator[np.ndarray]:
        for frame in right(*args):
            frame[0] ^= 1
            yield frame

    with monkeypatch.context() as patched:
        patched.setattr(Accumulator, "frames", wrong)
        job_id = await run_job(tmp_path, "", rule)
    found = findings(tmp_path, "", job_id)
    part = (
        "it is not what the server update"
        if rule == "fedadam"
        else "tensor layer.weight is not what the rule"
    )
    assert found[0].what == f"{part} computes from the updates that receipts name"
    assert f"model {job_id}/v" in found[0].where
