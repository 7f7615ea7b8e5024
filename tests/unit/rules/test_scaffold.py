"""SCAFFOLD at the controller: its composition, its epochs and its refusals (scaffold §3, §4)."""

import re
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.common.methods.scaffold import CONTROL, LOST, SCAFFOLD
from hansa.common.values.errors import InvalidJob
from hansa.common.values.results import UpdateFacts
from hansa.common.values.settings.training import AuxiliarySpec
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import SendTask, StartOrder
from hansa.controller.engine.orders import Merge
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.baselines.scaffold import ControlVariates, Epochs
from tests.unit.engine.any_jobs import ORDERS, Step
from tests.unit.engine.any_order import AnyOrder
from tests.unit.engine.play import Play, job_spec


def play_of(**fields: Any) -> Play:
    return Play(**({"rule": "scaffold", "pace": {"rounds": 9}} | fields))


def work_of(task: Task) -> Train:
    assert isinstance(task.work, Train)
    return task.work


def merged_task(task: Task) -> object:
    """Return which update a task says was the site's last that was merged."""
    (plugin,) = work_of(task).plugins
    assert plugin.name == SCAFFOLD
    return plugin.args["merged"]


def resets(play: Play) -> set[bool]:
    """Return whether tasks and the merge say that c starts from zero."""
    tasks = [work_of(task).auxiliary for task in play.tasks(Train).values()]
    assert all([each.name for each in auxiliary] == [CONTROL] for auxiliary in tasks)
    orders = [bool(order.resets) for order in play.orders(Merge).values()]
    return {auxiliary[0].reset for auxiliary in tasks} | set(orders)


def lose(play: Play, task: Task) -> None:
    """Let an update arrive from a site that no longer had its control variate."""
    facts = UpdateFacts(n_train=10, n_used=10, steps=3, epochs=1, seconds=0.1, loss=1.0, metrics={LOST: 1.0})
    play.do(ev.UpdateArrived(at=play.now, task=task.id, site=task.site, facts=facts, digest="d", tensors=2))


def epoch(play: Play) -> Epochs:
    return cast(Epochs, play.machine.memories["local"])


def told(play: Play) -> list[dict[str, Any]]:
    return [dict(record.diagnostics["local"]) for record in play.machine.state.history[1:]]


def test_c_goes_down_and_its_changes_come_up_to_be_added() -> None:
    rule = compose(job_spec(rule="scaffold"))
    (auxiliary,) = rule.auxiliary
    assert (auxiliary.name, auxiliary.down, auxiliary.up, auxiliary.merge) == (CONTROL, True, True, "add")
    assert isinstance(rule.local, ControlVariates)
    assert rule.weigh.equal


def test_tasks_name_the_last_merged_update_and_the_first_round_of_an_epoch_resets_c() -> None:
    play = play_of()
    tasks = play.training("a", "b")
    assert work_of(tasks["a"]).auxiliary == (AuxiliarySpec(name=CONTROL, reset=True),)
    assert [merged_task(task) for task in tasks.values()] == ["", ""]
    assert resets(play) == {True}
    play.update(tasks["a"])
    play.update(tasks["b"])
    assert resets(play) == {True}
    play.merged()
    for _ in range(3):
        before, tasks = tasks, play.tasks(Train)
        assert resets(play) == {False}
        assert {site: merged_task(task) for site, task in tasks.items()} == {
            site: task.id for site, task in before.items()
        }
        play.round()
    assert told(play) == [{"epoch": 1}] * 4
    assert play.again().memories == play.machine.memories


def test_a_site_that_is_not_in_a_merge_goes_on_from_its_last_merged_update() -> None:
    play = play_of(pace={"rounds": 9, "deadline": 10})
    tasks = play.training("a", "b", "c")
    play.round()
    second = play.tasks(Train)
    play.update(second["a"])
    play.update(second["b"])
    play.ring("round-2-1")
    play.merged()
    third = play.tasks(Train)
    assert [merged_task(third[site]) for site in "abc"] == [second["a"].id, second["b"].id, tasks["c"].id]
    assert told(play)[-1] == {"epoch": 1}


