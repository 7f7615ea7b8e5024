"""What plugins remember: every task starts from the state of the update that was accepted last."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.site.files import DiskFiles
from hansa.common.values.errors import Forbidden, Refused, TooLarge
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.memory import states as module
from hansa.learner.memory.states import Recollection, State, States

DAY = 24 * 3600.0


def allowed(task: Task, size: int) -> None:
    """Allow any size."""


def work(after: int | None = None, job: str = "j") -> Train:
    said = "" if after is None else f"{job}-{after}"
    return Train(
        model=ModelKey("j/v0"), version=0, epochs=1, batch_size=1, optimizer=OptimizerSpec(), after=said
    )


def task(number: int, job: str = "j") -> Task:
    place = {"job": JobId(job), "site": SiteName("a"), "app": "app.py:app", "validation": ValidationSpec()}
    return Task(id=TaskId(f"{job}-{number}"), round=number, seed=7, work=work(), **place)


def do(
    folder: Path, number: int, after: int | None, change: Callable[[State], object] | None = None
) -> tuple[dict[str, Any], list[float], bool]:
    """Do a task as a learner that was just started; return what it started from."""
    states = States(DiskFiles(folder))
    recollection = states.recall(task(number), work(after))
    state = recollection.state
    start = (dict(state.memory), state.arrays.get("a", np.empty(0)).tolist(), state.lost)
    if change:
        change(state)
    states.keep(task(number), work(after), recollection, allowed)
    return start


def enter(number: int) -> Callable[[State], object]:
    """Return a change that adds a number to the notes and to an array."""

    def change(state: State) -> None:
        state.memory["seen"] = [*state.memory.get("seen", []), number]  # type: ignore[misc]
        state.arrays["a"] = np.append(state.arrays.get("a", np.empty(0)), float(number))

    return change


def files(folder: Path, job: str = "j") -> list[str]:
    return sorted(path.stem for path in (folder / job).iterdir()) if (folder / job).exists() else []


def test_a_task_goes_on_from_the_update_that_was_accepted_last(tmp_path: Path) -> None:
    assert do(tmp_path, 1, None, enter(1)) == ({}, [], False)
    assert do(tmp_path, 2, 1, enter(2)) == ({"seen": [1]}, [1], False)
    assert do(tmp_path, 3, 2, enter(3)) == ({"seen": [1, 2]}, [1, 2], False)
    assert files(tmp_path) == ["j-2", "j-3"]


def test_a_task_that_is_done_again_starts_from_the_same_state(tmp_path: Path) -> None:
    do(tmp_path, 1, None, enter(1))
    for _ in range(3):
        assert do(tmp_path, 2, 1, enter(2)) == ({"seen": [1]}, [1], False)
    kept = (tmp_path / "j" / "j-2.safetensors").read_bytes()
    do(tmp_path, 2, 1, enter(2))
    assert (tmp_path / "j" / "j-2.safetensors").read_bytes() == kept


def test_the_state_of_an_update_that_was_not_accepted_does_not_count(tmp_path: Path) -> None:
    do(tmp_path, 1, None, enter(1))
    do(tmp_path, 2, 1, enter(2))
    assert do(tmp_path, 3, 1, enter(3)) == ({"seen": [1]}, [1], False)
    assert files(tmp_path) == ["j-1", "j-3"]
    assert do(tmp_path, 4, None) == ({}, [], False)  # nothing was ever accepted


def test_a_state_that_is_not_there_is_lost_and_the_job_goes_on_from_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    do(tmp_path, 1, None, enter(1))
    (tmp_path / "j" / "j-1.safetensors").unlink()
    for _ in range(2):  # also if the task is done again
        assert do(tmp_path, 2, 1, enter(2)) == ({}, [], True)
    assert "what the plugins remembered after task j-1 is not here" in caplog.text
    assert do(tmp_path, 3, 2) == ({"seen": [2]}, [2], False)


def test_a_state_from_an_old_copy_of_the_disk_is_not_mistaken_for_the_last_one(tmp_path: Path) -> None:
    do(tmp_path, 1, None, enter(1))
    assert do(tmp_path, 5, 4) == ({}, [], True)


def test_a_damaged_state_is_a_lost_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    do(tmp_path, 1, None, enter(1))
    path = tmp_path / "j" / "j-1.safetensors"
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:30],
        whole.replace(b"hansa.memory", b"hansa.nemory"),
        whole.replace(b"[", b"("),
    ):
        path.write_bytes(damaged)
        assert do(tmp_path, 2, 1) == ({}, [], True)
    assert "cannot be read" in caplog.text


def test_a_task_whose_plugins_change_nothing_writes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    do(tmp_path, 1, None, enter(1))
    before = (tmp_path / "j" / "j-1.safetensors").stat()
    do(tmp_path, 2, 1)  # a plugin has looked at it
    states = States(DiskFiles(tmp_path))
    states.keep(task(3), work(2), states.recall(task(3), work(2)), allowed)  # none has
    after = (tmp_path / "j" / "j-3.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert do(tmp_path, 4, 3) == ({"seen": [1]}, [1], False)


def test_a_file_system_without_links_keeps_the_state_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    do(tmp_path, 1, None, enter(1))
    monkeypatch.setattr(os, "link", refuse)
    do(tmp_path, 2, 1)
    assert do(tmp_path, 3, 2) == ({"seen": [1]}, [1], False)


def test_an_array_that_is_changed_in_its_place_is_kept_and_the_start_stays_as_it_was(tmp_path: Path) -> None:
    do(tmp_path, 1, None, enter(1))

    def add(state: State) -> None:
        state.arrays["a"] += 5

    for _ in range(2):
        assert do(tmp_path, 2, 1, add)[1] == [1]
    assert do(tmp_path, 3, 2)[1] == [6]


def test_plugins_that_remember_nothing_leave_no_file(tmp_path: Path) -> None:
    states = States(DiskFiles(tmp_path / "memory"))
    for number in (1, 2):
        after = work(number - 1 or None)
        states.keep(task(number), after, states.recall(task(number), after), allowed)
    assert not (tmp_path / "memory").exists()


def test_nothing_is_read_until_a_plugin_asks(tmp_path: Path) -> None:
    reads = []
    recollection = Recollection(lambda: reads.append(1) or State())  # type: ignore[func-returns-value]
    assert (recollection.asked, reads) == (False, [])
    assert recollection.state is recollection.state
    assert (recollection.asked, reads) == (True, [1])


def test_files_are_for_the_owner_only_and_drafts_of_the_killed_are_removed(tmp_path: Path) -> None:
    do(tmp_path, 1, None, enter(1))
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "j" / "j-1.safetensors").stat().st_mode & 0o777 == 0o600
    (tmp_path / "j" / ".j-2.safetensors.99").write_bytes(b"half")
    do(tmp_path, 2, 1)
    assert files(tmp_path) == ["j-1", "j-2"]


@pytest.mark.parametrize("odd", [np.arange(2), iter(()), "\ud800", (1, 2), float("nan")])
def test_notes_that_a_restart_could_not_read_are_refused(tmp_path: Path, odd: Any) -> None:
    do(tmp_path, 1, None, enter(1))
    with pytest.raises(Refused, match=r"run.memory\['seen'\] is not JSON: strings, finite numbers, lists"):
        do(tmp_path, 2, 1, lambda state: state.memory.update(seen=odd))
    assert do(tmp_path, 2, 1)[0] == {"seen": [1]}


def test_notes_that_are_too_long_are_refused(tmp_path: Path) -> None:
    do(tmp_path, 1, None, lambda state: state.memory.update(much="x" * 1_000_000))
    with pytest.raises(TooLarge, match=r"run.memory; 1048576 are allowed \(run.arrays holds more\)"):
        do(tmp_path, 2, 1, lambda state: state.memory.update(more="x" * 100_000))


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("a b", np.zeros(1), "'a b' cannot be the name of an array"),
        ("__metadata__", np.zeros(1), "'__metadata__' cannot be the name"),
        (7, np.zeros(1), "7 cannot be the name"),
        ("a", [1.0], "a is list, not an array"),
        ("a", np.float32(1), "a is float32, not an array"),
        ("a", np.array(["x"]), "a is str32"),
        ("a", np.zeros(1, complex), "a is complex128"),
    ],
)
def test_arrays_that_cannot_be_kept_are_refused(tmp_path: Path, name: Any, array: Any, said: str) -> None:
    with pytest.raises(Refused, match=f"run.arrays: {said}"):
        do(tmp_path, 1, None, lambda state: state.arrays.update({name: array}))


def test_more_than_the_owner_allows_is_not_written(tmp_path: Path) -> None:
    def require(_: Task, size: int) -> None:
        raise Forbidden(f"{size}")

    states = States(DiskFiles(tmp_path))
    recollection = states.recall(task(1), work())
    recollection.state.arrays |= {"a": np.zeros(3), "b": np.zeros(2, np.int8)}
    with pytest.raises(Forbidden, match="26"):
        states.keep(task(1), work(), recollection, require)
    assert files(tmp_path) == []


def test_a_full_disk_does_not_end_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be written is remembered as long as the learner runs; a restart loses it and says so."""
    (tmp_path / "memory").write_text("in the way")
    states = States(DiskFiles(tmp_path / "memory" / "folder"))
    seen = []
    for number, after in ((1, None), (2, 1), (2, 1), (3, 2), (4, 3)):
        recollection = states.recall(task(number), work(after))
        seen.append(recollection.state.arrays.get("a", np.zeros(1)).tolist())
        if number != 3:  # which leaves it as it was
            recollection.state.arrays["a"] = recollection.state.arrays.get("a", np.zeros(1))
            recollection.state.arrays["a"] += 1
        states.keep(task(number), work(after), recollection, allowed)
    assert seen == [[0], [1], [1], [2], [2]]
    assert "cannot be written: Not a directory; a restart would lose what the plugins remember" in caplog.text


def test_jobs_are_forgotten_after_a_while_or_if_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    now = 100 * DAY

    def one(job: str, at: float) -> None:
        states = States(DiskFiles(tmp_path, clock=lambda: at))
        recollection = states.recall(task(1, job), work(job=job))
        recollection.state.memory["seen"] = job
        states.keep(task(1, job), work(job=job), recollection, allowed)
        os.utime(tmp_path / job, (at, at))

    for number, job in enumerate("abcd"):
        one(job, now + number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c", "d"]
    one("e", now + 2.5 + 30 * DAY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "e"]
