"""The engine of a job with a reference: version 0 is measured while training begins, later versions when merged."""

import math
from typing import Any

from hansa.common.values.ids import ModelKey
from hansa.common.values.tasks import Init, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, StartMeasurement, StartMerge
from tests.unit.engine.play import Play, dropped, endings, stale

DIGEST = "ab" * 32


def begun(**fields: Any) -> Play:
    play = Play(reference=DIGEST, **fields)
    play.join("a", "b")
    effects = play.update(play.tasks(Init)["a"])
    assert StartMeasurement(ModelKey("j1/u1")) in effects
    assert set(play.tasks(Train)) == {"a", "b"}  # which does not wait for it
    return play


def measured(play: Play, distance: float | None = 0.5, trouble: str = "") -> list[Effect]:
    return play.do(ev.Measured(at=play.now, distance=distance, trouble=trouble))


def replayed(play: Play) -> bool:
    """Whether a replay of the journal, or a snapshot, leads to the same job."""
    from_events = play.again().state
    play.save()
    return from_events == play.again().state == play.machine.state


def test_the_distance_of_version_0_comes_while_training_begins() -> None:
    play = begun()
    assert measured(play) == []
    assert [record.distance for record in play.machine.state.history] == [0.5]
    stale(play, lambda: measured(play))
    assert replayed(play)


def test_version_0_stays_in_the_store_until_it_is_measured() -> None:
    play = begun(pace={"rounds": 3})
    first = ModelKey("j1/u1")
    play.round()
    assert first in play.machine.state.models
    assert StartMeasurement(first) in play.machine.resume()
    assert dropped(measured(play)) == {first}
    assert "j1/reference" in play.machine.state.models
    assert replayed(play)


def test_a_job_does_not_end_before_version_0_is_measured_and_drops_its_reference_then() -> None:
    play = begun(pace={"rounds": 1})
    play.round()
    assert play.machine.state.phase == "closing"
    effects = measured(play, math.inf)
    assert endings(effects)[0][0] == "completed"
    assert "j1/reference" in dropped(effects)
    assert play.machine.state.history[0].distance == math.inf
    assert play.machine.state.reference is None
    assert replayed(play)


def test_a_reference_of_another_model_ends_the_job() -> None:
    play = begun()
    effects = measured(play, None, "reference: it does not fit the job's model: missing bias")
    assert endings(effects) == [("failed", "reference: it does not fit the job's model: missing bias")]
    assert replayed(play)


def test_a_job_without_a_reference_measures_nothing() -> None:
    play = Play()
    play.join("a", "b")
    effects = play.update(play.tasks(Init)["a"])
    assert not any(isinstance(effect, StartMeasurement) for effect in effects)
    stale(play, lambda: measured(play))
    assert play.machine.state.models == {play.machine.state.current}


def test_a_merge_brings_its_distance() -> None:
    play = begun(pace={"rounds": 2})
    effects = [e for task in play.tasks(Train).values() for e in play.update(task)]
    assert any(isinstance(effect, StartMerge) for effect in effects)
    play.do(ev.Merged(at=play.now, version=1, digest="cd" * 32, distance=0.25, bytes_up=1, bytes_down=1))
    assert play.machine.state.history[1].distance == 0.25
    assert replayed(play)


def test_the_journal_keeps_distances_as_they_are_and_knows_events_that_have_none() -> None:
    for distance in (None, 0.1 + 0.2, math.inf):
        for event in (
            ev.Merged(at=1, version=1, digest="", distance=distance, bytes_up=0, bytes_down=0),
            ev.Measured(at=1, distance=distance),
        ):
            assert ev.EVENT.validate_json(event.model_dump_json()) == event
    older = '{"kind": "merged", "at": 1, "version": 1, "digest": "", "bytes_up": 0, "bytes_down": 0}'
    assert ev.EVENT.validate_json(older) == ev.Merged(at=1, version=1, digest="", bytes_up=0, bytes_down=0)
