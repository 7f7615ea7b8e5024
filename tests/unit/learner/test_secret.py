"""Secret randomness: the same for a task that is done again, and different in every other respect."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.site.files import DiskFiles
from hansa.common.values.errors import Broken
from hansa.common.values.ids import JobId, TaskId
from hansa.common.values.tasks import Task, Terms
from hansa.learner.memory.fingerprint import fingerprint
from hansa.learner.memory.secret import Secret, read_key
from tests.unit.learner.test_states import task

MODEL = Manifest(ModelSpec((TensorInfo("weight", "float32", (2,), Role.PARAM),)), (bytes(32),))


def changed(**fields: Any) -> Task:
    return task(1).model_copy(update=fields)


def test_a_task_draws_the_same_again_and_nothing_else_does(tmp_path: Path) -> None:
    key = read_key(DiskFiles(tmp_path))

    def drawn(name: str, task: Task, model: Manifest = MODEL, key: bytes = key) -> bytes:
        return Secret(lambda: key, lambda: fingerprint(task, model))(name).normal(size=1000).tobytes()

    first = drawn("noise", task(1))
    assert drawn("noise", task(1)) == first
    assert drawn("noise", changed(terms=Terms(operator="alice"))) == first, "it was sent once more"
    longer = task(1).work.model_copy(update={"epochs": 2})
    others = [
        drawn("other", task(1)),
        drawn("noise", task(2)),
        drawn("noise", changed(job=JobId("k"))),
        drawn("noise", changed(id=TaskId("j-2"))),
        drawn("noise", changed(work=longer)),
        drawn("noise", task(1), replace(MODEL, digests=(b"1" * 32,))),
        drawn("noise", task(1), key=read_key(DiskFiles(tmp_path / "elsewhere"))),
    ]
    assert len({first, *others}) == 8


def test_no_number_is_drawn_twice_in_a_task() -> None:
    """A plugin may ask in every batch, and two plugins may have chosen the same name."""
    secret, whole = (Secret(lambda: bytes(32), lambda: "mark") for _ in range(2))
    assert not secret.drawn
    numbers = [secret("noise").normal() for _ in range(4)]
    assert secret.drawn
    assert numbers == whole("noise").normal(size=4).tolist()


def test_the_key_is_made_once_for_the_owner_only(tmp_path: Path) -> None:
    state = tmp_path / "state"
    key = read_key(DiskFiles(state))
    assert len(key) == 32
    assert read_key(DiskFiles(state)) == key != read_key(DiskFiles(tmp_path / "other"))
    assert (state / "secret.key").stat().st_mode & 0o777 == 0o600
    (state / "secret.key").write_bytes(key[:-1])
    with pytest.raises(Broken, match=r"secret.key is damaged: it should hold 32 bytes; delete it"):
        read_key(DiskFiles(state))
