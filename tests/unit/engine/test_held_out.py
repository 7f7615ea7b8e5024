"""Held-out sites: they evaluate and never train, and those for testing decide nothing."""

from typing import Any

import pytest

from hansa.common.job.check import parse_job
from hansa.common.values.errors import InvalidJob
from hansa.common.values.history import Findings, Version
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.rulebook.compose import compose
from tests.unit.engine.play import Play, endings, job_spec, sent
from tests.unit.engine.travel import FIRST, SITES, Travel

APART = {"min": 2, "validation": ["v", "w"], "test": ["t", "u"]}


def under_way(evaluators: str = "abtuvw", **fields: Any) -> Play:
    """Return a job in its first round with learners a and b, two sites for validation and two for testing."""
    play = Play(**{"sites": APART, "pace": {"rounds": 3}, **fields})
    play.join(*evaluators, role="evaluator")
    play.training("a", "b")
    return play


def newest(play: Play) -> Version:
    return play.machine.state.history[-1]


def apart(play: Play) -> Findings:
    findings = newest(play).test
    assert findings is not None
    return findings


def test_models_are_evaluated_by_held_out_sites_alone_and_those_for_testing_are_counted_apart() -> None:
    play = under_way()
    play.round()
    tasks = play.tasks(Evaluate)
    assert sorted(tasks) == ["t", "u", "v", "w"]
    play.report(tasks["v"], right=9)
    play.report(tasks["t"], right=1, n=30)
    assert play.machine.metrics(newest(play))["accuracy"] == 0.9
    assert play.machine.metrics_of_test_sites(newest(play))["accuracy"] == 1 / 30
    play.report(tasks["w"], right=5)
    play.report(tasks["u"], right=2, n=10)
    record = newest(play)
    assert (record.metrics["accuracy"], record.examples, record.examples_total) == (0.7, 20, 20)
    assert (apart(play).metrics["accuracy"], apart(play).examples, apart(play).examples_total) == (
        3 / 40,
        40,
        40,
    )
    assert record.covered
    assert play.again().state.model_dump() == play.machine.state.model_dump()


def test_means_over_sites_are_those_of_each_kind_of_site() -> None:
    play = under_way(evaluate={"kind": "by-site"})
    play.round()
    for site, right, n in (("v", 9, 10), ("w", 10, 40), ("t", 1, 10), ("u", 3, 10)):
        play.report(play.tasks(Evaluate)[site], right=right, n=n)
    metrics = newest(play).metrics
    assert (metrics["accuracy"], metrics["accuracy_by_site"]) == (19 / 50, (0.9 + 0.25) / 2)
    assert apart(play).metrics["accuracy_by_site"] == pytest.approx(0.2)


@pytest.mark.parametrize(("validation", "test", "stops"), [(4, 10, False), (9, 0, True)])
def test_a_target_is_reached_on_the_sites_for_validation_alone(
    validation: int, test: int, stops: bool
) -> None:
    play = under_way(stop={"target": {"metric": "accuracy", "value": 0.8}})
    play.round()
    tasks = play.tasks(Evaluate)
    for site in "tuvw":
        play.report(tasks[site], right=test if site in "tu" else validation)
    assert (play.machine.state.phase == "ended") is stops
    assert play.machine.state.reason.startswith("target reached: accuracy 0.9") is stops


def test_a_version_counts_without_its_test_sites_which_are_named_with_the_reason() -> None:
    play = under_way()
    play.round()
    tasks = play.tasks(Evaluate)
    play.report(tasks["v"])
    play.report(tasks["t"])
    play.leave("u", role="evaluator")
    play.report(tasks["w"])
    record = newest(play)
    assert (record.covered, record.unevaluated) == (True, {})
    assert apart(play).unevaluated == {"u": "the site left"}
    assert (apart(play).examples, apart(play).examples_total) == (10, None)


def test_a_version_does_not_count_without_a_site_for_validation() -> None:
    play = under_way()
    play.round()
    tasks = play.tasks(Evaluate)
    for site in "tuv":
        play.report(tasks[site])
    play.ring("evaluation")
    record = newest(play)
    assert (record.covered, list(record.unevaluated)) == (False, ["w"])
    assert apart(play).unevaluated == {}


def test_the_last_version_waits_for_test_sites_too() -> None:
    play = under_way(pace={"rounds": 1})
    play.round()
    tasks = play.tasks(Evaluate)
    for site in "tvw":
        assert endings(play.report(tasks[site])) == []
    ((status, _),) = endings(play.report(tasks["u"]))
    assert status == "completed"
    assert apart(play).examples == 20


def test_a_job_that_ends_names_the_test_sites_that_had_not_reported() -> None:
    play = under_way()
    play.round()
    play.report(play.tasks(Evaluate)["v"])
    play.cancel()
    assert list(newest(play).unevaluated) == ["w"]
    assert list(apart(play).unevaluated) == ["t", "u"]


