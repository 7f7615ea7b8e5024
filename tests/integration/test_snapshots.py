"""Jobs that go on from a snapshot and the events after it, over real gRPC, on disk and in Redis."""

import sqlite3
from pathlib import Path

import pytest

from hansa.controller.jobs import records
from hansa.controller.storage.backends import opened
from hansa.controller.values import history
from hansa.controller.verify.check import verify
from tests.redis_server import RedisServer
from tests.support import LightSite, ended, job, nothing, serving


@pytest.mark.parametrize("kind", ["disk", "redis"])
async def test_a_job_that_goes_on_from_its_snapshot_agrees_with_its_journal(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SNAPSHOT_EVERY", 10)
    monkeypatch.setattr(history, "CHAPTER", 4)
    store = f"disk:{tmp_path / 'store'}"
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        store = f"{server.url}?prefix=snapshots"
    spec = job(rule="async-fedavg", pace={"updates": 60})
    async with serving(tmp_path, store=store) as served, LightSite(served.address, "a").attending():
        runner = await served.submit(spec, None, nothing())
        while runner.machine.state.version < 20:
            await runner.next_change().wait()
    with opened(store, tmp_path, lease=False) as backends:
        saved = backends.journal.snapshot(runner.id)
        assert saved is not None
        assert saved.sequence > 0
        assert len(saved.chapters) > 3
    async with serving(tmp_path, store=store) as served:
        again = served.jobs.runner(runner.id)
        assert again.machine.unsaved < 10 + records.SNAPSHOT_EVERY  # it was not replayed from the start
        async with LightSite(served.address, "a").attending():
            assert (await ended(again)).view().status == "completed"
    with opened(store, tmp_path, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == runner.id]
        told, _, findings = verify(backends, record)  # from the journal alone
        assert findings == []
        assert told.state.model_dump() == again.machine.state.model_dump()
        assert told.memories == again.machine.memories


@pytest.mark.parametrize(
    "damage",
    [
        "delete from chapters where number = 1",
        "update snapshots set state = '{'",
        "update snapshots set sequence = sequence - 1",
        """update chapters set text = replace(text, '"at":1', '"at":2') where number = 4""",
    ],
)
async def test_a_job_with_a_damaged_snapshot_is_replayed_from_its_first_event(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that evicts keys may have dropped chapters; the rest is not a complete history."""
    monkeypatch.setattr(records, "SNAPSHOT_EVERY", 10)
    monkeypatch.setattr(history, "CHAPTER", 4)
    spec = job(rule="async-fedavg", pace={"updates": 30})
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        runner = await served.submit(spec, None, nothing())
        while runner.machine.state.version < 20:
            await runner.next_change().wait()
        before = served.federation.clock.now()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        assert db.execute(damage).rowcount == 1
    db.close()
    async with serving(tmp_path) as served, LightSite(served.address, "a").attending():
        again = await ended(served.jobs.runner(runner.id))
        assert again.view().status == "completed"
        assert [record.version for record in again.machine.state.history] == list(range(31))
        latest = before + 3600 - again.machine.state.submitted
        assert all(record.seconds < latest for record in again.machine.state.history)
