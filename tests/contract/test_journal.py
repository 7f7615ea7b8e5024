"""The contract of a journal, checked for every implementation."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hansa.common.values.errors import Broken, StoreFailed
from hansa.common.values.ids import JobId
from hansa.controller.storage.journal import Entry, JobRecord, Journal, RedisJournal, SqliteJournal, sqlite
from hansa.controller.storage.journal.sqlite import SCHEMA
from hansa.controller.storage.redis.space import RedisSpace
from hansa.controller.values.snapshots import Snapshot

A, B = JobId("j-a"), JobId("j-b")
Open = Callable[[], Journal]


@pytest.fixture(params=["sqlite", "redis"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the same journal again."""
    opened: list[Journal] = []
    spaces: list[RedisSpace] = []

    def open_again() -> Journal:
        if request.param == "redis":
            server, prefix = request.getfixturevalue("redis"), request.node.name.encode().hex()[-40:]
            spaces.append(RedisSpace(f"{server.url}?prefix={prefix}"))
            spaces[-1].acquire()
            opened.append(RedisJournal(spaces[-1]))
        else:
            opened.append(SqliteJournal(tmp_path / "journal.db"))
        return opened[-1]

    yield open_again
    for journal in opened:
        journal.close()
    for space in spaces:
        space.close()


@pytest.fixture
def journal(reopen: Open) -> Journal:
    """Open a journal."""
    return reopen()


def _fill(journal: Journal, job: JobId, *events: str) -> None:
    for sequence, event in enumerate(events, start=1):
        journal.append(job, [Entry(sequence, event)])


def _events(journal: Journal, job: JobId) -> list[str]:
    return [entry.event for entry in journal.entries(job)]


def test_events_come_back_in_order_and_apart_by_job(journal: Journal) -> None:
    for sequence in range(1, 25):
        journal.append(A, [Entry(sequence, f"a{sequence}", f"receipt {sequence}")])
        journal.append(B, [Entry(sequence, f"b{sequence}")])
    assert journal.entries(A) == [Entry(i, f"a{i}", f"receipt {i}") for i in range(1, 25)]
    assert journal.entries(B) == [Entry(i, f"b{i}") for i in range(1, 25)]


def test_a_forgotten_job_leaves_nothing_and_the_others_are_as_they_were(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "AT_ONCE", 3)
    for job in (A, B):
        journal.create(JobRecord(job, "{}", 1.0))
        _fill(journal, job, *(str(i) for i in range(1, 12)))
        journal.save_snapshot(job, Snapshot(5, "state", {0: "a", 1: "b"}))
        journal.conclude(job, "over")
    before = journal.entries(B), journal.snapshot(B)
    for _ in range(2):  # repeating it is harmless
        while journal.forget(A):
            pass
    assert ([record.id for record in journal.jobs()], journal.job(A)) == ([B], None)
    assert (journal.entries(A), journal.snapshot(A)) == ([], None)
    assert journal.summaries() == {B: "over"}
    assert (journal.entries(B), journal.snapshot(B)) == before


def test_entries_can_be_read_from_any_number_on(journal: Journal) -> None:
    _fill(journal, A, *(str(i) for i in range(1, 13)))
    for after in (0, 1, 9, 11):
        assert [entry.sequence for entry in journal.entries(A, after)] == list(range(after + 1, 13))
        assert [entry.sequence for entry in journal.entries(A, after, 2)] == list(range(after + 1, 13))[:2]
    assert journal.entries(A, 12) == journal.entries(A, 99) == []


def test_a_job_without_events_has_none(journal: Journal) -> None:
    assert _events(journal, A) == []
    journal.create(JobRecord(A, "{}", 1.0))
    assert _events(journal, A) == []


def test_any_text_is_kept_as_it_is(journal: Journal) -> None:
    texts = ["", "{}", '{"loss":NaN}', "ä\n'\"\0—", "x" * 1_000_000]
    _fill(journal, A, *texts)
    assert _events(journal, A) == texts


def test_repeating_an_event_is_harmless(journal: Journal) -> None:
    _fill(journal, A, "one", "two")
    for _ in range(3):
        journal.append(A, [Entry(3, "three", "receipt")])
    assert journal.entries(A) == [Entry(1, "one"), Entry(2, "two"), Entry(3, "three", "receipt")]


