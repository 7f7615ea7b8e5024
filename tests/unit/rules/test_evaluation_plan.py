"""The point `evaluate`: a plan says who measures which version, and what the findings say together."""

import json

from hansa.common.values.tasks import Evaluate
from hansa.controller.values.snapshots import Snapshot
from tests.unit.engine.evaluated_updates import Turns
from tests.unit.engine.play import Play, endings, sent


def playing(**fields: object) -> Play:
    play = Play(**{"pace": {"rounds": 4}, "evaluate": {"kind": "one-by-one"}, **fields})
    play.join("a", "b", role="evaluator")
    play.training("a", "b")
    return play


def asked(play: Play) -> list[str]:
    """Let the round be merged and return whose findings are wanted."""
    play.effects.clear()
    play.round()
    return [task.site for task in sent(play.effects) if isinstance(task.work, Evaluate)]


def test_a_plan_names_the_evaluators_and_its_memory_survives_a_crash() -> None:
    play = playing()
    assert asked(play) == ["a"]
    play.report(play.tasks(Evaluate)["a"])
    play.save()
    assert asked(play) == ["b"]
    assert play.machine.memories["evaluate"] == Turns(seen={"a": 1, "b": 1})
    again = play.again()
    assert again.memories == play.machine.memories
    play.report(play.tasks(Evaluate)["b"])
    assert asked(play) == ["a"]


def test_metrics_are_what_the_plan_makes_of_the_findings() -> None:
    play = playing()
    asked(play)
    play.report(play.tasks(Evaluate)["a"], loss=0.25)
    assert play.machine.state.history[1].metrics == {"best": 0.25}


def test_a_plan_that_names_no_evaluator_holds_nothing_up() -> None:
    play = Play(pace={"rounds": 1}, evaluate={"kind": "one-by-one"})
    play.training("a", "b")
    play.round()
    assert endings(play.effects) == [("completed", "the round is done")]


def test_a_snapshot_of_a_controller_that_did_not_know_the_point_can_be_taken_up() -> None:
    play = playing(evaluate={"every": 1})
    play.round()
    play.save()
    held = json.loads(play.saved.state)
    del held["memories"]["evaluate"]
    play.saved = Snapshot(play.saved.sequence, json.dumps(held), play.saved.chapters)
    assert play.again().memories == play.machine.memories


def test_the_last_version_is_asked_for_even_of_an_evaluator_that_is_behind() -> None:
    play = Play(pace={"rounds": 4})
    play.join("a", role="evaluator")
    play.training("a", "b")
    assert [asked(play) for _ in range(4)] == [["a"], [], [], ["a"]]


def test_the_last_version_is_evaluated_by_all_whomever_a_plan_that_samples_names() -> None:
    play = playing(pace={"rounds": 2})
    assert asked(play) == ["a"]
    play.report(play.tasks(Evaluate)["a"], loss=0.25)
    first = play.machine.state.history[1]
    assert (first.examples, first.examples_total, first.covered) == (10, None, False)
    assert first.unevaluated == {"b": "not asked"}
    assert asked(play) == ["a", "b"]
    for task in list(play.tasks(Evaluate).values()):
        play.report(task, loss=0.5)
    last = play.machine.state.history[2]
    assert (last.metrics, last.examples, last.examples_total, last.covered) == ({"best": 0.5}, 20, 20, True)
    assert play.machine.state.covered == 2


def test_what_a_plan_that_samples_finds_counts_if_the_job_says_that_so_few_examples_are_enough() -> None:
    play = playing(evaluate={"kind": "one-by-one", "min_coverage": 0.5})
    asked(play)
    play.report(play.tasks(Evaluate)["a"])
    assert play.machine.state.history[1].covered, (
        "b, which has not reported yet, is taken to have as many as a"
    )
    asked(play)
    play.report(play.tasks(Evaluate)["b"], n=30)
    second = play.machine.state.history[2]
    assert (second.examples, second.examples_total, second.covered) == (30, 40, True)
    asked(play)
    play.report(play.tasks(Evaluate)["a"])
    third = play.machine.state.history[3]
    assert (third.examples, third.examples_total, third.covered) == (10, 40, False)
    assert play.machine.state.covered == 2
