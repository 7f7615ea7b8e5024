"""Divide-and-Conquer in the engine: phases, pre-pass, what is refused (divide-and-conquer §2, §4, §7, §8)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.ui.job.live import version_line
from hansa.common.values.errors import InvalidJob, PluginFailed
from hansa.common.values.history import VersionView
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Anatomy
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.tasks import Init, Task, Train
from hansa.common.values.views import JobView
from hansa.controller.community.reading import Library
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.orders import Examine, Order
from hansa.controller.jobs.views import history_views
from hansa.controller.plugin.outline import Outline, outline_of
from hansa.controller.plugin.view import View
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.divide import Divide, Division
from hansa.controller.rules.dividing.divergence import METRICS, divergences
from hansa.controller.rules.dividing.layers import Layers
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.work.examine import StoredEvidence
from tests.unit.engine.play import Play, dropped, endings, job_spec, merges, sent, stale, started, withdrawn
from tests.unit.samples import keep, values

LAYERS = ("one", "two", "three", "four")


def _tensors(layers: tuple[str, ...]) -> list[TensorInfo]:
    found: list[TensorInfo] = []
    for at, name in enumerate(layers):
        found.append(TensorInfo(f"{name}.weight", "float32", (3, 3), Role.PARAM, at))
        found.append(TensorInfo(f"{name}.bias", "float32", (3,), Role.PARAM, at))
        found.append(TensorInfo(f"{name}.mean", "float32", (3,), Role.STAT, at))
        found.append(TensorInfo(f"{name}.count", "int64", (), Role.COUNT, at))
    return found


SPEC = ModelSpec(tuple(_tensors(LAYERS)), LAYERS)
MODEL = outline_of(SPEC, Anatomy(blocks=(0, 1, 1, 2)))


def names(*layers: str) -> tuple[str, ...]:
    return tuple(info.name for info in SPEC.tensors if info.name.partition(".")[0] in layers)


def play_of(
    outline: Outline = MODEL, rounds: int = 20, epochs: int = 20, lr: float = 0.001, **fields: Any
) -> Play:
    given: dict[str, Any] = {"rule": "divide", "pace": {"rounds": rounds}}
    train = {"epochs": epochs, "optimizer": {"kind": "adam", "lr": lr}}
    play = Play(**(given | {"train": train} | fields))
    play.outline = outline
    return play


def facts(eq3: list[float | None], cosine: list[float | None] | None = None) -> dict[str, Any]:
    other = cosine or eq3
    return {"divergences": {"eq3": eq3, "cosine": other, "relative_l2": other}, "sites": 2, "pairs": 2}


RISING = facts([0.1, 0.1, 0.9, 0.9])


def answer(play: Play, found: dict[str, Any] | None = None, trouble: str = "") -> list[Effect]:
    """Let every site answer, and what is examined be found; return the last effects."""
    effects: list[Effect] = []
    for task in play.tasks(Train).values():
        effects = play.update(task)
    for number in started(effects, Examine):
        effects = play.order_failed(number, trouble) if trouble else play.examined(number, found or RISING)
    return effects


def round_of(play: Play, found: dict[str, Any] | None = None, trouble: str = "") -> list[Effect]:
    answer(play, found, trouble)
    return play.merged()


def work_of(play: Play) -> Train:
    tasks = list(play.tasks(Train).values())
    assert len({task.work.model_dump_json(exclude={"after"}) for task in tasks}) == 1, (
        "all sites are asked for the same"
    )
    assert isinstance(tasks[0].work, Train)
    return tasks[0].work


def shown(play: Play) -> list[dict[str, Any]]:
    return [dict(entry.diagnostics.get("layers", {})) for entry in history_views(play.machine, 1)]


def test_the_schedule_is_that_of_the_specification() -> None:
    play = play_of()
    play.training("a", "b")
    phases = []
    for number in range(11):
        work = work_of(play)
        phases.append(play.machine.phase)
        fine = number >= 5 and (number - 5) % 2 == 1
        assert work.optimizer.lr == pytest.approx(0.001 * 0.9**number * (0.5 if fine else 1), rel=1e-12)
        assert work.epochs == (4 if fine else 20)
        whole = number < 5
        assert work.tensors == (() if whole else names("three", "four") if fine else names("one", "two"))
        round_of(play)
    assert phases == ["prepass"] * 5 + ["feature", "fine-tuning"] * 3
    history = list(history_views(play.machine, 1))
    assert [entry.phase for entry in history] == phases
    assert history[5].diagnostics["layers"]["lr"] == pytest.approx(5.9049e-4)
    assert history[6].diagnostics["layers"]["lr"] == pytest.approx(2.657205e-4)
    assert [told["split"] for told in shown(play)] == [None] * 4 + [2] * 7
    assert ["divergences" in told for told in shown(play)] == [True] * 5 + [False] * 6


def test_where_models_travel_the_learning_rate_follows_the_hops_and_the_phase_the_rounds() -> None:
    pace = {"kind": "redistribute", "rounds": 4, "hops": 3, "divergence": "none"}
    play = play_of(pace=pace, layers={"kind": "divide", "prepass": 0, "split": 2})
    play.training("a", "b")
    seen = []
    for hop in range(9):
        rates = {
            task.work.optimizer.lr for task in play.tasks(Train).values() if isinstance(task.work, Train)
        }
        (rate,) = rates
        fine = hop // 3 == 1
        assert rate == pytest.approx(0.001 * 0.9**hop * (0.5 if fine else 1), rel=1e-12)
        seen.append(play.machine.phase)
        answer(play)
        if play.machine.state.plan:
            play.merged()
    assert seen == ["feature"] * 3 + ["fine-tuning"] * 3 + ["feature"] * 3


def test_both_groups_together_are_the_whole_model_each_tensor_once() -> None:
    rule = Divide()
    for split in range(1, 4):
        first, last = rule.group(MODEL, split, "feature"), rule.group(MODEL, split, "fine-tuning")
        assert sorted(first + last) == sorted(SPEC.names)
    assert (
        rule.group(MODEL, 4, "feature") == SPEC.names
    )  # not to be had by a job: it is FedAvg in every other round
    assert rule.group(MODEL, 4, "fine-tuning") == ()


def test_the_prepass_reports_all_metrics_and_warns_if_they_disagree() -> None:
    play = play_of(layers={"prepass": 2})
    play.training("a", "b")
    round_of(play)
    round_of(play, facts([0.1, 0.1, 0.9, 0.9], [0.1, 0.9, 0.9, 0.9]))
    told = shown(play)[1]
    assert told["splits"] == {"eq3": 2, "cosine": 3, "relative_l2": 3}
    assert told["clear"] == {"eq3": True, "cosine": False, "relative_l2": False}
    assert told["best"]["eq3"] == {"split": 2, "cost": 0.0, "ratio": 9.0}
    assert told["runner_up"] == dict.fromkeys(METRICS), "of four layers, only one split has two on each side"
    assert told["divergences"]["cosine"] == [0.1, 0.9, 0.9, 0.9]
    assert told["warning"] == (
        "the metrics would divide differently: "
        "eq3 after layer 2, cosine after layer 3, relative_l2 after layer 3"
    )
    assert work_of(play).tensors == names("one", "two")
    assert shown(play)[0]["layers"] == list(LAYERS)


@pytest.mark.parametrize(("metric", "wanted"), [("eq3", ("one", "two")), ("cosine", ("one", "two", "three"))])
def test_the_metric_of_the_job_decides(metric: str, wanted: tuple[str, ...]) -> None:
    play = play_of(layers={"prepass": 1, "metric": metric})
    play.training("a", "b")
    round_of(play, facts([0.1, 0.1, 0.9, 0.9], [0.1, 0.9, 0.9, 0.9]))
    assert work_of(play).tensors == names(*wanted)


def test_without_a_clear_split_only_the_last_layer_is_apart_and_that_is_said() -> None:
    play = play_of(layers={"prepass": 1})
    play.training("a", "b")
    round_of(play, facts([0.5, 0.5, 0.5, 0.6]))
    assert work_of(play).tensors == names("one", "two", "three")
    assert "no clear split by eq3" in shown(play)[0]["warning"]


def test_a_runner_up_that_is_too_close_keeps_the_split_and_is_warned_of() -> None:
    deep = (*LAYERS, "five")
    spec = ModelSpec(tuple(_tensors(deep)), deep)
    found = facts([0.1, 0.1, 0.52, 0.9, 0.9])
    for changed, clear in (({}, False), ({"margin": 1.0}, True), ({"choose": "log"}, True)):
        play = play_of(outline_of(spec, Anatomy()), layers={"prepass": 1, **changed})
        play.training("a", "b")
        round_of(play, found)
        told = shown(play)[0]
        assert (told["split"], told["clear"]["eq3"]) == (2, clear)
        assert work_of(play).tensors == tuple(info.name for info in spec.tensors if info.layer < 2)
        assert told["runner_up"]["eq3"]["split"] == 3
        assert told["best"]["eq3"]["cost"] < told["runner_up"]["eq3"]["cost"]
        assert ("and after layer 3 0.118, which is too close" in told.get("warning", "")) is not clear


def test_a_split_that_is_given_is_taken_whatever_the_prepass_finds() -> None:
    play = play_of(layers={"prepass": 1, "split": 3})
    play.training("a", "b")
    round_of(play)
    assert work_of(play).tensors == names("one", "two", "three")
    assert "warning" not in shown(play)[0]
    assert shown(play)[0]["splits"]["eq3"] == 2
    at_once = play_of(layers={"prepass": 0, "split": 1, "feature_epochs": 7, "fine_epochs": 2, "decay": 1.0})
    at_once.training("a", "b")
    assert (work_of(at_once).tensors, work_of(at_once).epochs) == (names("one"), 7)
    round_of(at_once)
    assert (work_of(at_once).tensors, work_of(at_once).epochs) == (names("two", "three", "four"), 2)


def test_a_prepass_round_with_one_site_is_repeated_and_the_third_time_the_job_fails() -> None:
    play = play_of(layers={"prepass": 2}, sites={"min": 1})
    play.training("a")
    round_of(play)
    assert work_of(play).optimizer.lr == pytest.approx(0.0009)
    round_of(play)
    assert work_of(play).tensors == ()
    assert work_of(play).optimizer.lr == pytest.approx(0.0009)
    assert shown(play)[1]["warning"] == "the pre-pass round is repeated: fewer than two sites took part"
    round_of(play)
    answer(play)
    with pytest.raises(PluginFailed, match=r"give layers\.split") as raised:
        play.merged()
    assert str(raised.value).startswith("layers 'divide': 3 pre-pass rounds found no split"), (
        "nobody need know the class"
    )


def test_a_prepass_round_counts_when_two_sites_take_part() -> None:
    play = play_of(layers={"prepass": 1}, sites={"min": 1})
    play.training("a")
    round_of(play)
    play.join("b")
    round_of(play)
    round_of(play)
    assert work_of(play).tensors
    assert [entry.phase for entry in history_views(play.machine, 1)] == ["prepass"] * 3


def test_a_prepass_round_whose_layers_could_not_be_compared_is_repeated() -> None:
    play = play_of(layers={"prepass": 1})
    play.training("a", "b")
    round_of(play, trouble="no memory")
    assert work_of(play).tensors == ()
    assert "could not be compared (no memory)" in shown(play)[0]["warning"]
    round_of(play)
    assert work_of(play).tensors == names("one", "two")


def test_a_job_whose_layers_could_never_be_compared_fails_and_says_why() -> None:
    play = play_of(layers={"prepass": 1})
    play.training("a", "b")
    for _ in range(2):
        round_of(play, trouble="no memory")
    answer(play, trouble="no memory")
    with pytest.raises(PluginFailed, match=r"found no split: no memory; give layers\.split"):
        play.merged()


def test_without_rounds_each_site_alternates_by_its_own_cycles() -> None:
    layers = {"kind": "divide", "prepass": 0, "split": 2, "decay": 0.5}
    play = play_of(rule="async-fedavg", pace={"updates": 20}, layers=layers)
    tasks = play.training("a", "b")

    def cycle(site: str) -> Task:
        play.update(play.tasks(Train)[site])
        play.merged()
        return play.tasks(Train)[site]

    assert {task.work.tensors for task in tasks.values() if isinstance(task.work, Train)} == {
        names("one", "two")
    }
    second, third = cycle("a"), cycle("a")
    assert isinstance(second.work, Train)
    assert isinstance(third.work, Train)
    assert second.work.tensors == names("three", "four")
    assert second.work.optimizer.lr == pytest.approx(0.001 * 0.5 * 0.5)
    assert third.work.tensors == names("one", "two")
    assert cycle("b").work.tensors == names("three", "four")  # type: ignore[union-attr]
    assert [entry.phase for entry in history_views(play.machine, 1)] == ["feature", "fine-tuning", "feature"]
    assert [told["round"] for told in shown(play)] == [0, 1, 0]  # of the site whose update it is
    assert play.machine.phase == ""


def test_a_restart_makes_version_0_again_and_keeps_it_until_then() -> None:
    play = play_of(layers={"prepass": 2, "restart": True})
    play.training("a", "b")
    first = play.machine.state.current
    assert first not in dropped(round_of(play))
    (merge,) = merges(answer(play))
    assert (merge.version, merge.current) == (2, first)
    assert [member.weight for member in merge.added] == [0, 0]
    play.merged()
    assert play.machine.state.history[2].note == "training begins again from version 0"
    assert work_of(play).tensors == names("one", "two")
    (merge,) = merges(answer(play))
    assert merge.current == play.machine.state.current != first
    assert first in dropped(play.cancel())


def test_a_crash_at_any_moment_leaves_phase_and_split_as_they_were() -> None:
    play = play_of(layers={"prepass": 2})
    play.training("a", "b")
    for number in range(6):
        tasks = list(play.tasks(Train).values())
        play.update(tasks[0])
        play.machine = play.again()
        play.update(tasks[1])
        play.machine = play.again()
        for order in play.orders(Examine):
            assert order in started(play.machine.resume(), Examine)
            play.examined(order, RISING)
        if number % 2:
            play.save()
        play.machine = play.again()
        play.merged()
        again = play.again()
        assert again.state.model_dump_json() == play.machine.state.model_dump_json()
        assert again.memories == play.machine.memories
    assert [told["split"] for told in shown(play)] == [None, 2, 2, 2, 2, 2]


def test_where_last_updates_are_remembered_a_part_replaces_its_tensors_and_the_rest_goes_on_counting() -> (
    None
):
    play = play_of(layers={"prepass": 1, "split": 2}, merge={"kind": "latest"})
    play.training("a", "b")
    round_of(play)
    whole = {site: held[0].model for site, held in play.machine.state.members.items()}
    answer(play)
    merge = play.machine.state.plan
    assert merge is not None
    assert {member.model for member in merge.removed} == set(whole.values())
    assert {member.tensors for member in merge.removed} == {frozenset(names("one", "two"))}
    play.merged()
    for site, held in play.machine.state.members.items():
        assert [member.tensors for member in held] == [
            frozenset(names("three", "four")),
            frozenset(names("one", "two")),
        ]
        assert held[0].model == whole[site]
        assert held[0].model in play.machine.state.models
    round_of(play)
    assert not set(whole.values()) & play.machine.state.models


def test_the_learning_rate_never_reaches_zero() -> None:
    rule = Divide(prepass=0, split=1)
    play = play_of(layers={"prepass": 0, "split": 1})
    play.training("a", "b")
    sites = (SiteName("a"), SiteName("b"))
    examples = dict.fromkeys(sites, 10)
    view = View(sites, frozenset(), examples, (), 0, 100_000, 0, seed=7, now=0.0, outline=MODEL)
    work = rule.shape(Division(round=100_000), SiteName("a"), work_of(play), view)
    assert OptimizerSpec.model_validate(work.optimizer.model_dump()).lr > 0


# What is refused.


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"layers": {"prepass": 0}}, "layers.split: without a pre-pass no split can be found"),
        ({"sites": {"names": ["a"]}}, "layers.split: a single site has no divergence"),
        (
            {"pace": {"kind": "async"}},
            "async does not go with layers divide: a pre-pass compares updates of one round",
        ),
        ({"pace": {"kind": "async"}, "layers": {"prepass": 0}}, "layers.split: without a pre-pass"),
        ({"pace": {"kind": "semisync"}}, "semisync does not go with layers divide"),
        ({"train": {"until": {}}}, "train.until: layers: divide sets the epochs of each phase"),
        (
            {"layers": {"restart": True}, "server": {"kind": "adam"}},
            "adam does not go with layers divide: after a restart",
        ),
        (
            {"layers": {"restart": True}, "merge": {"kind": "latest"}},
            "latest does not go with layers divide: after a restart",
        ),
        (
            {"layers": {"feature_epochs": 5}, "train": {"batches": 3}},
            "layers.feature_epochs: with train.batches tasks are windows of batches, not epochs",
        ),
        (
            {"rule": "fedmmb", "layers": {"kind": "divide", "fine_epochs": 1}},
            "layers.fine_epochs: with train.batches tasks are windows of batches, not epochs",
        ),
        ({"layers": {"split": 0}}, "layers.split: "),
        ({"layers": {"metric": "manhattan"}}, "layers.metric: "),
        ({"layers": {"epochs": 3}}, "layers.epochs: unknown key"),
    ],
)
def test_a_job_that_cannot_work_is_refused_when_it_is_submitted(changed: dict[str, Any], wanted: str) -> None:
    base: dict[str, Any] = {"rule": "divide", "sites": {"min": 1}}
    with pytest.raises(InvalidJob) as refused:
        compose(job_spec(**(base | changed)))
    assert wanted in str(refused.value)


@pytest.mark.parametrize(
    ("rounds", "layers", "warned"),
    [
        (5, {}, True),
        (3, {"prepass": 3, "split": 2}, True),
        (6, {}, False),
        (1, {"prepass": 0, "split": 2}, False),
    ],
)
def test_a_job_that_ends_before_anything_is_divided_is_warned_of(
    rounds: int, layers: dict[str, Any], warned: bool
) -> None:
    spec = job_spec(rule="divide", pace={"rounds": rounds}, layers=layers)
    told = compose(spec).warnings(spec)
    assert [where for where, _ in told] == [("layers", "prepass")] * warned
    assert all(f"all {rounds} rounds of the job are pre-pass rounds" in why for _, why in told)


TIED = MODEL.model_copy(update={"anatomy": Anatomy(ties=(("one.weight", "four.weight"),))})
FROZEN = outline_of(SPEC, Anatomy(frozen=(0, 1)))
COLD = outline_of(SPEC, Anatomy(frozen=(0, 1, 2)))
ONE = outline_of(ModelSpec(tuple(_tensors(("one",))), ("one",)))
NONE = outline_of(ModelSpec(tuple(_tensors(("one",))), ()))


@pytest.mark.parametrize(
    ("layers", "model", "wanted"),
    [
        ({}, ONE, "layers: the model has one layer (one), and two are needed to divide it"),
        ({}, NONE, "layers: no part of the model has a matrix of weights"),
        (
            {"split": 4},
            MODEL,
            "layers.split: 4 is out of range: the model has 4 layers, so 1 to 3 are possible",
        ),
        (
            {"split": 2},
            TIED,
            "layers.split: tied parameter crosses the split: one.weight and four.weight are one",
        ),
        (
            {},
            TIED,
            (
                "layers: wherever the model is divided, a tied parameter crosses the split: "
                "one.weight and four.weight are one"
            ),
        ),
        (
            {"split": 2, "blocks": True},
            MODEL,
            "layers.split: layer 2 (two) is inside a block; possible splits: 1, 3",
        ),
        ({"blocks": True}, TIED, "layers.blocks: the site that built the model did not describe its blocks"),
        (
            {"order": ["one", "two", "three"]},
            MODEL,
            "layers.order: name each of the model's 4 layers once; wrong: four",
        ),
        ({"order": ["one", "two", "three", "three"]}, MODEL, "layers.order: name each"),
        ({"split": 2}, FROZEN, "layers.split: one side of it has nothing to train"),
        (
            {},
            COLD,
            "layers: the app has frozen layers: wherever the model is divided, one side has nothing to train",
        ),
    ],
)
def test_a_model_that_cannot_be_divided_ends_the_job_as_soon_as_it_is_known(
    layers: dict[str, Any], model: Outline, wanted: str
) -> None:
    play = play_of(model, layers=layers)
    play.training("a", "b")
    ((status, reason),) = endings(play.effects)
    assert status == "failed"
    assert reason.startswith(wanted)
    given = play_of(model, layers=layers)
    given.give()
    given.join("a", "b")
    (task,) = given.tasks(Init).values()
    given.describe(task)
    assert endings(given.effects) == [(status, reason)]


# Version 0 from a file.


def given_play(**fields: Any) -> Play:
    play = play_of(layers={"prepass": 1}, **fields)
    play.give()
    return play


def test_a_model_from_a_file_is_described_by_a_site_before_the_first_round() -> None:
    play = given_play()
    assert play.machine.state.version == 0
    play.join("a", "b")
    assert play.machine.state.phase == "initialising"
    ((site, task),) = play.tasks(Init).items()
    assert not play.tasks(Train)
    play.describe(task)
    assert play.machine.state.outline == MODEL
    assert play.machine.state.models == {"j1/v0"}, "nothing but the file is stored"
    receipt = play.machine.state.receipts[SiteName(site)]
    assert (receipt.task, receipt.digest) == (task.id, f"d-{task.id}")
    assert {each.work.model for each in play.tasks(Train).values() if isinstance(each.work, Train)} == {
        "j1/v0"
    }
    round_of(play)
    assert work_of(play).tensors == names("one", "two")


def test_the_job_is_the_same_after_a_crash_at_every_step_of_it() -> None:
    play = given_play()
    steps: list[Callable[[], object]] = [
        lambda: play.join("a", "b"),
        lambda: play.describe(next(iter(play.tasks(Init).values()))),
        lambda: round_of(play),
        lambda: round_of(play),
    ]
    for number, step in enumerate(steps):
        step()
        again = play.again()
        assert again.state == play.machine.state
        assert sent(again.resume()) == list(play.machine.state.tasks.values())
        if number % 2:
            play.save()
            assert play.again().state == play.machine.state


def test_another_site_is_asked_if_the_first_cannot_tell_or_leaves() -> None:
    play = given_play()
    play.join("a", "b", "c")
    (first,) = play.tasks(Init).values()
    play.quarantine(first, "init: the file does not fit the app's model: missing one.bias")
    (second,) = play.tasks(Init).values()
    play.leave(second.site)
    (third,) = play.tasks(Init).values()
    assert len({first.site, second.site, third.site}) == 3
    play.fail(third)
    ((status, reason),) = endings(play.effects)
    assert (status, reason) == (
        "failed",
        f"site {third.site} could not describe the first model: out of memory",
    )


def test_a_site_that_is_slow_to_describe_the_model_is_named_and_comes_too_late_after_another() -> None:
    play = given_play()
    play.join("a", "b")
    (slow,) = play.tasks(Init).values()
    play.ring("first-model")
    assert play.machine.state.reason == (
        f"the first model has not been described by {slow.site} in 60 s; another site was asked, too"
    )
    (other,) = (task for task in play.tasks(Init).values() if task.site != slow.site)
    effects = play.describe(other)
    assert withdrawn(effects) == [slow.id]
    stale(play, lambda: play.describe(slow))


def test_who_is_asked_to_describe_a_model_cannot_replace_it_and_who_builds_it_cannot_describe_it() -> None:
    play = given_play()
    play.join("a", "b")
    (task,) = play.tasks(Init).values()
    stale(play, lambda: play.update(task))
    play.describe(task)
    train = next(iter(play.tasks(Train).values()))
    stale(play, lambda: play.describe(train))
    building = play_of()
    building.join("a", "b")
    (asked,) = building.tasks(Init).values()
    stale(building, lambda: building.describe(asked))


def test_a_rule_that_need_not_know_what_the_app_alone_knows_begins_at_once_from_a_file() -> None:
    play = Play(pace={"rounds": 2})
    play.give()
    play.join("a", "b")
    assert not play.tasks(Init)
    assert len(play.tasks(Train)) == 2


def test_a_deep_model_is_not_gone_through_for_each_of_its_splits() -> None:
    class Counted(tuple[Any, ...]):
        times = 0

        def __iter__(self) -> Iterator[Any]:
            Counted.times += 1
            return super().__iter__()

    deep = tuple(f"layer{number}" for number in range(100))
    model = outline_of(
        ModelSpec(tuple(_tensors(deep)), deep), Anatomy(ties=(("layer0.weight", "layer9.weight"),))
    )
    model = model.model_copy(update={"tensors": Counted(model.tensors)})
    assert Divide().misfits(model) == []
    rising = facts([1.0 if number < 60 else 5.0 for number in range(100)])["divergences"]
    chooser = Divide().chooser(Layers(model))
    assert chooser.report(rising)["splits"] == dict.fromkeys(METRICS, 60)
    assert chooser.warning(rising) == ""
    assert 0 < Counted.times < 30


def test_a_split_that_the_prepass_chose_must_not_cut_a_tie() -> None:
    ties = Anatomy(ties=(("one.weight", "three.weight"),))
    play = play_of(MODEL.model_copy(update={"anatomy": ties}), layers={"prepass": 1})
    play.training("a", "b")
    with pytest.raises(
        PluginFailed, match="chose to divide after layer 2, but tied parameter crosses the split"
    ):
        answer(play)


def test_the_prepass_divides_where_both_sides_have_something_to_train() -> None:
    play = play_of(FROZEN, layers={"prepass": 1})
    play.training("a", "b")
    round_of(play, RISING)  # which would divide after the second layer, and the app has frozen both
    assert work_of(play).tensors == names("one", "two", "three")


def test_blocks_are_not_cut_and_an_order_of_the_job_holds() -> None:
    play = play_of(layers={"prepass": 1, "blocks": True})
    play.training("a", "b")
    round_of(play)  # rises after layer 2, which is inside a block
    assert work_of(play).tensors in (names("one"), names("one", "two", "three"))
    turned = play_of(layers={"prepass": 0, "split": 1, "order": ["four", "three", "two", "one"]})
    turned.training("a", "b")
    assert work_of(turned).tensors == names("four")


def test_what_the_builder_remarked_is_shown_unless_the_job_names_the_order() -> None:
    model = MODEL.model_copy(update={"anatomy": Anatomy(remarks=("another order",))})
    play = play_of(model, layers={"prepass": 1})
    play.training("a", "b")
    round_of(play)
    assert "another order" in shown(play)[0]["warning"]
    play = play_of(model, layers={"prepass": 1, "order": list(LAYERS)})
    play.training("a", "b")
    round_of(play)
    assert "warning" not in shown(play)[0]


# The examination itself.


def test_only_matrices_are_compared_and_all_of_a_layer_together() -> None:
    play = play_of(layers={"prepass": 1})
    tasks = play.training("a", "b")
    for task in tasks.values():
        play.update(task)
    (order,) = play.orders(Examine).values()
    store = MemoryStore()
    arrays = [values(SPEC, 1), values(SPEC, 2)]
    arrays[1] = arrays[0] | {"two.weight": arrays[1]["two.weight"], "three.bias": arrays[1]["three.bias"]}
    held = [c.model for c in order.contributions]
    keep(store, order.current, SPEC, arrays[0])
    for key, array in zip(held, arrays, strict=True):
        keep(store, key, SPEC, array)
    rule = Divide()
    with Library(store.open) as library:
        found: Any = rule.examine(
            order.question, order.contributions, StoredEvidence(order, library, 0)
        ).facts
    eq3 = found["divergences"]["eq3"]
    assert [value == pytest.approx(0, abs=1e-12) for value in eq3] == [True, False, True, True]
    rows = np.stack([array["two.weight"].ravel().astype(np.float64) for array in arrays])
    assert eq3[1] == pytest.approx(divergences([rows], [(0, 1), (1, 0)], 2)["eq3"])
    assert (found["sites"], found["pairs"]) == (2, 2)


def test_the_scales_of_a_norm_are_not_compared_whatever_their_shape() -> None:
    scales = TensorInfo("one.norm.weight", "float32", (3, 3), Role.PARAM, 0, 1e-5)
    play = play_of(outline_of(ModelSpec((*SPEC.tensors, scales), LAYERS)), layers={"prepass": 1})
    for task in play.training("a", "b").values():
        play.update(task)
    (order,) = play.orders(Examine).values()
    asked: Any = order.question
    assert asked["layers"] == [[f"{name}.weight"] for name in LAYERS]


def test_an_examination_survives_the_snapshot() -> None:
    play = play_of(layers={"prepass": 1})
    for task in play.training("a", "b").values():
        play.update(task)
    (order,) = play.orders(Examine).values()
    kept: TypeAdapter[Order] = TypeAdapter(Order)
    assert kept.validate_json(kept.dump_json(order)) == order
    assert order.current in order.reads


def test_the_live_view_names_the_phase_and_what_is_warned_of() -> None:
    told = {"layers": {"phase": "feature", "warning": "no clear split"}}
    entry = VersionView(version=6, round=6, seconds=1.0, phase="feature", diagnostics=told)
    line = version_line(entry, JobView(job="j1", name="n", status="running", rounds_asked=9))
    assert line.startswith("round 6/9 (feature)")
    assert line.endswith("no clear split")


def test_the_defaults_are_those_of_the_specification() -> None:
    usual = {"prepass": 5, "split": None, "metric": "eq3", "decay": 0.9, "fine_lr": 0.5}
    chooser = {"choose": "raw", "min_ratio": 2.0, "margin": 0.8}
    assert Divide().model_dump().items() >= (usual | chooser | {"restart": False, "blocks": False}).items()
