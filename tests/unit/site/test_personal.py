"""The folder of the site's own tensors: they are those of the last accepted update, whatever happens."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.models.checkpoints import load_checkpoint
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.models.travel import TensorSets
from hansa.common.site.files import DiskFiles
from hansa.common.site.personal import PENDING, Personal, PersonalFolder, own_tensors
from hansa.common.torch.resident import Resident
from hansa.common.values.errors import InvalidInput, StoreFailed
from hansa.common.values.ids import JobId, TaskId
from hansa.common.values.settings.training import Travel, ValidationSpec
from hansa.common.values.tasks import Init, Task

JOB = JobId("j1")
SPEC = ModelSpec((TensorInfo("head.weight", "float32", (2, 2), Role.PARAM, 1),), ("body", "head"))


def task(number: int) -> Task:
    words: dict[str, Any] = {"site": "a", "round": 1, "app": "app.py:app", "seed": 1}
    travel = Travel(kind="personal", last=1)
    return Task(id=f"j1-{number}", job=JOB, validation=ValidationSpec(), work=Init(), travel=travel, **words)


def trained(folder: PersonalFolder, number: int, value: float) -> None:
    folder.keep(task(number), SPEC, {"head.weight": np.full((2, 2), value, np.float32)})


def value(folder: PersonalFolder) -> float | None:
    """Return the number in the committed tensors, as an evaluator in another process finds it."""
    own = folder.committed(JOB)
    return None if own is None else float(own.arrays["head.weight"][0, 0])


def test_a_receipt_commits_what_a_task_has_left(tmp_path: Path) -> None:
    folder, evaluators = (PersonalFolder(DiskFiles(tmp_path / "own")) for _ in range(2))
    assert folder.begin(task(1), "") is None
    trained(folder, 1, 1.0)
    assert value(evaluators) is None
    folder.commit(task(1))
    own = evaluators.committed(JOB)
    assert own is not None
    assert (own.task, value(evaluators)) == ("j1-1", 1.0)


def test_a_lost_receipt_is_made_up_for_by_the_next_task(tmp_path: Path) -> None:
    folder = PersonalFolder(DiskFiles(tmp_path))
    trained(folder, 1, 1.0)
    started = folder.begin(task(2), after="j1-1")
    assert started is not None
    assert started.task == "j1-1"
    assert value(folder) == 1.0


@pytest.mark.parametrize("again", [2, 3])
def test_what_was_not_accepted_is_dropped(tmp_path: Path, again: int) -> None:
    folder = PersonalFolder(DiskFiles(tmp_path))
    trained(folder, 1, 1.0)
    folder.commit(task(1))
    trained(folder, 2, 2.0)  # and the learner is killed before its update is accepted
    started = folder.begin(task(again), after="j1-1")
    assert started is not None
    assert started.arrays["head.weight"][0, 0] == 1.0
    trained(folder, again, 3.0)
    folder.commit(task(again))
    assert value(folder) == 3.0


def test_a_task_that_is_delivered_again_after_its_receipt_changes_nothing(tmp_path: Path) -> None:
    folder = PersonalFolder(DiskFiles(tmp_path))
    trained(folder, 1, 1.0)
    folder.commit(task(1))
    folder.begin(task(1), after="")
    trained(folder, 1, 9.0)
    folder.commit(task(1))
    assert value(folder) == 1.0
    folder.begin(task(2), after="j1-1")
    assert value(folder) == 1.0


def test_a_commit_of_another_task_does_nothing(tmp_path: Path) -> None:
    folder = PersonalFolder(DiskFiles(tmp_path))
    trained(folder, 1, 1.0)
    folder.commit(task(7))
    assert value(folder) is None


def test_lost_and_damaged_tensors_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = PersonalFolder(DiskFiles(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert folder.begin(task(3), after="j1-2") is None
    assert "own tensors after task j1-2 are lost; they start anew" in caplog.text
    trained(folder, 1, 1.0)
    folder.commit(task(1))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        folder.begin(task(3), after="j1-2")
    assert "training goes on from those after task j1-1" in caplog.text
    (tmp_path / "j1.safetensors").write_bytes(b"nonsense")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert folder.committed(JOB) is None
    assert "cannot be used: " in caplog.text


def test_a_tensor_of_another_shape_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    """The site's owner may have changed the app in the middle of a job."""
    first = {"head.weight": np.zeros((2, 2)), "head.bias": np.zeros(2)}
    resident = Resident(SPEC, TensorSets((), (), tuple(first)), "", first)
    kept = Personal(TaskId("j1-1"), {"head.weight": np.ones((3, 2)), "head.bias": np.ones(2)})
    with caplog.at_level(logging.WARNING):
        own = own_tensors(resident, kept)
    assert own["head.weight"] is first["head.weight"]
    assert own["head.bias"] is kept.arrays["head.bias"]
    assert "head.weight has the shape [3, 2], not [2, 2] as in the app's model; it starts anew" in caplog.text


def test_files_are_for_their_owner_only_and_can_be_read_as_models(tmp_path: Path) -> None:
    folder = PersonalFolder(DiskFiles(tmp_path / "own"))
    trained(folder, 1, 1.0)
    pending = tmp_path / "own" / PENDING / "j1.safetensors"
    assert (pending.stat().st_mode & 0o777, pending.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    folder.commit(task(1))
    path = tmp_path / "own" / "j1.safetensors"
    assert path.stat().st_mode & 0o777 == 0o600
    manifest, payload = load_checkpoint(path)
    assert manifest.spec == SPEC
    own_manifest, own_payload = folder.model(JOB)
    assert (own_manifest, own_payload.tobytes()) == (manifest, payload.tobytes())
    assert folder.jobs() == ["j1"]


def test_a_folder_that_cannot_be_written_fails_the_task(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file")
    with pytest.raises(StoreFailed, match="--personal names another folder"):
        trained(PersonalFolder(DiskFiles(tmp_path / "own")), 1, 1.0)


def test_a_job_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a job id"):
        PersonalFolder(DiskFiles(tmp_path)).committed(JobId("../j1"))
