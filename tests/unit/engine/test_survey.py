"""The survey: which sites are asked, what follows, and what happens when sites join, leave and fail."""

import pytest

from hansa.common.job.check import parse_job
from hansa.common.values.errors import InvalidJob, Stale
from hansa.common.values.settings.training import Standard
from hansa.common.values.tasks import Init, Survey, Train
from hansa.controller.engine import events as ev
from tests.unit.engine.play import Play, endings, machine_of, sent

GLOBAL = {"standardise": "global", "columns": 1}


def test_sites_are_asked_before_anything_else_and_all_tasks_carry_the_pooled_standard() -> None:
    play = Play(survey=GLOBAL, pace={"rounds": 1})
    play.join("a", role="evaluator")
    play.join("a")
    asked = sent(play.join("b"))
    assert [(task.site, task.work) for task in asked] == [
        (site, Survey(moments=True, columns=1, classes=False)) for site in ("a", "b")
    ]
    assert all(task.standard is None for task in asked)
    assert play.tell(asked[1], n=30, mean=5.0) == []
    (init,) = sent(play.tell(asked[0], n=10, mean=1.0))
    assert (init.work, init.standard) == (Init(), None)
    standard = Standard(kind="global", mean=(4.0,), deviation=(3.0**0.5,))
    trained = sent(play.update(init))
    assert [task.standard for task in trained] == [standard, standard]
    for task in trained:
        play.update(task)
    (evaluation,) = sent(play.merged())
    assert evaluation.standard == standard


def test_the_order_in_which_sites_answer_makes_no_difference() -> None:
    standards = []
    for order in (("a", "b", "c"), ("c", "a", "b")):
        play = Play(survey=GLOBAL, sites={"min": 3})
        play.join("a", "b", "c")
        asked = play.tasks(Survey)
        for site in order:
            play.tell(asked[site], n=7, mean={"a": 0.1, "b": 1e9, "c": -3.3}[site])
        standards.append(play.machine.state.standard)
    assert standards[0] is not None
    assert standards[0] == standards[1]


def test_classes_alone_can_be_asked_for_and_change_no_features() -> None:
    play = Play(survey={"classes": True})
    play.join("a", "b")
    asked = play.tasks(Survey)
    assert asked["a"].work == Survey(moments=False, columns=None, classes=True)
    play.tell(asked["a"], classes=(4, 6))
    play.tell(asked["b"], classes=(0, 10))
    play.update(play.tasks(Init)["a"])
    assert play.tasks(Train)["a"].standard is None
    assert play.machine.state.profiles[play.tasks(Train)["b"].site].classes == (0, 10)


def test_a_local_standard_needs_no_survey() -> None:
    play = Play(survey={"standardise": "local", "columns": 3})
    trained = play.training("a", "b")
    assert trained["a"].standard == Standard(kind="local", columns=3)


def test_a_site_that_joins_during_the_survey_is_asked_and_one_that_leaves_is_not_awaited() -> None:
    play = Play(survey=GLOBAL)
    play.join("a", "b")
    (late,) = sent(play.join("c"))
    play.tell(play.tasks(Survey)["a"])
    play.tell(late)
    assert play.machine.state.phase == "surveying"
    (init,) = sent(play.leave("b"))
    assert init.work == Init()
    assert set(play.machine.state.profiles) == {"a", "c"}
    with pytest.raises(Stale):
        play.tell(late)


def test_when_too_few_sites_are_left_the_job_waits_and_asks_only_those_that_have_not_answered() -> None:
    play = Play(survey=GLOBAL)
    play.join("a", "b")
    play.tell(play.tasks(Survey)["a"])
    play.leave("b")
    assert (play.machine.state.phase, play.machine.state.surveyed) == ("gathering", False)
    assert "gather" in play.machine.state.alarms
    (task,) = sent(play.join("b"))
    assert (task.site, task.work.kind) == ("b", "survey")
    (init,) = sent(play.tell(task))
    assert init.work == Init()


def test_a_site_that_joins_after_the_survey_trains_with_the_same_standard() -> None:
    play = Play(survey=GLOBAL, pace={"rounds": 3})
    play.join("a", "b")
    for task in play.tasks(Survey).values():
        play.tell(task)
    play.update(play.tasks(Init)["a"])
    play.join("c")
    play.round()
    standards = {task.standard for task in play.tasks(Train).values()}
    assert set(play.tasks(Train)) == {"a", "b", "c"}
    assert standards == {play.machine.state.standard}
    assert set(play.machine.state.profiles) == {"a", "b"}


def test_a_survey_precedes_the_training_of_a_model_that_came_with_the_submission() -> None:
    play = Play(survey=GLOBAL)
    play.do(ev.ModelGiven(at=0, digest="given"))
    play.join("a", "b")
    for task in play.tasks(Survey).values():
        play.tell(task)
    assert set(play.tasks(Train)) == {"a", "b"}


def test_a_job_fails_if_the_data_of_sites_do_not_fit_together_and_names_them() -> None:
    play = Play(survey={"classes": True})
    play.join("a", "b")
    asked = play.tasks(Survey)
    play.tell(asked["a"], classes=(4, 6))
    ((status, reason),) = endings(play.tell(asked["b"], classes=(4, 3, 3)))
    assert status == "failed"
    assert "site b has 1 columns and 3 classes, site a has 1 columns and 2 classes" in reason


def test_a_job_fails_if_a_site_that_it_needs_cannot_describe_its_data() -> None:
    play = Play(survey=GLOBAL)
    play.join("a", "b")
    ((status, reason),) = endings(play.fail(play.tasks(Survey)["b"], "too few columns"))
    assert (status, reason) == ("failed", "site b could not describe its data: too few columns")


def test_results_of_the_wrong_kind_are_refused() -> None:
    play = Play(survey=GLOBAL)
    play.join("a", "b")
    asked = play.tasks(Survey)
    before = play.picture()
    with pytest.raises(Stale, match="does not ask for a model"):
        play.update(asked["a"])
    with pytest.raises(Stale, match="is not an evaluation"):
        play.report(asked["a"])
    assert play.picture() == before
    play.tell(asked["a"])
    play.tell(asked["b"])
    with pytest.raises(Stale, match="is not a survey"):
        play.tell(play.tasks(Init)["a"])


def test_a_snapshot_in_mid_survey_goes_on_where_it_was() -> None:
    play = Play(survey=GLOBAL)
    play.join("a", "b")
    asked = play.tasks(Survey)
    play.tell(asked["a"], n=10, mean=1.0)
    again = machine_of(play.spec)
    again.restore(play.machine.snapshot())
    play.machine = again
    play.tell(asked["b"], n=30, mean=5.0)
    assert again.state.standard is not None
    assert again.state.standard.mean == (4.0,)


@pytest.mark.parametrize(
    ("survey", "message"),
    [
        ({"standardise": "globl"}, "survey.standardise: input should be 'none', 'local' or 'global'"),
        ({"columns": 3}, "columns says what to standardise"),
        ({"standardise": "local", "columns": 0}, "survey.columns: "),
        ({"class": True}, "survey.class: unknown key (did you mean 'classes'?)"),
    ],
)
def test_an_invalid_survey_is_refused_with_its_field(survey: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_job({"app": "a.py:app", "survey": survey})
    assert message in str(caught.value)
