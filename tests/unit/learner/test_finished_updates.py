"""Updates with secret randomness in them: they are computed once, and no other update has the same noise."""

import os
from pathlib import Path

import numpy as np
import pytest

from hansa.common.site.files import DiskFiles
from hansa.common.values.errors import StoreFailed
from hansa.common.values.ids import JobId
from hansa.learner.memory import finished
from hansa.learner.memory.finished import FinishedUpdates
from tests.unit.learner.test_amending import do, named
from tests.unit.learner.test_learning_tasks import LINEAR
from tests.unit.learner.test_partial_tasks import TORCH, trainer_of


def test_an_update_with_secret_randomness_is_finished_once_and_kept_until_its_receipt(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, TORCH)
    _, first, task = do(trainer, named("noise"), named("sum"))
    kept = tmp_path / "finished" / "j.safetensors"
    assert kept.stat().st_mode & 0o777 == 0o600
    # An app that trains differently, as a GPU may, does not matter any more.
    again = trainer_of(tmp_path, TORCH.replace("0.2", "0.7"))
    _, second, _ = do(again, named("noise"), named("sum"))
    assert second.manifest == first.manifest
    assert second.payload.tobytes() == first.payload.tobytes()
    assert repr(second.facts) == repr(first.facts)
    again.commit(task)
    assert not kept.exists()
    _, next_, _ = do(again, named("sum"), number=2, after="j-1")
    assert next_.facts.metrics["tasks"] == 2  # what the first task remembered is there
    assert not kept.exists()


def test_a_finished_update_of_another_task_or_a_damaged_one_is_not_used(tmp_path: Path) -> None:
    _, update, task = do(trainer_of(tmp_path, TORCH), named("noise"))
    updates = FinishedUpdates(DiskFiles(tmp_path / "finished"))
    updates.keep(task, "mark", update)
    assert updates.of(task, lambda: "mark") is not None
    (tmp_path / "finished" / "j.safetensors").write_bytes(b"half")
    assert updates.of(task, lambda: "mark") is None
    updates.keep(task, "mark", update)
    assert updates.of(task, lambda: "another mark") is None
    assert updates.of(task, lambda: "mark") is None  # nobody waits for it


def test_another_task_under_the_same_id_is_trained_and_has_another_noise(tmp_path: Path) -> None:
    """A controller that lies, or was restored from a backup, could take the same noise away again."""
    trainer = trainer_of(tmp_path, LINEAR)
    first, _, task = do(trainer, named("noise"))
    plain, _, _ = do(trainer_of(tmp_path, LINEAR))
    other, _, again = do(trainer, named("noise"), epochs=2)  # before the receipt of the first has arrived
    longer, _, _ = do(trainer_of(tmp_path, LINEAR), epochs=2)
    assert task.id == again.id
    assert not np.allclose(first["weight"] - plain["weight"], other["weight"] - longer["weight"])


def test_only_the_last_finished_updates_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "KEPT", 2)
    _, update, task = do(trainer_of(tmp_path, LINEAR), named("noise"))
    updates = FinishedUpdates(DiskFiles(tmp_path / "updates"))
    for number, job in enumerate("abc"):
        updates.keep(task.model_copy(update={"job": JobId(job)}), "mark", update)
        os.utime(tmp_path / "updates" / f"{job}.safetensors", (number, number))
    assert sorted(path.stem for path in (tmp_path / "updates").iterdir()) == ["b", "c"]


def test_an_update_with_secret_randomness_is_not_sent_if_it_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "finished").write_text("in the way")
    with pytest.raises(
        StoreFailed, match="has secret randomness in it and must not be sent before it is written"
    ):
        do(trainer_of(tmp_path, LINEAR), named("noise"))


def test_noise_differs_from_site_to_site_and_from_task_to_task(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here, _, _ = do(trainer_of(tmp_path, LINEAR), named("noise"))
    there, _, _ = do(trainer_of(tmp_path / "other", LINEAR), named("noise"))
    assert not np.array_equal(here["weight"], there["weight"])