def test_repeating_an_event_with_other_contents_is_refused(journal: Journal) -> None:
    _fill(journal, A, "one", "two")
    for other in (Entry(2, "other"), Entry(2, "two", "receipt")):
        with pytest.raises(Broken, match="j-a: the journal already has entry 2"):
            journal.append(A, [other])
    with pytest.raises(Broken, match="j-a: entry 1 "):
        journal.append(A, [Entry(1, "other")])
    assert _events(journal, A) == ["one", "two"]


@pytest.mark.parametrize("sequence", [-1, 0, 4, 99])
def test_a_gap_is_refused(journal: Journal, sequence: int) -> None:
    _fill(journal, A, "one", "two")
    with pytest.raises(Broken, match=f"j-a: entry {sequence} cannot follow entry 2"):
        journal.append(A, [Entry(sequence, "late")])
    journal.append(A, [Entry(3, "three")])
    assert _events(journal, A) == ["one", "two", "three"]


def test_the_first_event_is_number_one(journal: Journal) -> None:
    for sequence in (0, 2):
        with pytest.raises(Broken):
            journal.append(A, [Entry(sequence, "x")])
    journal.append(A, [Entry(1, "x")])
    assert _events(journal, A) == ["x"]


def test_a_job_has_no_snapshot_until_one_is_saved_and_then_the_newest(reopen: Open) -> None:
    journal = reopen()
    assert journal.snapshot(A) is None
    _fill(journal, A, "one", "two", "three")
    journal.save_snapshot(A, Snapshot(1, "first", {}))
    journal.save_snapshot(B, Snapshot(7, "another job's", {0: "its history"}))
    journal.save_snapshot(A, Snapshot(3, "second", {}))
    assert journal.snapshot(A) == Snapshot(3, "second", {})
    assert journal.snapshot(B) == Snapshot(7, "another job's", {0: "its history"})
    assert reopen().snapshot(A) == Snapshot(3, "second", {})
    assert _events(journal, A) == ["one", "two", "three"]


def test_a_snapshot_replaces_the_chapters_that_it_brings_and_keeps_the_others(reopen: Open) -> None:
    journal = reopen()
    journal.save_snapshot(A, Snapshot(1, "first", {0: "zero", 1: "one"}))
    journal.save_snapshot(A, Snapshot(2, "second", {1: "one and more", 2: "two"}))
    whole = Snapshot(2, "second", {0: "zero", 1: "one and more", 2: "two"})
    assert journal.snapshot(A) == whole
    assert reopen().snapshot(A) == whole


def test_several_events_are_appended_together_and_may_be_repeated(journal: Journal) -> None:
    _fill(journal, A, "one")
    entries = [Entry(2, "two", "receipt"), Entry(3, "three"), Entry(4, "four")]
    for _ in range(2):
        journal.append(A, entries)
    journal.append(A, [*entries[1:], Entry(5, "five")])  # the first two of these are known
    assert journal.entries(A, 1) == [*entries, Entry(5, "five")]


@pytest.mark.parametrize("entries", [["three", "other"], ["other", "four"], ["other", "four", "five"]])
def test_of_several_events_that_contradict_the_journal_none_is_kept(
    journal: Journal, entries: list[str]
) -> None:
    _fill(journal, A, "one", "two", "three", "four")
    with pytest.raises(Broken, match=r"j-a: the journal already has entry [34]"):
        journal.append(A, [Entry(3 + i, text) for i, text in enumerate(entries)])
    assert _events(journal, A) == ["one", "two", "three", "four"]


def test_jobs_come_back_in_the_order_of_their_submission(journal: Journal) -> None:
    records = [
        JobRecord(JobId(name), f'{{"name": "{name}"}}', at)
        for name, at in (("z", 1.0), ("m", 2.5), ("a", 2.75))
    ]
    for record in records:
        journal.create(record)
    assert journal.jobs() == records


def test_creating_a_job_again_is_harmless(journal: Journal) -> None:
    record = JobRecord(A, "{}", 1.25)
    journal.create(record)
    journal.append(A, [Entry(1, "one")])
    journal.create(record)
    assert journal.jobs() == [record]
    assert _events(journal, A) == ["one"]


def test_everything_is_there_when_the_journal_is_opened_again(reopen: Open) -> None:
    first = reopen()
    record = JobRecord(A, '{"name": "ü"}', 1763280000.123456)
    first.create(record)
    _fill(first, A, "one", "two")
    first.close()
    again = reopen()
    assert again.jobs() == [record]
    assert _events(again, A) == ["one", "two"]
    again.append(A, [Entry(2, "two")])
    again.append(A, [Entry(3, "three")])
    assert _events(again, A) == ["one", "two", "three"]


