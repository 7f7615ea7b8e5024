"""`sites.together`: no community model is made from the updates of fewer sites than the job promises."""

from typing import Any

import pytest

from hansa.common.job.check import parse_job
from hansa.common.values.errors import InvalidJob
from hansa.common.values.tasks import Train
from hansa.controller.rulebook.compose import compose
from tests.unit.engine.play import Play, endings, job_spec, machine_of, merges, sent

THREE = {"min": 3, "together": 3, "wait": 60}


def test_a_round_with_fewer_updates_keeps_the_model_before_and_says_so() -> None:
    play = Play(sites=THREE, pace={"deadline": 30, "quorum": 0.3})
    tasks = play.training("a", "b", "c")
    play.update(tasks["a"])
    play.update(tasks["b"])
    (merge,) = merges(play.ring("round-1-1"))
    assert [(member.site, member.weight) for member in merge.added] == [("a", 0.0), ("b", 0.0)]
    play.merged()
    record = play.machine.state.history[1]
    assert record.note.startswith(
        "only the updates of 2 sites would count, but a model takes 3 (sites.together)"
    )
    assert record.contributions == {"a": 0.0, "b": 0.0}
    play.round()
    assert play.machine.state.history[2].contributions == {"a": 10.0, "b": 10.0, "c": 10.0}
    assert play.machine.state.history[2].note == ""


def test_an_update_without_weight_does_not_count_towards_the_promise() -> None:
    play = Play(sites=THREE)
    tasks = play.training("a", "b", "c")
    play.update(tasks["a"])
    play.update(tasks["b"])
    (merge,) = merges(play.update(tasks["c"], n_train=0))
    assert {member.weight for member in merge.added} == {0.0}


def test_with_rounds_earlier_updates_count_towards_the_promise_only_if_they_have_weight() -> None:
    play = Play(sites=THREE, pace={"deadline": 30, "quorum": 0.3}, merge={"kind": "latest"})
    tasks = play.training("a", "b", "c")
    for site in ("a", "b", "c"):  # one site a round: none of them may ever be alone
        play.update(tasks[site])
        (merge,) = merges(play.ring(f"round-{play.machine.state.round}-1"))
        assert [member.weight for member in merge.added] == [0.0]
        play.merged()
        tasks = play.tasks(Train)
    play.round()
    assert {member.weight for held in play.machine.state.members.values() for member in held} == {10.0}


def test_multi_krum_counts_the_updates_that_it_takes() -> None:
    play = Play(rule="multi-krum", sites={"min": 5, "together": 5, "wait": 60})
    tasks = play.training("a", "b", "c", "d", "e")
    effects = [play.update(task) for task in tasks.values()][-1]
    assert {member.weight for member in merges(effects)[0].added} == {0.0}  # it would take four of five


def test_without_rounds_the_first_updates_wait_for_one_another() -> None:
    play = Play(rule="async-fedavg", sites=THREE, pace={"updates": 9})
    tasks = play.training("a", "b", "c")
    assert merges(play.update(tasks["a"])) == []
    assert merges(play.update(tasks["b"])) == []
    play.leave("b")
    assert sent(play.join("b")) == []  # it has answered: its update waits
    play.save()
    play.machine = play.again()  # a controller that was killed goes on with what waits
    (merge,) = merges(play.update(tasks["c"]))
    assert [(member.site, member.weight) for member in merge.added] == [("a", 10.0), ("b", 10.0), ("c", 10.0)]
    assert {task.site for task in sent(play.merged())} == {"a", "b", "c"}
    (merge,) = merges(play.update(play.tasks(Train)["b"]))  # from now on one at a time
    assert [member.site for member in merge.added] == ["b"]


def test_without_rounds_a_job_fails_if_its_sites_cannot_be_enough() -> None:
    play = Play(rule="async-fedavg", sites=THREE, pace={"updates": 9})
    tasks = play.training("a", "b", "c")
    play.update(tasks["a"])
    for _ in range(3):
        play.fail(play.tasks(Train)["b"], "no memory")
    ((status, reason),) = endings(play.update(tasks["c"]))
    assert status == "failed"
    assert reason == "models of 3 sites cannot be made: b failed 3 times in a row: no memory"


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (
            {"rule": "fedasync"},
            "sites.together: pace async with merge mean makes a model of one site's update",
        ),
        ({"rule": "krum"}, "sites.together: merge krum makes a model of 1 update; set merge.chosen"),
        (
            {"rule": "async-fedavg", "pace": {"updates": 2}},
            "pace.updates: 2 updates cannot come from 3 sites",
        ),
        (
            {"rule": "async-fedavg", "merge": {"drop_on_leave": True}},
            "merge.drop_on_leave: would leave models of fewer sites",
        ),
    ],
)
def test_a_rule_that_cannot_keep_the_promise_is_refused(job: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message.replace(".", r"\.")):
        machine_of(job_spec(sites=THREE, **job))


@pytest.mark.parametrize(
    ("job", "warned"),
    [
        ({"rule": "radfed", "sample": {"fraction": 0.5}}, True),
        ({"rule": "radfed-i"}, True),
        ({"rule": "fedavg", "sample": {"kind": "uniform", "fraction": 0.75}}, False),
        ({"rule": "fedavg"}, False),
    ],
)
def test_drawing_too_few_sites_for_the_promise_causes_a_warning(job: dict[str, Any], warned: bool) -> None:
    spec = job_spec(sites={"min": 4, "together": 3}, **job)
    warnings = compose(spec).warnings(spec)
    assert [where for where, _ in warnings] == [("sample", "fraction")] * warned
    assert all("a model needs 3 (sites.together): no model would be made" in why for _, why in warnings)


def test_the_promise_needs_so_many_sites_to_start() -> None:
    with pytest.raises(InvalidJob, match="require a `min` of 3 or more"):
        parse_job({"app": "app.py:app", "sites": {"min": 2, "together": 3}})
