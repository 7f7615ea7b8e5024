"""Models that travel in part, in the engine: what tasks carry, sites that do not fit, and warnings."""

from typing import Any

import pytest

from hansa.common.values.ids import SiteName
from hansa.common.values.results import Anatomy, Evaluation, UpdateFacts
from hansa.common.values.settings.training import Travel
from hansa.common.values.tasks import Evaluate, Init, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.handlers.first_model import NOTHING_AVERAGED
from hansa.controller.plugin.outline import Outline
from tests.unit.engine.play import Play, endings

TRAINABLE = {"layers": {"kind": "trainable"}}


def begun(play: Play, *sites: str, anatomy: Anatomy | None = None, averaged: bool = True) -> dict[str, Task]:
    """Bring a job to its first round; version 0 comes with what only its site knows."""
    play.join(*sites)
    (init,) = play.tasks(Init).values()
    words = {"n_train": 0, "n_used": 0, "steps": 0, "epochs": 0, "seconds": 0}
    facts = UpdateFacts(**words, anatomy=anatomy, backbone="b" * 64)
    place = {"task": init.id, "site": init.site, "digest": "d", "tensors": 2}
    play.do(ev.UpdateArrived(at=play.now, facts=facts, averaged=averaged, **place))
    return play.tasks(Train)


def test_tasks_carry_what_travels_and_the_digest_of_the_rest() -> None:
    play = Play(rule="fedrep", layers={"match": ["head.*"]}, pace={"rounds": 2})
    play.join("e", role="evaluator")
    tasks = begun(play, "a", "b")
    travel = Travel(kind="personal", match=("head.*",), last=1)
    assert [(task.travel, task.backbone) for task in tasks.values()] == [(travel, "b" * 64)] * 2
    work = tasks["a"].work
    assert isinstance(work, Train)
    assert (work.personal_epochs, work.epochs, work.after) == (10, 1, "")
    first = tasks["a"].id
    play.round()
    (evaluation,) = play.tasks(Evaluate).values()
    assert (evaluation.travel, evaluation.backbone) == (travel, "b" * 64)
    again = play.tasks(Train)["a"].work
    assert isinstance(again, Train)
    assert again.after == first
    report = Evaluation(n=4, loss_sum=1.0, personal=first)
    play.do(ev.Reported(at=play.now, task=evaluation.id, site=SiteName("e"), evaluation=report))
    assert play.machine.state.history[1].personal == {"e": first}
    assert play.again().state == play.machine.state


def test_a_site_that_does_not_fit_is_left_out_and_the_others_go_on() -> None:
    play = Play(**TRAINABLE, pace={"rounds": 3})
    tasks = begun(play, "a", "b", "c")
    play.fail(tasks["c"], "digest x here, y in the job", unfit=True)
    assert "c" not in play.machine.state.learners
    assert play.machine.warnings == ["learner c was left out: digest x here, y in the job"]
    play.update(tasks["a"])
    play.update(tasks["b"])
    play.merged()
    assert set(play.machine.state.history[1].contributions) == {"a", "b"}
    assert set(play.tasks(Train)) == {"a", "b"}
    assert not play.machine.outdated_indices()
    play.join("c")  # it was restarted, perhaps with the right weights
    assert play.machine.warnings == []
    assert play.again().state == play.machine.state


def test_a_job_with_too_few_sites_left_waits_for_others() -> None:
    play = Play(**TRAINABLE, pace={"rounds": 3})
    tasks = begun(play, "a", "b")
    play.fail(tasks["b"], "another backbone", unfit=True)
    play.update(tasks["a"])
    if play.machine.state.plan:
        play.merged()
    assert (play.machine.state.phase, play.machine.state.reason) == ("gathering", "waiting for 2 sites")
    assert endings(play.ring("gather"))[0][0] == "failed"


def test_an_evaluator_that_does_not_fit_is_left_out() -> None:
    play = Play(**TRAINABLE, pace={"rounds": 2})
    play.join("e", role="evaluator")
    begun(play, "a", "b")
    play.round()
    (evaluation,) = play.tasks(Evaluate).values()
    play.fail(evaluation, "another backbone", unfit=True)
    assert "e" not in play.machine.state.evaluators
    assert play.machine.warnings == ["evaluator e was left out: another backbone"]
    assert play.machine.state.history[1].unevaluated == {"e": "the site left"}


def test_a_model_that_is_mostly_frozen_and_travels_whole_is_warned_of() -> None:
    frozen = Anatomy(parameters=1000, frozen_parameters=900)
    play = Play()
    begun(play, "a", "b", anatomy=frozen)
    (warning,) = play.machine.warnings
    assert "never trains 900 of the model's 1,000 parameters" in warning
    assert "`layers: {kind: trainable}`" in warning
    personal = Play(layers={"kind": "personal", "last": 1})
    begun(personal, "a", "b", anatomy=frozen)
    (warning,) = personal.machine.warnings
    assert "`layers: {kind: trainable, personal: […]}`" in warning
    for words, anatomy in ((TRAINABLE, frozen), ({}, Anatomy(parameters=1000, frozen_parameters=500))):
        play = Play(**words)
        begun(play, "a", "b", anatomy=anatomy)
        assert play.machine.warnings == []


def test_a_model_of_which_nothing_is_averaged_is_warned_of() -> None:
    play = Play()
    begun(play, "a", "b", averaged=False)
    assert play.machine.warnings == [NOTHING_AVERAGED]
    given = Play()
    given.do(ev.ModelGiven(at=0, digest="given", averaged=False))
    assert given.machine.warnings == [NOTHING_AVERAGED]


def test_a_first_model_from_a_file_is_described_by_a_site_whose_backbone_counts() -> None:
    play = Play(**TRAINABLE)
    play.give()
    play.join("a", "b")
    (init,) = play.tasks(Init).values()
    outline = Outline(layers=(), tensors=())
    place = {"task": init.id, "site": init.site, "digest": "d"}
    play.do(ev.ModelDescribed(at=0, **place, outline=outline, backbone="c" * 64))
    assert {task.backbone for task in play.tasks(Train).values()} == {"c" * 64}


@pytest.mark.parametrize(
    ("words", "in_place"),
    [({"rule": "fedper"}, "initial values"), ({"rule": "ditto"}, "the community model")],
)
def test_an_evaluator_without_what_its_learner_keeps_is_warned_of(
    words: dict[str, Any], in_place: str
) -> None:
    play = Play(**words, pace={"rounds": 4})
    play.join("a", role="evaluator")
    begun(play, "a", "b")

    def evaluated(personal: str = "") -> list[str]:
        play.round()
        (task,) = play.tasks(Evaluate).values()
        own = Evaluation(n=5, loss_sum=1.0) if words["rule"] == "ditto" else None
        report = Evaluation(n=5, loss_sum=1.0, personal=personal, own_model=own)
        play.do(ev.Reported(at=play.now, task=task.id, site=task.site, evaluation=report))
        return play.machine.warnings

    assert evaluated() == [], "the first receipt may still be on its way"
    (warning,) = evaluated()
    assert f"use {in_place}, because" in warning
    assert "learner keeps: a; learner" in warning
    assert evaluated(personal="t5") == []
