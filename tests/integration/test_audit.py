"""The audit log says who did what, and reveals changes to it."""

import asyncio
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.process.clock import SystemClock
from hansa.common.rpc.channel import Endpoint
from hansa.common.values.errors import Broken, Forbidden, Taken
from hansa.common.values.ids import JobId
from hansa.controller.audit.check import check_records
from hansa.controller.audit.log import REFUSALS, Audit
from hansa.controller.audit.records import LOG, AuditRecord, read_records
from hansa.controller.storage.backends import opened
from hansa.controller.storage.journal import Entry, SqliteJournal
from hansa.controller.storage.redis.space import key_below
from hansa.controller.work.workers import Workers
from hansa.protos import fleet_pb2, operator_pb2
from tests.consortium import Consortium, channel, fleet, operators
from tests.redis_server import RedisServer
from tests.support import LightSite, ended, job, nothing, serving


async def history(state: Path, pki: Path, store: str = "") -> str:
    """Let a learner, two operators and a stranger act; return the job's id."""
    made = Consortium(pki)
    async with serving(state, store, tls=made.issue("controller", "hub")) as served:
        learner, alice = made.issue("learner", "a"), made.issue("operator", "alice")
        async with LightSite(served.address, "a", tls=learner).attending():
            async with AsyncClient(Endpoint(served.address, alice)) as client:
                view = (await client.submit(job(pace={"kind": "sync", "rounds": 1}))).view
                await ended(await served.jobs.find(view.job))
                endless = (
                    await client.submit(job(name="endless", pace={"kind": "sync", "rounds": 10_000}))
                ).view
            async with AsyncClient(Endpoint(served.address, made.issue("operator", "bob"))) as client:
                assert "bob" in (await client.cancel(endless.job)).reason
            async with AsyncClient(Endpoint(served.address, learner)) as client:
                for _ in range(3):
                    with pytest.raises(Forbidden):
                        await client.cancel(view.job)
    return view.job


def lines(state: Path, store: str = "") -> list[AuditRecord]:
    with opened(store or f"disk:{state / 'store'}", state, lease=False) as held:
        assert list(check_records(held.journal)) == []
        return read_records(held.journal)


async def test_it_says_who_did_what(tmp_path: Path) -> None:
    first = await history(tmp_path / "state", tmp_path / "pki")
    found = [(record.who, record.what) for record in lines(tmp_path / "state")]
    for wanted in (
        ("controller", "started"),
        ("learner a", "joined"),
        ("operator alice", "submitted"),
        ("controller", "ended"),
        ("operator bob", "cancelled"),
        ("learner a", "refused"),
        ("controller", "stopped"),
    ):
        assert wanted in found
    assert found.count(("learner a", "refused")) == 1  # the same refusal again is not written again
    end = next(
        record for record in lines(tmp_path / "state") if record.about == first and record.what == "ended"
    )
    assert end.receipt


async def test_callers_cannot_flood_it(tmp_path: Path) -> None:
    clock = Turned()
    with opened("memory:", tmp_path) as held:
        workers = Workers()
        audit = Audit(held.journal, workers, clock)
        await audit.open()
        writing = asyncio.create_task(audit.write())
        for minute in range(3):
            for number in range(500):
                audit.refused("learner a", "Cancel", "not allowed")
                audit.moved("learner a", "joined", "10.0.0.1", f"instance {number}")
            clock.at += 61 * (minute + 1)
        audit.close()
        await writing
        found = Counter(record.what for record in read_records(held.journal))
        assert not list(check_records(held.journal))
        workers.close()
    assert found == {"refused": 3, "joined": 30, "silenced": 4}


async def test_callers_cannot_flood_it_with_different_refusals(tmp_path: Path) -> None:
    pki = Consortium(tmp_path / "pki")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub")) as served:
        evil = fleet(channel(served.address, pki.issue("learner", "evil")))
        for number in range(3 * REFUSALS):
            with pytest.raises(grpc.aio.AioRpcError, match="cannot act as"):
                await evil.Report(fleet_pb2.TaskReport(site=f"site-{number}", task="j-1"))
        other = operators(channel(served.address, pki.issue("learner", "b")))
        with pytest.raises(grpc.aio.AioRpcError, match="may not call"):
            await other.List(operator_pb2.ListRequest())
    found = Counter(record.who for record in lines(tmp_path / "state") if record.what == "refused")
    assert found == {"learner evil": REFUSALS, "learner b": 1}