def test_appended_entries_are_durable_even_if_the_journal_was_never_closed(reopen: Open) -> None:
    killed = reopen()
    killed.create(JobRecord(A, "{}", 1.0))
    _fill(killed, A, "one", "two")
    assert _events(reopen(), A) == ["one", "two"]


def test_damage_to_one_record_leaves_the_others_readable(journal: Journal) -> None:
    """It is read without an error, and cannot be decoded."""
    journal.create(JobRecord(A, '{"name": "a"}', 1.0))
    journal.create(JobRecord(B, '{"name": "b"}', 2.0))
    _fill(journal, A, '{"one": 1}', '{"two": 2}', '{"three": 3}')
    if isinstance(journal, SqliteJournal):
        journal.db.execute("update entries set event = cast(x'ff7b7d' as text) where sequence = 2")
        journal.db.execute("update entries set event = x'ff' where sequence = 3")
        journal.db.execute("update jobs set spec = cast(x'7bff' as text) where id = ?", (A,))
    elif isinstance(journal, RedisJournal):
        client, key = journal.space.client, journal.space.key("journal", A)
        ((_, sound), *_) = client.xrange(key)
        client.delete(key)
        for number, fields in (
            (1, sound),
            (2, {"event": b"\xff{}"}),
            (3, {"evnt": "x"}),
        ):
            client.xadd(key, fields, id=f"{number}-0")
        client.hset(journal.space.key("jobs"), A, b'{"spec\xff')
    first, *damaged = journal.entries(A)
    assert first == Entry(1, '{"one": 1}')
    assert [entry.sequence for entry in damaged] == [2, 3]
    for text in (*(entry.event for entry in damaged), next(r.spec for r in journal.jobs() if r.id == A)):
        with pytest.raises(ValueError, match=r"Expecting|line 1"):
            json.loads(text)
    assert [record for record in journal.jobs() if record.id == B] == [JobRecord(B, '{"name": "b"}', 2.0)]


def _change(journal: Journal, kind: str) -> None:
    """Change one character of a record, so that it can still be read."""
    if isinstance(journal, SqliteJournal):
        statements = {
            "event": "update entries set event = replace(event, '1', '2') where job = 'j-a' and sequence = 2",
            "place": "update entries set sequence = 4 where job = 'j-a' and sequence = 3",
            "spec": "update jobs set spec = replace(spec, '1', '2') where id = 'j-a'",
            "at": "update jobs set at = 2001.5 where id = 'j-a'",
            "state": "update snapshots set state = replace(state, '1', '2') where job = 'j-a'",
            "sequence": "update snapshots set sequence = 2 where job = 'j-a'",
            "chapter": "update chapters set text = replace(text, '1', '2') where job = 'j-a' and number = 0",
        }
        assert journal.db.execute(statements[kind]).rowcount == 1
        return
    assert isinstance(journal, RedisJournal)
    client, key = journal.space.client, journal.space.key
    if kind in ("event", "place"):
        rows = client.xrange(key("journal", A))
        client.delete(key("journal", A))
        for number, fields in rows:
            if kind == "event" and number == b"2-0":
                fields[b"event"] = fields[b"event"].replace(b"1", b"2")
            client.xadd(
                key("journal", A), fields, id="4-0" if (kind, number) == ("place", b"3-0") else number
            )
        return
    place, field, was, now = {
        "spec": (key("jobs"), A, b"1}", b"2}"),
        "at": (key("jobs"), A, b"1001.5", b"2001.5"),
        "state": (key("snapshot", A), "state", b": 1}", b": 2}"),
        "sequence": (key("snapshot", A), "sequence", b"3", b"2"),
        "chapter": (key("snapshot", A), "0", b": 1}", b": 2}"),
    }[kind]
    held = client.hget(place, field)
    assert was in held
    client.hset(place, field, held.replace(was, now))


