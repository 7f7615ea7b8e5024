"""A sample of evaluators stands for all of them (`evaluate.sites`); the last version is evaluated by all."""

from typing import Any

import pytest

from hansa.common.values.history import Version
from hansa.common.values.tasks import Evaluate, Task
from tests.unit.engine.play import Play, endings
from tests.unit.engine.travel import FIRST, SITES, Travel

EVALUATORS = tuple(f"s{number:02}" for number in range(20))


def under_way(evaluate: dict[str, Any] | None = None, **fields: Any) -> Play:
    """Return a job of a and b whose versions are evaluated by 4 of 20 sites."""
    play = Play(**{"pace": {"rounds": 4}, "evaluate": {"sites": 4} | (evaluate or {}), **fields})
    play.join(*EVALUATORS, role="evaluator")
    play.training("a", "b")
    return play


def asked(play: Play) -> dict[str, Task]:
    """Let a round be merged; return the evaluations that are asked for."""
    play.round()
    return play.tasks(Evaluate)


def newest(play: Play) -> Version:
    return play.machine.state.history[-1]


def test_every_version_has_a_sample_of_its_own_that_depends_on_the_seed_alone() -> None:
    def samples(seed: int) -> list[tuple[str, ...]]:
        play, drawn = under_way(seed=seed), []
        for _ in range(3):
            tasks = asked(play)
            drawn.append(tuple(sorted(tasks)))
            for task in tasks.values():
                play.report(task)
        return drawn

    drawn = samples(7)
    assert [len(set(sample)) for sample in drawn] == [4, 4, 4]
    assert len(set(drawn)) == 3
    assert samples(7) == drawn
    assert samples(8) != drawn


def test_coverage_refers_to_the_sample() -> None:
    play = under_way()
    for number, task in enumerate(asked(play).values(), 1):
        assert not newest(play).covered
        play.report(task, n=10 * number)
    record = newest(play)
    assert (record.examples, record.examples_total, record.drawn) == (100, 100, 4)
    assert record.covered
    assert record.unevaluated == {}, "nobody is missing who was not asked"
    assert play.again().state.model_dump() == play.machine.state.model_dump()


@pytest.mark.parametrize(("least", "covered"), [(1.0, False), (0.7, True)])
def test_a_sample_counts_if_enough_of_it_has_reported(least: float, covered: bool) -> None:
    play = under_way({"min_coverage": least})
    failing, *others = asked(play).values()
    for task in others:
        play.report(task)
    play.fail(failing)
    assert newest(play).covered == covered
    assert list(newest(play).unevaluated) == [failing.site]
    assert newest(play).examples_total is None, "the one that failed has never said how many it has"


def test_a_site_that_is_drawn_while_it_still_evaluates_is_missing() -> None:
    play = under_way({"sites": len(EVALUATORS), "timeout": 5})
    late, *others = asked(play).values()
    for task in others:
        play.report(task)
    play.ring("evaluation")
    for task in asked(play).values():
        if task.id != late.id:
            play.report(task)
    assert newest(play).unevaluated == {late.site: "still evaluating version 1"}
    assert newest(play).drawn == len(EVALUATORS)
    assert not newest(play).covered


def test_a_target_may_be_reached_by_a_sample_and_the_last_version_is_evaluated_by_all() -> None:
    play = under_way(stop={"target": {"metric": "accuracy", "value": 0.9}})
    tasks = asked(play)
    for task in tasks.values():
        play.report(task, right=10)
    reason = "target reached: accuracy 1.0000 at version 1 on 40 of 40 (sample of 4 sites) examples"
    assert play.machine.state.reason == reason
    remaining = play.tasks(Evaluate)
    assert sorted({*remaining, *tasks}) == list(EVALUATORS)
    assert not {*remaining} & {*tasks}
    assert not newest(play).covered
    for task in remaining.values():
        play.report(task, right=5)
    record = newest(play)
    assert (record.drawn, record.examples, record.examples_total) == (None, 200, 200)
    assert record.metrics["accuracy"] == 0.6
    assert endings(play.effects) == [("completed", reason)]


def test_with_fewer_evaluators_than_are_to_be_drawn_all_are_asked() -> None:
    play = under_way({"sites": 50})
    assert sorted(asked(play)) == list(EVALUATORS)


def test_test_sites_are_drawn_apart_from_those_that_count() -> None:
    validation, test = EVALUATORS[:10], EVALUATORS[10:]
    play = under_way(sites={"min": 2, "validation": validation, "test": test})
    tasks = asked(play)
    assert [len({*tasks} & {*group}) for group in (validation, test)] == [4, 4]
    for site in validation:
        if site in tasks:
            play.report(tasks[site])
    assert newest(play).covered is False, "it still waits for test sites"
    for site in test:
        if site in tasks:
            play.report(tasks[site])
    record = newest(play)
    assert record.covered
    assert record.test is not None
    assert (record.drawn, record.test.drawn, record.test.examples_total) == (4, 4, 40)
    assert not record.unevaluated
    assert not record.test.unevaluated


def test_means_of_travelling_models_are_evaluated_by_samples_too() -> None:
    pace = {"kind": "redistribute", "rounds": 1, "hops": 4}
    play = Travel(lambda arrays, _: arrays, pace=pace, evaluate={"virtual": True, "sites": 2})
    play.join(*EVALUATORS, role="evaluator")
    play.run(*SITES, first=FIRST)
    hops = [hop for hop in newest(play).hops if hop.metrics]
    assert hops
    assert all(hop.drawn == 2 and len(hop.unevaluated) < 2 for hop in hops)  # one may be busy
    assert (hops[0].examples, hops[0].examples_total) == (20, 20)
