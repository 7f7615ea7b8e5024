"""The apps of sites: one that does not fit the others is named, and does not harm a running job."""

from typing import Any

import pytest

from hansa.common.values.ids import SiteName
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Evaluate, Init, Survey, Train
from hansa.controller.engine import events as ev
from tests.unit.engine.play import Play, endings, stale

TEN = Stated(task="classification", classes=10, source="aa" * 32)
TWO = Stated(task="classification", classes=2, source="aa" * 32)
EDITED = TEN.model_copy(update={"source": "bb" * 32})


def join(play: Play, site: str, app: Stated, role: Any = "learner", examples: int = 10) -> list[Any]:
    return play.do(ev.SiteJoined(at=play.now, site=SiteName(site), role=role, examples=examples, app=app))


def begin(play: Play, *sites: str, app: Stated = TEN) -> None:
    for site in sites:
        join(play, site, app)
    (init,) = play.tasks(Init).values()
    play.update(init)


def test_a_waiting_job_fails_if_apps_differ_and_names_the_sites() -> None:
    play = Play(sites={"min": 3})
    join(play, "a", TEN)
    join(play, "a", TEN, role="evaluator")
    ((status, reason),) = endings(join(play, "b", TWO, role="evaluator"))
    assert status == "failed"
    assert (
        "classification with 10 classes: evaluator a, learner a; classification with 2 classes: evaluator b"
        in reason
    )


@pytest.mark.parametrize(
    "other",
    [
        TWO,
        Stated(task="multilabel", classes=10),
        Stated(task="regression"),
        Stated(),
        Stated(task="own", classes=3),
    ],
)
def test_a_site_that_joins_later_with_a_different_app_is_left_out(other: Stated) -> None:
    play = Play(sites={"min": 2})
    begin(play, "a", "b")
    assert join(play, "c", other) == []
    assert set(play.machine.state.learners) == {"a", "b"}
    stale(play, lambda: join(play, "c", other))
    (warning,) = [line for line in play.machine.warnings if "learner c was left out" in line]
    assert "classification with 10 classes: learner a, learner b" in warning
    join(play, "c", TEN)  # it was restarted with the others' app
    assert set(play.machine.state.learners) == {"a", "b", "c"}
    assert play.machine.warnings == []
    assert play.again().state == play.machine.state


def test_an_evaluator_that_comes_back_with_another_app_leaves_the_job() -> None:
    play = Play(sites={"min": 2})
    join(play, "e", TEN, role="evaluator")
    begin(play, "a", "b")
    play.round()
    assert set(play.tasks(Evaluate)) == {"e"}
    join(play, "e", TWO, role="evaluator")
    assert (play.tasks(Evaluate), play.machine.state.evaluators) == ({}, set())
    assert play.machine.stated("evaluator", SiteName("e")) == TEN
    assert not play.machine.ended


def test_an_app_with_its_own_functions_fits_any_task_with_as_many_classes() -> None:
    play = Play(sites={"min": 3})
    join(play, "a", Stated(task="own", classes=10, source="aa" * 32))
    join(play, "b", TEN)
    assert not play.machine.ended
    assert endings(join(play, "c", Stated(task="multilabel", classes=10)))  # unlike b's, though like a's


def test_different_sources_cause_a_warning_that_names_them() -> None:
    play = Play(sites={"min": 2})
    join(play, "a", TEN)
    assert play.machine.warnings == []
    join(play, "a", EDITED, role="evaluator")
    join(play, "b", TEN)
    (warning,) = play.machine.warnings
    assert "different versions of" in warning
    assert "(source aaaaaaaa: learner a, learner b; source bbbbbbbb: evaluator a)" in warning
    assert not play.machine.ended


def test_different_sources_fail_a_job_that_asks_for_the_same_app() -> None:
    play = Play(sites={"min": 2, "same_app": True})
    join(play, "a", TEN)
    ((status, reason),) = endings(join(play, "b", EDITED))
    assert status == "failed"
    assert (
        "(source aaaaaaaa: learner a; source bbbbbbbb: learner b), and the job asks for sites.same_app"
        in reason
    )
    play = Play(sites={"min": 2, "same_app": True})
    begin(play, "a", "b")
    join(play, "c", EDITED)
    assert set(play.tasks(Train)) == {"a", "b"}
    assert "learner c was left out" in play.machine.warnings[0]


def test_a_change_on_disk_causes_a_warning_and_nothing_else() -> None:
    play = Play(sites={"min": 2, "same_app": True})
    begin(play, "a", "b")
    before = play.tasks(Train)
    changed = TEN.model_copy(update={"changed": True})
    assert join(play, "a", changed) == []
    stale(play, lambda: join(play, "a", changed))
    assert play.tasks(Train) == before
    (warning,) = play.machine.warnings
    assert (
        "changed on disk since these daemons loaded it: learner a; they keep using what they have loaded"
        in warning
    )
    play.save()
    assert play.again().state == play.machine.state


def test_long_lists_of_daemons_are_cut_short() -> None:
    play = Play(sites={"min": 1})
    for number in range(12):
        join(play, f"s{number:02}", TEN if number else EDITED)
    (warning,) = play.machine.warnings
    assert "learner s05 and 6 more; source bbbbbbbb: learner s00)" in warning


def test_many_different_apps_are_cut_short() -> None:
    play = Play(sites={"min": 1})
    for number in range(100):
        join(play, f"s{number:02}", TEN.model_copy(update={"source": f"{number:08}"}))
    (warning,) = play.machine.warnings
    assert warning.endswith("; source 00000004: learner s04; and 95 more)")


def test_a_site_that_cannot_describe_its_data_does_not_end_a_job_that_has_enough_others() -> None:
    play = Play(survey={"standardise": "global"}, sites={"min": 2})
    play.join("a", "b")
    asked = play.tasks(Survey)
    play.join("c")
    play.fail(play.tasks(Survey)["c"], "invalid report: 3 classes")
    play.tell(asked["a"])
    play.tell(asked["b"])
    assert set(play.tasks(Init)) == {"a"}
    assert play.machine.warnings == ["site c could not describe its data: invalid report: 3 classes"]
    assert play.again().state == play.machine.state


def test_a_survey_that_too_few_sites_can_answer_ends_the_job_with_the_reason() -> None:
    play = Play(survey={"standardise": "global"}, sites={"min": 2})
    play.join("a", "b")
    play.join("c")
    play.fail(play.tasks(Survey)["b"], "nonsense")
    play.tell(play.tasks(Survey)["a"])
    ((status, reason),) = endings(play.leave("c"))
    assert (status, reason) == ("failed", "site b could not describe its data: nonsense")
