"""Secret randomness: the same for a task that is done again, and different in every other respect."""

from pathlib import Path

import pytest

from hansa.common.site.files import DiskFiles
from hansa.common.values.errors import Broken
from hansa.common.values.ids import JobId, TaskId
from hansa.learner.memory.secret import Secret, read_key
from tests.unit.learner.test_states import task


def test_a_task_draws_the_same_again_and_nothing_else_does(tmp_path: Path) -> None:
    key = read_key(DiskFiles(tmp_path))
    first = task(1)
    drawn = Secret(lambda: key, first)("noise").normal(size=1000).tobytes()
    again = Secret(lambda: read_key(DiskFiles(tmp_path)), first)
    assert not again.drawn
    assert again("noise").normal(size=1000).tobytes() == again("noise").normal(size=1000).tobytes() == drawn
    assert again.drawn
    others = [
        Secret(lambda: key, first)("other"),
        Secret(lambda: key, task(2))("noise"),
        Secret(lambda: key, task(1).model_copy(update={"job": JobId("k")}))("noise"),
        Secret(lambda: read_key(DiskFiles(tmp_path / "elsewhere")), first)("noise"),
        # The same letters, in other words.
        Secret(lambda: key, first.model_copy(update={"id": TaskId(f"{first.id}n")}))("oise"),
    ]
    assert len({drawn, *(other.normal(size=1000).tobytes() for other in others)}) == 6


def test_the_key_is_made_once_for_the_owner_only(tmp_path: Path) -> None:
    state = tmp_path / "state"
    key = read_key(DiskFiles(state))
    assert len(key) == 32
    assert read_key(DiskFiles(state)) == key != read_key(DiskFiles(tmp_path / "other"))
    assert (state / "secret.key").stat().st_mode & 0o777 == 0o600
    (state / "secret.key").write_bytes(key[:-1])
    with pytest.raises(Broken, match=r"secret.key is damaged: it should hold 32 bytes; delete it"):
        read_key(DiskFiles(state))