def test_a_test_site_that_counts_other_classes_than_the_others_is_named_among_them() -> None:
    play = under_way(evaluators="tuxvw", sites={**APART, "test": ["t", "u", "x"]})
    play.round()
    tasks = play.tasks(Evaluate)
    odd = Evaluation(n=10, loss_sum=1.0, confusion=((10, 0, 0), (0, 0, 0), (0, 0, 0)))
    play.do(ev.Reported(at=play.now, task=tasks["x"].id, site=SiteName("x"), evaluation=odd))
    for site in "tuvw":
        play.report(tasks[site])
    assert newest(play).unevaluated == {}
    assert apart(play).unevaluated == {"x": "its matrix has 3 classes, most have 2"}
    assert (apart(play).examples, apart(play).metrics["accuracy"]) == (20, 0.5)


def test_with_test_sites_alone_all_other_evaluators_count() -> None:
    play = under_way(evaluators="abt", sites={"min": 2, "test": ["t"]})
    play.round()
    tasks = play.tasks(Evaluate)
    assert sorted(tasks) == ["a", "b", "t"]
    for site, right in (("a", 8), ("b", 6), ("t", 1)):
        play.report(tasks[site], right=right)
    assert (newest(play).metrics["accuracy"], newest(play).examples) == (0.7, 20)
    assert apart(play).metrics["accuracy"] == 0.1


def test_updates_are_scored_by_sites_that_train_and_never_by_held_out_ones() -> None:
    play = under_way(rule="sync-dvw")
    own = Evaluation(n=10, loss_sum=1.0, confusion=((8, 2), (0, 0)))
    scoring: list[Task] = []
    for task in play.tasks(Train).values():
        scoring += [each for each in sent(play.update(task, own=own)) if isinstance(each.work, Evaluate)]
    assert [task.site for task in scoring] == ["b", "a"]
    for task in scoring:
        play.report(task, right=6)
    play.merged()
    assert newest(play).contributions == {"a": 0.7, "b": 0.7}
    assert {score.coverage for score in newest(play).scores.values()} == {1.0}
    assert sorted(task.site for task in play.evaluations()) == ["t", "u", "v", "w"]


def test_means_between_merges_are_evaluated_by_held_out_sites_and_counted_apart() -> None:
    pace = {"kind": "redistribute", "rounds": 1, "hops": 3}
    sites = {"min": len(SITES), "validation": ["v"], "test": ["t"]}
    play = Travel(lambda arrays, _: arrays, pace=pace, sites=sites, evaluate={"virtual": True})
    play.join("t", "v", role="evaluator")
    play.run(*SITES, first=FIRST)
    hops = [hop for hop in newest(play).hops if hop.metrics]
    assert hops
    assert [(hop.examples, hop.test.examples if hop.test else 0) for hop in hops] == [(10, 10)] * len(hops)


def test_the_learner_of_a_held_out_site_is_not_invited() -> None:
    sites = job_spec(sites={**APART, "names": ["a", "b", "v"]}).sites
    assert [site for site in "abtuvwx" if sites.trains(site)] == ["a", "b"]
    assert [site for site in "abtuvwx" if sites.evaluates(site)] == ["a", "b", "t", "u", "v", "w"]
    assert [site for site in "abtx" if job_spec(sites=APART).sites.trains(site)] == ["a", "b", "x"]


def test_a_held_out_site_is_not_missed_as_a_learner() -> None:
    play = Play(sites={**APART, "wait": 3})
    play.join("a", "v", role="evaluator")
    ((_, reason),) = endings(play.ring("gather"))
    assert (
        reason == "only 0 of the 2 sites needed were connected after 3 s; with an evaluator but no learner: a"
    )


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ({"validation": ["a"], "test": ["b", "a"]}, "site a is in `validation` and in `test`; name it once"),
        ({"names": ["a", "b"], "test": ["b"], "min": 2}, "1 different names are too few for `min`"),
    ],
)
def test_sites_that_cannot_be_held_out_are_refused(sites: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        parse_job({"app": "app.py:app", "sites": sites})


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"rule": "ditto"}, r"local: ditto: sites that are held out .* have no models of their own"),
        ({"rule": "fedbn"}, r"layers: personal: sites that are held out"),
        ({"rule": "fedrep"}, r"layers: personal: sites that are held out"),
        ({"rule": "fedper"}, r"layers: personal: sites that are held out .* have no tensors of their own"),
        (
            {"layers": {"kind": "trainable", "personal": ["head.*"]}},
            r"layers: trainable: sites that are held out .* have no tensors of their own",
        ),
    ],
)
@pytest.mark.parametrize("held_out", [{"sites": {"test": ["t"]}}, {"data": {"source": "x", "holdout": {}}}])
def test_rules_in_which_sites_have_models_of_their_own_are_refused(
    job: dict[str, Any], message: str, held_out: dict[str, Any]
) -> None:
    compose(job_spec(**job))
    with pytest.raises(InvalidJob, match=message):
        compose(job_spec(**{**job, **held_out}))