def test_an_update_that_does_not_count_in_a_merge_is_not_in_c() -> None:
    """Only one site's update came, and a model takes two: it has a receipt, but it was not merged."""
    play = play_of(pace={"rounds": 9, "deadline": 10, "quorum": 0.5}, sites={"min": 2, "together": 2})
    tasks = play.training("a", "b")
    play.round()
    play.update(play.tasks(Train)["a"])
    play.ring("round-2-1")
    play.merged()
    assert play.machine.state.receipts["a"].task != tasks["a"].id  # type: ignore[index]
    assert [merged_task(task) for task in play.tasks(Train).values()] == [tasks["a"].id, tasks["b"].id]


@pytest.mark.parametrize("change", ["joined", "left", "lost memory"])
def test_a_new_epoch_begins_with_the_next_round_when_the_sites_change(change: str) -> None:
    play = play_of()
    play.training("a", "b", "c")
    play.round()
    tasks = play.tasks(Train)
    if change == "joined":
        play.join("d")
    elif change == "left":
        play.leave("c")
    play.update(tasks["a"])
    play.update(tasks["b"])
    if change == "joined":
        play.update(tasks["c"])
    elif change == "lost memory":
        lose(play, tasks["c"])
    assert resets(play) == {False}
    (order,) = play.orders(Merge).values()
    assert order.sites == 3, "c is still the mean over the sites of the epoch"
    play.merged()
    who = {"joined": "d", "left": "c", "lost memory": "c"}[change]
    assert epoch(play).epoch == 2
    assert resets(play) == {True}
    assert {merged_task(task) for task in play.tasks(Train).values()} == {""}
    play.round()
    assert resets(play) == {False}
    play.round()
    reason = f"{change}: {who}"
    warning = f"scaffold: epoch 2 begins with control variates of zero ({reason})"
    assert told(play) == [
        {"epoch": 1},
        {"epoch": 1},
        {"epoch": 2, "began": reason, "warning": warning},
        {"epoch": 2},
    ]
    assert play.again().state == play.machine.state


JOBS = st.fixed_dictionaries(
    {
        "local": st.just({"kind": "scaffold"}),
        "weigh": st.just({"kind": "equal"}),
        "pace": st.fixed_dictionaries(
            {"rounds": st.just(8), "quorum": st.sampled_from([0.3, 1.0])},
            optional={"deadline": st.just(30.0)},
        ),
        "sites": st.sampled_from([{"min": 1}, {"min": 2}, {"min": 3, "together": 2}]).map(
            lambda sites: {"wait": 20.0, **sites}
        ),
        "sample": st.sampled_from(
            [
                {"kind": "all"},
                {"kind": "uniform", "fraction": 0.5},
                {"kind": "power-of-choice", "candidates": 2, "fraction": 0.5},
            ]
        ),
    }
)


def variates(play: Play) -> tuple[list[Fraction], dict[object, Fraction]]:
    """Return c of every version and c_i after every task, if a task changes c_i by a number of its own."""
    c, own, change = [Fraction(0)], dict[object, Fraction](), dict[object, Fraction]()
    for effect in play.effects:
        if isinstance(effect, SendTask) and isinstance(effect.task.work, Train):
            task = effect.task
            change[task.id] = Fraction(int(task.id.rpartition("-")[2]) ** 2)
            own.setdefault(task.id, own.get(merged_task(task), Fraction(0)) + change[task.id])
        elif isinstance(effect, StartOrder) and isinstance(effect.order, Merge):
            merge = effect.order
            before = Fraction(0) if merge.resets else c[merge.version - 1]
            counting = [member.task for member in merge.added if member.weight > 0]
            added = sum((change[task] for task in counting), Fraction(0))
            c[merge.version :] = [before + added / merge.sites]
    return c, own