@pytest.mark.parametrize("kind", ["event", "place", "spec", "at", "state", "sequence", "chapter"])
def test_a_wrong_digit_is_found_even_if_it_is_plausible(journal: Journal, kind: str) -> None:
    records = [JobRecord(A, '{"a": 1}', 1001.5), JobRecord(B, '{"b": 1}', 1002.5)]
    texts, whole = ['{"at": 1}'] * 3, Snapshot(3, '{"s": 1}', {0: '{"c": 1}'})
    for record in records:
        journal.create(record)
        _fill(journal, record.id, *texts)
        journal.save_snapshot(record.id, whole)
    assert journal.jobs() == records
    assert journal.snapshot(A) == whole
    assert [entry.sound for entry in journal.entries(A)] == [True] * 3
    _change(journal, kind)
    entries = journal.entries(A)
    assert [entry.sound for entry in entries] == [True, kind != "event", kind != "place"]
    assert entries[0] == Entry(1, texts[0])
    (read,) = [record for record in journal.jobs() if record.id == A]
    assert read == (JobRecord(A, "", 0.0) if kind in ("spec", "at") else records[0])
    if kind in ("state", "sequence", "chapter"):
        with pytest.raises(Broken, match="the snapshot of job j-a is damaged: its checksum is wrong"):
            journal.snapshot(A)
    else:
        assert journal.snapshot(A) == whole
    assert [record for record in journal.jobs() if record.id == B] == records[1:]
    assert journal.entries(B) == [Entry(i, text) for i, text in enumerate(texts, start=1)]
    assert journal.snapshot(B) == whole


# SQLite only.


def test_every_append_is_synced(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    assert journal.db.execute("pragma synchronous").fetchone()[0] == 2  # full
    assert journal.db.execute("pragma journal_mode").fetchone()[0] == "wal"
    journal.close()


@pytest.mark.parametrize(("age", "number"), [("newer", SCHEMA + 1), ("older", SCHEMA - 1)])
def test_a_journal_of_another_hansa_is_refused_and_not_touched(tmp_path: Path, age: str, number: int) -> None:
    path = tmp_path / "journal.db"
    SqliteJournal(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"pragma user_version = {number}")
    db.close()
    with pytest.raises(Broken, match=rf"{age} Hansa \(format {number}, this one knows {SCHEMA}\)"):
        SqliteJournal(path)
    db = sqlite3.connect(path)
    assert db.execute("pragma user_version").fetchone()[0] == number
    db.close()


@pytest.mark.parametrize("content", [b"this is no database, " * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_not_a_journal_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    with pytest.raises(Broken, match=r"journal\.db"):
        SqliteJournal(path)


def test_a_journal_in_a_folder_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Broken, match=r"journal\.db"):
        SqliteJournal(tmp_path / "missing" / "journal.db")


def test_a_damaged_journal_is_broken_not_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    _fill(journal, A, *(f"event {i} " + "x" * 500 for i in range(200)))
    journal.close()
    whole = bytearray(path.read_bytes())
    whole[4096:] = b"\xff" * (len(whole) - 4096)
    path.write_bytes(whole)
    with pytest.raises(Broken, match=str(path)) as caught:  # noqa: PT012 - opening or reading, whichever notices first
        damaged = SqliteJournal(path)
        try:
            damaged.entries(A)
        finally:
            damaged.close()
    assert not isinstance(caught.value, StoreFailed)  # nobody must wait for it to pass


def test_a_journal_that_another_process_holds_for_a_moment_may_be_tried_again(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.db.execute("pragma busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreFailed, match="locked"):
        journal.append(A, [Entry(1, "one")])
    other.execute("rollback")
    other.close()
    journal.append(A, [Entry(1, "one")])
    journal.close()


def test_summaries_are_kept_by_job_and_the_newest_counts(journal: Journal, reopen: Open) -> None:
    assert journal.summaries() == {}
    journal.conclude(A, '{"status": "failed"}')
    journal.conclude(A, '{"status": "completed"}')
    journal.conclude(B, "ä")
    assert reopen().summaries() == {A: '{"status": "completed"}', B: "ä"}


def test_a_damaged_summary_is_left_out(journal: Journal) -> None:
    for job in (A, B):
        journal.conclude(job, '{"status": 1}')
    if isinstance(journal, SqliteJournal):
        journal.db.execute("update summaries set text = replace(text, '1', '2') where job = ?", (A,))
    elif isinstance(journal, RedisJournal):
        client, key = journal.space.client, journal.space.key("summaries")
        client.hset(key, A, client.hget(key, A).replace(b"1}", b"2}"))
    assert journal.summaries() == {B: '{"status": 1}'}


def test_one_job_is_found_by_its_id(journal: Journal) -> None:
    journal.create(JobRecord(A, "{}", 1.5))
    assert journal.job(A) == JobRecord(A, "{}", 1.5)
    assert journal.job(B) is None
