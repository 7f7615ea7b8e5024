"""A site's policy: what it refuses, and why."""

import os
from pathlib import Path
from typing import Any

import pytest

from hansa.common.methods.ditto import DITTO
from hansa.common.rpc import task_codec
from hansa.common.site.policy import FREE, Policy, PolicyFile, read_policy
from hansa.common.values.errors import Forbidden, InvalidInput
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec, ValidationSpec
from hansa.common.values.tasks import Task, Terms, Train


def task(
    epochs: int = 4,
    steps: int = 0,
    batches: int = 0,
    app: str = "app.py:app",
    own_epochs: object = 0,
    **terms: Any,
) -> Task:
    own = LocalPluginSpec(name=DITTO, args={"lam": 0.1, "epochs": own_epochs})
    work = Train(
        model=ModelKey("j/v0"),
        version=0,
        epochs=epochs,
        steps=steps,
        batches=batches,
        batch_size=10,
        optimizer=OptimizerSpec(),
        plugins=(own,) if own_epochs else (),
    )
    said = Terms(**{"operator": "alice", "sites": 4, "together": 3} | terms)
    return Task(
        id=TaskId("j-1"),
        job=JobId("j"),
        site=SiteName("a"),
        round=1,
        app=app,
        seed=0,
        validation=ValidationSpec(),
        work=work,
        terms=said,
    )


@pytest.mark.parametrize(
    ("policy", "asked", "why"),
    [
        (Policy(apps=("other.py:app",)), task(), "'app.py:app' may not be used"),
        (Policy(apps=()), task(), "may not be used"),
        (Policy(operators=("bob",)), task(), "jobs of operator alice"),
        (Policy(operators=("bob",)), task(operator=""), "operator unknown"),
        (Policy(max_epochs=3), task(), "4 epochs"),
        (Policy(max_epochs=3), task(epochs=1, steps=31), "3.1 epochs"),  # 100 examples are 10 steps per epoch
        (Policy(min_sites=4), task(), "a model of 3 sites .*at least 4"),
        (Policy(min_sites=2), task(together=1), "a model of one site .*at least 2"),
        (Policy(max_epochs=0.2), task(epochs=1, batches=3), "0.3 epochs"),
        (Policy(max_epochs=0.2), task(epochs=1, batches=100), "1 epochs"),  # a window ends with the pass
        (Policy(max_epochs=3), task(epochs=2, own_epochs=2), "4 epochs"),  # on two models
        (Policy(max_epochs=3), task(epochs=1, steps=10, own_epochs=3), "4 epochs"),
        (Policy(), task(redistributes=True), "own model to other sites"),
    ],
)
def test_what_goes_beyond_it_is_refused_with_the_reason(policy: Policy, asked: Task, why: str) -> None:
    with pytest.raises(Forbidden, match=f"policy of site a refuses this job: .*{why}"):
        policy.require(asked, examples=100)


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (FREE, task(epochs=10_000, operator="", sites=1, redistributes=True)),
        (Policy(), task()),
        (Policy(apps=("app.py:app",), operators=("alice",), max_epochs=4, min_sites=3), task()),
        (Policy(max_epochs=3), task(epochs=100, steps=30)),
        (Policy(max_epochs=1), task(epochs=1, batches=1000)),
        (Policy(max_epochs=4), task(epochs=2, own_epochs=2)),
        (Policy(max_epochs=4), task(own_epochs="many")),  # which the plugin refuses
        (Policy(redistribute=True), task(redistributes=True)),
    ],
)
def test_what_it_allows_passes(policy: Policy, asked: Task) -> None:
    policy.require(asked, examples=100)


def test_terms_travel_with_the_task() -> None:
    asked = task(redistributes=True)
    assert task_codec.task_from_wire(task_codec.task_to_wire(asked)) == asked


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("max_epoch = 3", "max_epoch.*did you mean 'max_epochs'"),
        ("max_epochs = 0", "greater than 0"),
        ("min_sites = 'many'", "min_sites"),
        ("operators = 'alice'", "operators"),
        ("this is no toml", "line 1"),
    ],
)
def test_a_wrong_file_is_refused_by_key(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=why):
        read_policy(path)


def test_a_changed_file_counts_at_once_and_a_broken_one_allows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("min_sites = 2")
    held = PolicyFile(path)
    held.current().require(task(), 100)
    path.write_text("min_sites = 20")
    with pytest.raises(Forbidden, match="at least 20"):
        held.current().require(task(), 100)
    path.write_text("min_sites = ")
    for _ in range(2):
        with pytest.raises(Forbidden, match="nothing is allowed"):
            held.current()
    os.unlink(path)  # noqa: PTH108
    with pytest.raises(Forbidden, match="nothing is allowed"):
        held.current()
    path.write_text("")
    held.current().require(task(), 100)


@pytest.mark.parametrize(("written", "size"), [('"2GiB"', 2 << 30), ('"0"', 0), ("1000", 1000)])
def test_the_bound_of_what_plugins_keep_is_a_size(tmp_path: Path, written: str, size: int) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f"memory = {written}\n")
    policy = read_policy(path)
    policy.require_room(task(), size)
    with pytest.raises(
        Forbidden, match=r"policy of site a refuses this job: .*`memory` in the file of --policy"
    ):
        policy.require_room(task(), size + 1)


def test_without_a_word_about_it_plugins_may_keep_four_gibibytes() -> None:
    for policy in (Policy(), FREE):
        policy.require_room(task(), 4 << 30)
        with pytest.raises(Forbidden, match=r"arrays of 5 GiB at the site, and at most 4 GiB are allowed"):
            policy.require_room(task(), 5 << 30)


@pytest.mark.parametrize("wrong", ['"much"', "-1", "true", "[1]"])
def test_a_bound_that_is_no_size_is_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f"memory = {wrong}\n")
    with pytest.raises(InvalidInput, match=r"--policy .*memory: "):
        read_policy(path)