@settings(max_examples=150, deadline=None)
@given(JOBS, ORDERS)
def test_under_any_order_of_events_c_is_the_mean_of_the_control_variates_of_all_sites(
    job: dict[str, Any], steps: list[Step]
) -> None:
    order = AnyOrder(job)
    for site in ("a", "b", "c"):
        order.happen(lambda site=site: order.play.join(site))  # type: ignore[misc]
    for name, pick in steps:
        order.step(name, pick)
        order.check()
        state = epoch(order.play)
        if not state.fresh:
            c, own = variates(order.play)
            each = [own.get(state.merged.get(site), Fraction(0)) for site in state.sites]
            assert c[order.play.machine.state.version] == sum(each) / len(each)
    order.restart()


def test_a_site_that_leaves_and_comes_back_within_a_round_changes_nothing() -> None:
    play = play_of(pace={"rounds": 9, "quorum": 1.0})
    play.training("a", "b")
    play.round()
    tasks = play.tasks(Train)
    play.leave("b")
    play.update(tasks["a"])
    play.join("b")
    play.update(tasks["b"])
    (order,) = play.orders(Merge).values()
    assert order.sites == 2
    play.merged()
    assert epoch(play).epoch == 1
    assert resets(play) == {False}


def test_c_stays_zero_until_a_version_of_the_epoch_exists() -> None:
    """The sites change again before the first merge of the new epoch is over."""
    play = play_of()
    play.training("a", "b")
    play.round()
    play.join("c")
    for task in play.tasks(Train).values():
        play.update(task)
    play.join("d")
    play.merged()
    play.join("e")
    for task in play.tasks(Train).values():
        play.update(task)
    play.merged()
    assert epoch(play).epoch == 3
    assert resets(play) == {True}
    assert [each.get("began", "") for each in told(play)] == ["", "", "joined: c, d"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weigh": {"kind": "examples"}}, "examples does not go with local scaffold: the means of updates"),
        ({"weigh": {"kind": "dvw"}}, "dvw does not go with local scaffold: the means of updates"),
        ({"merge": {"kind": "median"}}, "median does not go with local scaffold: the next model must be"),
        ({"merge": {"kind": "latest"}}, "latest does not go with local scaffold: the next model must be"),
        ({"pace": {"kind": "async"}}, "async does not go with local scaffold: all sites must start"),
        ({"pace": {"kind": "redistribute"}}, "redistribute does not go with local scaffold: auxiliary"),
        ({"layers": {"kind": "divide"}}, "divide does not go with local scaffold: every round must train"),
        (
            {"train": {"optimizer": {"momentum": 0.9}}},
            "train.optimizer.momentum: scaffold needs steps of the gradient times a constant rate",
        ),
        ({"train": {"optimizer": {"kind": "adam"}}}, "use sgd, not adam"),
        ({"train": {"clip": 1}}, "train.clip: clipped gradients have other lengths: scaffold needs steps"),
        (
            {"train": {"schedule": {"kind": "exponential", "factor": 0.9, "by": "step"}}},
            "train.schedule.by: the rate changes within a task: scaffold needs steps",
        ),
        ({"train": {"optimizer": {"kind": "adamw"}}}, "use sgd, not adamw"),
    ],
)
def test_what_would_bias_the_control_variates_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=re.escape(message)):
        compose(job_spec(rule="scaffold", **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"sample": {"kind": "uniform", "fraction": 0.5}},
        {"pace": {"kind": "semisync"}},
        {"layers": {"kind": "parameters"}},
        {"merge": {"kind": "mean", "bn": "pooled"}},
        {"server": {"kind": "mix"}},
        {"train": {"batches": 5}},
    ],
)
def test_other_parts_go_with_it(fields: dict[str, Any]) -> None:
    compose(job_spec(rule="scaffold", **fields))
