"""What a learner and the process that trains for it write for each other, and command lines of launchers."""

from pathlib import Path

import numpy as np
import pytest

from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import TaskId
from hansa.common.values.results import Failure, Progress, UpdateFacts
from hansa.learner.launching.parcel import Parcel
from hansa.learner.launching.template import checked
from hansa.learner.memory.finished import Update
from hansa.learner.training.memory import Memory, PlainKnown
from tests.support import filled, sealed, small_spec


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("nice", "must have {command} once"),
        ("sh -c 'exec {command}'", "must not be quoted"),
        ("nice {command} {command}", "must have {command} once"),
        ("nice '{command}", "No closing quotation"),
        ("no-such-program {command}", "there is no program no-such-program"),
    ],
)
def test_a_launcher_that_cannot_work_is_refused(template: str, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked(template)
    assert why in str(caught.value)


def test_a_result_comes_back_with_its_memory_bit_for_bit(tmp_path: Path) -> None:
    spec = small_spec()
    manifest, payload = sealed(spec, filled(spec, 0.1))
    facts = UpdateFacts(n_train=3, n_used=3, steps=2, epochs=1, seconds=0.5, loss=float("nan"))
    before: PlainKnown = (
        {"w": {"step": np.array(3.0, np.float32), "momentum_buffer": None}},
        {"mean": np.ones(2)},
    )
    after: PlainKnown = ({"w": {"step": np.array(5.0, np.float32), "lr": 0.1}}, {})
    parcel = Parcel(tmp_path / "task")
    assert parcel.update() is None
    parcel.put_update(Update(manifest, payload, facts), Memory(before, after, TaskId("j1-1")))
    found = parcel.update()
    assert found is not None
    update, memory = found
    assert update.manifest == manifest
    assert np.array_equal(update.payload, payload)
    assert update.facts.model_dump_json() == facts.model_dump_json()
    assert memory is not None
    assert memory.task == "j1-1"
    assert memory.before[0]["w"]["momentum_buffer"] is None
    assert memory.before[0]["w"]["step"].dtype == np.float32
    assert memory.after[0]["w"] == {"step": np.array(5.0, np.float32), "lr": 0.1}
    assert np.array_equal(memory.before[1]["mean"], np.ones(2))


def test_small_messages_are_there_or_not(tmp_path: Path) -> None:
    parcel = Parcel(tmp_path / "task")
    assert (parcel.pulse(), parcel.progress(), parcel.failure()) == (None, None, None)
    parcel.put_pulse(7)
    progress = Progress(task=TaskId("j1-1"), epoch=1, epochs=2, steps=3, loss=float("nan"))
    parcel.put_progress(progress)
    failure = Failure(reason="no", final=True)
    parcel.put_failure(failure)
    assert parcel.pulse() == 7
    assert str(parcel.progress()) == str(progress)
    assert parcel.failure() == failure
    parcel.delete()
    assert not parcel.is_there
    with pytest.raises(InvalidInput, match="no task is waiting there"):
        parcel.settings()
