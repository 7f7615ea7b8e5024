"""FedSMB and FedMMB at the controller: their tasks, weights and refusals (fedmmb §2, §3)."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.job.check import parse_job
from hansa.common.job.spec import JobSpec
from hansa.common.job.training import TrainSpec
from hansa.common.values.errors import InvalidJob
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.fedmmb import Window
from tests.unit.engine.play import Play


def composed(**fields: Any) -> Composition:
    return compose(spec(**fields))


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"app": "app.py:app", **fields})


def window(**fields: Any) -> Window | None:
    found = composed(**fields).train
    return found if isinstance(found, Window) else None


# The composition.


@pytest.mark.parametrize(
    ("rule", "train", "batches"), [("fedsmb", {}, 1), ("fedmmb", {}, 20), ("fedmmb", {"batches": 5}, 5)]
)
def test_the_rules_are_windows_weighed_by_what_was_used(
    rule: str, train: dict[str, Any], batches: int
) -> None:
    made = composed(rule=rule, train=train)
    assert window(rule=rule, train=train) == Window(batches=batches)
    assert (made.pace.kind, made.weigh.kind, made.merge.kind, made.server.kind) == (
        "sync",
        "used",
        "mean",
        "plain",
    )


def test_one_batch_is_fedsmb() -> None:
    single, multiple = composed(rule="fedsmb"), composed(rule="fedmmb", train={"batches": 1})
    assert single.parts == multiple.parts


@pytest.mark.parametrize(
    ("fields", "weigh"),
    [
        ({"rule": "fedavg"}, "used"),
        ({"rule": "fedprox"}, "used"),
        ({"rule": "fedadam"}, "used"),
        ({"rule": "async-fedavg"}, "used"),
        ({"rule": "semisync-fedavg"}, "used"),
        ({"rule": "sync-dvw"}, "dvw"),
        ({"rule": "fedasync"}, "equal"),
        ({"rule": "median"}, "equal"),
        ({"rule": "radfed"}, "equal"),
        ({"rule": "divide"}, "equal"),
        ({"rule": "feddaf"}, "fusion"),
        ({"rule": "fedmmb", "weigh": {"kind": "equal"}}, "equal"),
        ({"rule": "fedavg", "weigh": {"kind": "examples"}}, "examples"),  # an explicit kind is kept
    ],
)
def test_windows_go_with_any_rule_and_rules_that_weigh_by_examples_weigh_by_those_used(
    fields: dict[str, Any], weigh: str
) -> None:
    rule = composed(train={"batches": 4}, **fields)
    assert (rule.weigh.kind, rule.epochs) == (
        weigh,
        1,
    )  # a window is gone through once, whatever the rule's own epochs
    assert window(train={"batches": 4}, **fields) == Window(batches=4)


def test_without_batches_nothing_changes() -> None:
    assert window(rule="fedavg") is None
    assert composed(rule="fedavg").weigh.kind == "examples"


# Refusals and warnings.


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"train": {"batches": 5, "epochs": 1}}, "give epochs or batches, not both"),
        ({"train": {"batches": 5, "epochs": 3}}, "give epochs or batches, not both"),
        ({"rule": "fedmmb", "train": {"epochs": 1}}, "train.epochs: rule fedmmb takes batches, not epochs"),
        ({"rule": "fedmmb", "train": {"epochs": 3}}, "train.epochs: rule fedmmb takes batches, not epochs"),
        ({"train": {"batches": 5, "until": {}}}, "train.until: does not go with train.batches"),
        (
            {"rule": "fedsmb", "train": {"until": {"vc_loss": 0}}},
            "train.until: does not go with train.batches",
        ),
        (
            {"rule": "async-dvw-adaptive", "train": {"batches": 5}},
            "train.until: does not go with train.batches",
        ),
        ({"train": {"batches": 0}}, "train.batches: input should be greater than or equal to 1"),
        ({"train": {"batches": 2.5}}, "train.batches"),
    ],
)
def test_what_makes_no_sense_with_windows_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        compose(parse_job({"app": "app.py:app", **fields}))


def test_a_job_with_batches_survives_being_written_and_read() -> None:
    given = spec(rule="fedmmb", train={"batches": 7})
    assert JobSpec.model_validate_json(given.model_dump_json()) == given
    assert parse_job(given.model_dump(mode="json")).train.batches == 7
    assert TrainSpec(epochs=3).model_dump()["epochs"] == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rule": "fedmmb", "train": {"batches": 9, "optimizer": {"kind": "adam"}}}, ["adam starts over"]),
        ({"rule": "fedmmb", "train": {"batches": 1, "optimizer": {"kind": "adamw"}}}, ["adamw starts over"]),
        ({"rule": "fedmmb", "train": {"batches": 10, "optimizer": {"kind": "adam"}}}, []),
        (
            {"rule": "fedsmb", "train": {"optimizer": {"momentum": 0.9}}},
            ["so it has no effect on a single batch"],
        ),
        ({"rule": "fedmmb", "train": {"batches": 2, "optimizer": {"momentum": 0.9}}}, []),
        ({"rule": "fedsmb", "train": {"keep_optimizer": True, "optimizer": {"momentum": 0.9}}}, []),
        ({"rule": "fedsmb", "train": {"keep_optimizer": True, "optimizer": {"kind": "adam"}}}, []),
        ({"rule": "fedmmb", "weigh": {"kind": "examples"}}, ["used counts those of its window"]),
        ({"rule": "fedavg", "train": {"optimizer": {"kind": "adam"}}}, []),
    ],
)
def test_settings_that_are_probably_mistakes_are_warned_of(fields: dict[str, Any], words: list[str]) -> None:
    given = spec(**fields)
    found = compose(given).warnings(given)
    assert len(found) == len(words)
    for (_, text), word in zip(found, words, strict=True):
        assert word in text


# Tasks.


def asked(play: Play) -> dict[str, tuple[int, str]]:
    works = {site: task.work for site, task in play.tasks(Train).items()}
    return {site: (work.batches, work.after) for site, work in works.items() if isinstance(work, Train)}


def test_tasks_ask_for_batches_and_name_the_sites_last_committed_update() -> None:
    play = Play(rule="fedmmb", train={"batches": 3}, pace={"rounds": 5})
    tasks = play.training("a", "b")
    assert asked(play) == {"a": (3, ""), "b": (3, "")}  # version 0, which one of them built, used no examples
    play.update(tasks["a"])
    play.fail(tasks["b"])
    play.merged()
    assert asked(play) == {"a": (3, tasks["a"].id), "b": (3, "")}
    second = play.tasks(Train)
    play.quarantine(second["a"])
    play.update(second["b"])
    play.merged()
    assert asked(play) == {"a": (3, tasks["a"].id), "b": (3, second["b"].id)}


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_was_committed_survives_a_crash_of_the_controller(snapshot: bool) -> None:
    play = Play(rule="fedsmb", pace={"rounds": 5})
    play.training("a", "b")
    for turn in range(3):
        play.round()
        if snapshot and turn == 1:
            play.save()
    again = play.again()
    assert again.state == play.machine.state
    assert again.memories == play.machine.memories


def test_an_update_that_is_too_stale_to_be_merged_has_used_its_batches_all_the_same() -> None:
    """Its site holds a receipt and has moved on, so the controller must say so, too."""
    play = Play(rule="fedasync", train={"batches": 2}, pace={"updates": 50}, server={"max_staleness": 1})
    slow = play.training("a", "b")["b"]
    for _ in range(2):
        play.update(play.tasks(Train)["a"])
        play.merged()
    play.update(slow)
    assert asked(play)["b"] == (2, slow.id)


def test_an_asynchronous_update_counts_by_the_examples_used() -> None:
    play = Play(rule="async-fedavg", train={"batches": 2}, pace={"updates": 50})
    tasks = play.training("a", "b")
    play.update(tasks["a"], n_train=80, n_used=8)
    play.merged()
    assert play.machine.state.history[-1].contributions == {SiteName("a"): 8.0}


@pytest.mark.parametrize(("weigh", "wanted"), [(None, (10.0, 3.0)), ({"kind": "examples"}, (23.0, 20.0))])
def test_a_window_weighs_what_it_used_unless_the_job_says_otherwise(
    weigh: dict[str, str] | None, wanted: tuple[float, float]
) -> None:
    play = Play(rule="fedmmb", **({"weigh": weigh} if weigh else {}))
    tasks = play.training("a", "b")
    play.update(tasks["a"], n_train=23, n_used=10)
    play.update(tasks["b"], n_train=20, n_used=3)
    play.merged()
    contributions = play.machine.state.history[-1].contributions
    assert (contributions[SiteName("a")], contributions[SiteName("b")]) == wanted


def test_a_pacer_that_counts_steps_says_how_many_batches() -> None:
    play = Play(rule="semisync-fedavg", train={"batches": 2}, pace={"rounds": 3})
    play.training("a", "b")
    play.round()
    works = [task.work for task in play.tasks(Train).values()]
    assert all(isinstance(work, Train) and work.steps > 0 and work.batches == 2 for work in works)


def test_a_rule_shows_how_many_batches_its_tasks_have() -> None:
    shown = CliRunner().invoke(hansa, ["rules", "show", "fedmmb"]).output
    assert "weigh: used" in shown
    assert "    batches = 20" in shown
    single = CliRunner().invoke(hansa, ["rules", "show", "fedsmb", "--json"]).output
    assert json.loads(single)["train"] == {"batches": 1}
    assert "batches" not in CliRunner().invoke(hansa, ["rules", "show", "fedavg"]).output
