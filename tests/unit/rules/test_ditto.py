"""Ditto at the controller: what tasks ask for, and the metrics of sites' own models (personal-models §5)."""

from typing import Any

import pytest

from hansa.common.job.spec import JobSpec
from hansa.common.methods.ditto import DITTO
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Train
from hansa.controller.engine import events as ev
from hansa.controller.evaluation.plans import BySite, Pooled
from hansa.controller.rulebook.compose import compose
from tests.unit.engine.play import Play, job_spec


def report(n: int, right: int, loss: float, own: tuple[int, float] | None = None) -> Evaluation:
    """Return a report on n examples, and on the site's own model."""
    own_model = report(n, *own) if own else None
    confusion = [[right, n - right], [0, 0]]
    return Evaluation(n=n, loss_sum=loss * n, confusion=confusion, own_model=own_model)


def plugin_of(play: Play) -> dict[str, Any]:
    work = play.tasks(Train)["a"].work
    assert isinstance(work, Train)
    (plugin,) = work.plugins
    assert plugin.name == DITTO
    return dict(plugin.args)


def test_tasks_ask_for_the_sites_own_models() -> None:
    play = Play(rule="ditto", local={"lam": 0.5}, train={"epochs": 4}, pace={"rounds": 2})
    play.join("e", role="evaluator")
    play.training("a", "b")
    assert plugin_of(play) == {"lam": 0.5, "epochs": 4}
    play.round()
    (evaluation,) = play.tasks(Evaluate).values()
    assert isinstance(evaluation.work, Evaluate)
    assert evaluation.work.own_model
    shorter = Play(rule="ditto", local={"epochs": 1}, train={"epochs": 4})
    shorter.training("a", "b")
    assert plugin_of(shorter)["epochs"] == 1


def test_other_rules_do_not_ask_for_them() -> None:
    play = Play(pace={"rounds": 2})
    play.join("e", role="evaluator")
    play.training("a", "b")
    play.round()
    (evaluation,) = play.tasks(Evaluate).values()
    assert isinstance(evaluation.work, Evaluate)
    assert not evaluation.work.own_model


def test_metrics_of_own_models_are_pooled_by_examples() -> None:
    reports = {SiteName("a"): report(10, 5, 2.0, (9, 0.5)), SiteName("b"): report(30, 15, 1.0, (30, 0.25))}
    metrics = Pooled().combine(reports)
    assert metrics == pytest.approx(
        {
            "loss": 1.25,
            "accuracy": 0.5,
            "weighted_f1": 2 / 3,
            "loss_personal": 0.3125,
            "accuracy_personal": 39 / 40,
            "weighted_f1_personal": 78 / 79,
        }
    )
    by_site = BySite().combine(reports)
    assert by_site["accuracy_personal"] == metrics["accuracy_personal"]
    assert by_site["accuracy_personal_by_site"] == pytest.approx(0.95)
    assert set(Pooled().combine({SiteName("a"): report(10, 5, 2.0)})) == {"loss", "accuracy", "weighted_f1"}


@pytest.mark.parametrize(
    ("metric", "value", "reached"),
    [("accuracy_personal", 0.8, True), ("accuracy_personal", 0.95, False), ("loss_personal", 0.6, True)],
)
def test_a_target_may_be_one_of_them(metric: str, value: float, reached: bool) -> None:
    target = {"target": {"metric": metric, "value": value}}
    play = Play(rule="ditto", pace={"rounds": 9}, stop=target)
    play.join("e", role="evaluator")
    play.training("a", "b")
    play.round()
    (evaluation,) = play.tasks(Evaluate).values()
    play.do(
        ev.Reported(
            at=play.now, task=evaluation.id, site=SiteName("e"), evaluation=report(10, 5, 2.0, (9, 0.5))
        )
    )
    assert (f"target reached: {metric}" in play.machine.state.reason) is reached


def test_a_pull_that_overshoots_is_a_warning() -> None:
    train = {"optimizer": {"lr": 0.5}}
    spec = JobSpec.model_validate(job_spec(rule="ditto", local={"lam": 4.0}, train=train).model_dump())
    assert [at for at, _ in compose(spec).warnings(spec)] == [("local", "lam")]
    adam = job_spec(rule="ditto", local={"lam": 4.0}, train={"optimizer": {"kind": "adam", "lr": 0.5}})
    assert not compose(adam).warnings(adam)


def test_an_own_model_is_evaluated_once_on_the_same_examples() -> None:
    with pytest.raises(ValueError, match="once, on the same 10 examples"):
        Evaluation(n=10, loss_sum=1.0, own_model=Evaluation(n=9, loss_sum=1.0))
    deep = Evaluation(n=1, loss_sum=1.0, own_model=Evaluation(n=1, loss_sum=1.0))
    with pytest.raises(ValueError, match="once, on the same 1 examples"):
        Evaluation(n=1, loss_sum=1.0, own_model=deep)