async def test_a_second_daemon_under_a_name_is_recorded(tmp_path: Path) -> None:
    """Somebody may have copied the site's key."""
    pki = Consortium(tmp_path / "pki")
    async with serving(tmp_path / "state", tls=pki.issue("controller", "hub")) as served:
        mine = pki.issue("learner", "a")
        async with LightSite(served.address, "a", tls=mine).attending():
            with pytest.raises(Taken):
                async with LightSite(served.address, "a", tls=mine).attending():
                    pass
    (found,) = [record for record in lines(tmp_path / "state") if record.what == "refused"]
    assert (found.who, found.about) == ("learner a", "Attend")
    assert "another learner of site 'a' has been connected" in found.why


class Turned(SystemClock):
    """A clock that the test moves."""

    at = 1000.0

    def now(self) -> float:
        return self.at


async def test_it_is_continued_after_a_restart(tmp_path: Path) -> None:
    await history(tmp_path / "state", tmp_path / "one")
    before = len(lines(tmp_path / "state"))
    await history(tmp_path / "state", tmp_path / "two")
    assert len(lines(tmp_path / "state")) > before


async def test_the_end_of_a_job_is_recorded_even_if_the_controller_was_killed_in_that_moment(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        runner = await ended(await served.submit(job(), None, nothing()))
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        number = next(record.sequence for record in lines(tmp_path) if record.what == "ended")
        db.execute("delete from entries where job = ? and sequence >= ?", (LOG, number))
    db.close()
    for _ in range(3):  # once, however often it is started
        async with serving(tmp_path):
            pass
        (end,) = [record for record in lines(tmp_path) if record.what == "ended"]
        assert end.about == runner.id
        assert end.receipt == runner.machine.state.chain
        assert end.digest


@pytest.mark.parametrize("killed", [False, True])
async def test_a_job_that_was_accepted_and_is_gone_is_a_fault(tmp_path: Path, killed: bool) -> None:
    """Even if it was already in the journal when the controller was killed, but not yet accepted."""
    async with serving(tmp_path) as served:
        runner = await served.submit(job(), None, nothing())
    db = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    if killed:
        number = next(record.sequence for record in lines(tmp_path) if record.what == "accepted")
        db.execute("delete from entries where job = ? and sequence >= ?", (LOG, number))
    for _ in range(3):  # it is accepted once, however often the controller is started
        async with serving(tmp_path):
            pass
        assert [record.about for record in lines(tmp_path) if record.what == "accepted"] == [runner.id]
    for table, column in (("jobs", "id"), ("entries", "job")):
        db.execute(f"delete from {table} where {column} = ?", (runner.id,))
    db.close()
    done = CliRunner().invoke(hansa, ["audit", "verify", "--state", str(tmp_path)])
    assert done.exit_code == 1
    assert f"job {runner.id} is missing" in done.output


async def test_a_log_that_cannot_be_continued_does_not_keep_a_job_that_was_entered_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = SqliteJournal.append

    def full(journal: SqliteJournal, name: JobId, entries: Sequence[Entry]) -> None:
        if '"accepted"' in entries[0].event:
            raise Broken("no more paper")
        right(journal, name, entries)

    monkeypatch.setattr(SqliteJournal, "append", full)
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        runner = await ended(await served.submit(job(), None, nothing()))
        assert runner.view().status == "completed"


async def test_it_starts_over_when_the_store_has_lost_it(
    tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis that evicts may take the records and leave the mark that says how many there were."""
    monkeypatch.setattr("hansa.controller.audit.log.MARK_EVERY", 3)
    store = f"{redis.url}?prefix=audit-lost"
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        await ended(await served.submit(job(), None, nothing()))
    client = redis.client()
    assert client.exists(key_below("audit-lost", "snapshot", LOG))
    client.delete(key_below("audit-lost", "journal", LOG))
    client.close()
    async with serving(tmp_path, store) as served, LightSite(served.address, "a").attending():
        assert (await ended(await served.submit(job(), None, nothing()))).view().status == "completed"
    first = lines(tmp_path, store)[0]
    assert first.what == "started"
    assert "the store lost records 1 to" in first.why


async def test_it_is_kept_in_redis_with_the_jobs(tmp_path: Path, redis: RedisServer) -> None:
    store = f"{redis.url}?prefix=audit-test"
    await history(tmp_path / "state", tmp_path / "pki", store)
    assert {record.what for record in lines(tmp_path / "state", store)} >= {
        "submitted",
        "cancelled",
        "refused",
    }


async def test_changes_are_seen(tmp_path: Path) -> None:
    first = await history(tmp_path / "state", tmp_path / "pki")
    runner, where = CliRunner(), ["--state", str(tmp_path / "state")]
    sound = json.loads(runner.invoke(hansa, ["audit", "verify", *where, "--json"]).stdout)
    assert sound["sound"]
    shown = runner.invoke(hansa, ["audit", "show", *where]).stdout
    assert "operator alice" in shown

    def verdict(*more: str) -> str:
        done = runner.invoke(hansa, ["audit", "verify", *where, *more])
        assert done.exit_code == 1
        return done.output

    db = sqlite3.connect(tmp_path / "state" / "journal.sqlite")

    def attempt(statement: str, *values: object) -> str:
        db.execute("begin")
        db.execute(statement, values)
        db.execute("commit")
        return verdict()

    db.isolation_level = None
    kept = db.execute(
        "select sequence, event from entries where job = ? order by sequence", (LOG,)
    ).fetchall()
    number, event = next((n, e) for n, e in kept if "alice" in e)
    change = "update jobs set spec = ? where id = ?"
    restore = "update entries set event = ? where job = ? and sequence = ?"
    assert "was changed" in attempt(restore, event.replace("alice", "carol"), LOG, number)
    forged = AuditRecord.model_validate_json(event.replace("alice", "carol")).sealed().model_dump_json()
    assert "does not follow" in attempt(restore, forged, LOG, number)
    db.execute(restore, (event, LOG, number))
    assert "it has a receipt" in attempt(
        "update entries set receipt = 'x' where job = ? and sequence = 2", LOG
    )
    db.execute("update entries set receipt = '' where job = ?", (LOG,))
    assert runner.invoke(hansa, ["audit", "verify", *where]).exit_code == 0
    words = db.execute("select spec from jobs where id = ?", (first,)).fetchone()[0]
    for was, now in (
        ('"operator":"alice"', '"operator":"carol"'),
        ('"min":1', '"min":3'),
        ('"seed":1990', '"seed":1'),
    ):
        assert was in words
        assert "not the one that was submitted" in attempt(change, words.replace(was, now), first)
    db.execute(change, (words, first))
    events = db.execute(
        "select sequence, event from entries where job = ? order by sequence", (first,)
    ).fetchall()
    for sequence, happened in events:  # even what no receipt speaks of
        altered = re.sub(r'"at":(\d)', r'"at":9\1', happened)
        assert altered != happened
        assert "was changed after its end" in attempt(restore, altered, first, sequence)
        db.execute(restore, (happened, first, sequence))
    assert runner.invoke(hansa, ["audit", "verify", *where]).exit_code == 0
    assert "lost the receipt" in attempt("update entries set receipt = '' where job = ?", first)
    db.execute("delete from jobs where id = ?", (first,))
    assert f"job {first} is missing" in verdict()
    db.execute("delete from entries where job = ? and sequence = ?", (LOG, number))
    assert "is missing" in verdict()
    db.execute("delete from entries where job = ? and sequence >= ?", (LOG, number))
    assert "no longer in the chain" in verdict("--head", sound["head"])
    db.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--controller", "127.0.0.1:1", "--state", "."), "give one"),
        (("--follow", "--store", "memory:"), "give --controller instead"),
    ],
)
def test_the_log_is_read_from_one_place(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(hansa, ["audit", "show", *words])
    assert (done.exit_code, said in done.stderr) == (2, True), done.output
