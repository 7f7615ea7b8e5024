"""Jobs with a reference: version 0 is compared while training begins, later versions when they are merged."""

import math
from typing import Any

from hansa.common.values.ids import ModelKey
from hansa.common.values.tasks import Init, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import StartOrder
from hansa.controller.engine.orders import Compare, Compared, Merged
from tests.unit.engine.play import Play, dropped, endings, merges, stale, started

DIGEST = "ab" * 32
FIRST = Compare(ModelKey("j1/u1"), ModelKey("j1/reference"))


def begun(**fields: Any) -> Play:
    play = Play(reference=DIGEST, **fields)
    play.join("a", "b")
    effects = play.update(play.tasks(Init)["a"])
    assert list(started(effects, Compare).values()) == [FIRST]
    assert set(play.tasks(Train)) == {"a", "b"}  # training does not wait for the comparison
    return play


def replayed(play: Play) -> bool:
    """Whether a replay of the journal, or a snapshot, leads to the same job."""
    from_events = play.again().state
    play.save()
    return from_events == play.again().state == play.machine.state


def test_the_distance_of_version_0_arrives_while_training_begins() -> None:
    play = begun()
    assert play.compared() == []
    assert [record.distance for record in play.machine.state.history] == [0.5]
    stale(play, play.compared)
    assert replayed(play)


def test_version_0_stays_in_the_store_until_it_is_compared() -> None:
    play = begun(pace={"rounds": 3})
    play.round()
    assert FIRST.model in play.machine.state.models
    assert StartOrder(1, FIRST) in play.machine.resume()
    assert dropped(play.compared()) == {FIRST.model}
    assert "j1/reference" in play.machine.state.models
    assert replayed(play)


def test_a_job_does_not_end_before_version_0_is_compared_and_drops_its_reference_then() -> None:
    play = begun(pace={"rounds": 1})
    play.round()
    assert play.machine.state.phase == "closing"
    effects = play.compared(math.inf)
    assert endings(effects)[0][0] == "completed"
    assert "j1/reference" in dropped(effects)
    assert play.machine.state.history[0].distance is None  # JSON does not know infinity
    assert play.machine.state.reference is None
    assert replayed(play)


def test_a_reference_of_another_model_ends_the_job() -> None:
    play = begun()
    effects = play.compared(trouble="reference: it does not fit the job's model: missing bias")
    assert endings(effects) == [("failed", "reference: it does not fit the job's model: missing bias")]
    assert replayed(play)


def test_a_job_without_a_reference_compares_nothing() -> None:
    play = Play()
    play.join("a", "b")
    effects = play.update(play.tasks(Init)["a"])
    assert not started(effects, Compare)
    stale(play, play.compared)
    assert play.machine.state.models == {play.machine.state.current}


def test_a_merge_brings_its_distance() -> None:
    play = begun(pace={"rounds": 2})
    effects = [e for task in play.tasks(Train).values() for e in play.update(task)]
    assert [merge.reference for merge in merges(effects)] == ["j1/reference"]
    play.merged(distance=0.25)
    assert play.machine.state.history[1].distance == 0.25
    assert replayed(play)


def test_the_journal_stores_distances_exactly_and_accepts_results_without_one() -> None:
    for distance in (0.1 + 0.2, math.inf):
        for result in (Merged(digest="", distance=distance), Compared(distance=distance)):
            event = ev.OrderDone(at=1, order=1, result=result)
            assert ev.EVENT.validate_json(event.model_dump_json()) == event
    bare = '{"kind": "done", "at": 1, "order": 1, "result": {"kind": "merge", "digest": ""}}'
    assert ev.EVENT.validate_json(bare) == ev.OrderDone(at=1, order=1, result=Merged(digest=""))
