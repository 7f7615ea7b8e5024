"""What server updates prepare for a merge, what parts ask of learners, and whom samplers have probed."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel, Field, JsonValue

from hansa.common.plugins.registry import register
from hansa.common.values.errors import PluginFailed
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Evaluate, Init, Probe, Train
from hansa.controller.plugin.arithmetic import MergeInfo, Moments, ServerUpdate
from hansa.controller.plugin.parts import Nothing, Sampler, Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.radfed import ByImportance
from tests.unit.engine.computed import Computed
from tests.unit.engine.play import Play, job_spec
from tests.unit.samples import values

ODD: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": [1.0, {"far": float("inf")}],
    "array": np.zeros(3),
    "whole": np.int64(3),
    "set": {1, 2},
    "deep": None,
    "large": [0] * 200_000,
    "text": "x" * 20_000,
}
for _ in range(30):
    ODD["deep"] = [ODD["deep"]]


class Calls(BaseModel):
    """What the server update was asked."""

    weights: list[list[float]] = []


@register("server", "prepared")
class Prepared(ServerUpdate[Calls]):
    """Adds to the proposal what it prepared: how many updates it has seen."""

    odd: str = Field("", description="what to prepare instead")

    def begin(self) -> Calls:
        """Begin before the first merge."""
        return Calls()

    def prepare(
        self, state: Calls, contributions: Sequence[Contribution], weights: np.ndarray, view: View
    ) -> JsonValue:
        """Return how many updates there have been, in a tuple."""
        assert len(contributions) == len(weights)
        state.weights.append(weights.tolist())
        total = sum(len(each) for each in state.weights)
        return ODD[self.odd] if self.odd else (total, {"version": view.version})  # type: ignore[return-value]

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Add the number."""
        assert isinstance(info.prepared, list)
        return proposal + float(str(info.prepared[0])), moments


@register("sample", "probing")
class Probing(Sampler):
    """Has sites probed that it should not."""

    wanted: tuple[str, ...] = Field((), description="whom")

    @property
    def probe(self) -> LocalPluginSpec:
        """Any plugin."""
        return LocalPluginSpec(name="importance")

    def to_probe(self, state: Nothing, view: View) -> Sequence[SiteName]:
        """Return anything."""
        return [SiteName(site) for site in self.wanted]

    def choose(
        self, state: Nothing, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return everybody."""
        return [site for site in view.sites if site not in exclude]


@register("weigh", "own-report")
class OwnReport(Weigher):
    """Weighs an update by what its own learner finds, and has every learner report more."""

    validates: ClassVar[bool] = True

    @property
    def plugins(self) -> tuple[LocalPluginSpec, ...]:
        """One that the sampler asks for as well, and another."""
        return (*ByImportance().plugins, LocalPluginSpec(name="starting_loss"))

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the number of validation examples."""
        return np.array([c.facts.evaluation.n if c.facts.evaluation else 0 for c in contributions], float)


def test_what_was_prepared_reaches_the_step_and_the_history() -> None:
    with Computed(server={"kind": "prepared"}, weigh={"kind": "examples"}) as play:
        play.begin("a", "b")
        for number in (1, 2, 3):
            y = values(play.model, number)
            for site, n in (("a", 3), ("b", 5)):
                play.answer(site, y, n_train=n)
            record = play.machine.state.history[-1]
            assert record.prepared == [2 * number, {"version": number - 1}]
            np.testing.assert_allclose(play.community()["layer.weight"], y["layer.weight"] + 2 * number)
        assert play.machine.memories["server"] == Calls(weights=[[3.0, 5.0]] * 3)
        assert play.again().state == play.machine.state
        play.save()
        restored = play.again()
        assert restored.state == play.machine.state
        assert restored.memories == play.machine.memories


def test_what_was_prepared_is_in_the_journal_even_if_the_plugin_would_now_prepare_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Computed(server={"kind": "prepared"}) as play:
        play.begin("a", "b")
        for site in ("a", "b"):
            play.answer(site, values(play.model, 1), n_train=3)
        before = play.machine.state.history[-1].prepared
        monkeypatch.setattr(Prepared, "prepare", lambda *_: [77, {}])
        assert play.again().state.history[-1].prepared == before == [2, {"version": 0}]


def test_a_merge_that_forgets_a_site_is_prepared_without_contributions() -> None:
    play = Play(server={"kind": "prepared"}, merge={"kind": "latest", "drop_on_leave": True})
    play.training("a", "b", "c")
    play.round()
    play.leave("c")
    plan = play.machine.state.plan
    assert plan is not None
    assert plan.prepared == [3, {"version": 1}]
    assert play.machine.memories["server"] == Calls(weights=[[10.0] * 3, []])


def test_nothing_is_prepared_for_a_merge_that_keeps_the_model_or_needs_no_step() -> None:
    play = Play(server={"kind": "prepared"}, weigh={"kind": "astray"})
    play.training("a", "b")
    play.round()
    assert play.machine.state.history[-1].still
    assert play.machine.state.history[-1].prepared is None
    assert play.machine.memories["server"] == Calls()


@register("weigh", "astray")
class Astray(Weigher):
    """Gives weights that are not finite."""

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return NaN."""
        return np.full(len(contributions), np.nan)


@pytest.mark.parametrize("odd", ODD)
def test_what_cannot_be_stored_is_blamed_on_the_server_update(odd: str) -> None:
    play = Play(server={"kind": "prepared", "odd": odd})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    with pytest.raises(PluginFailed, match="server 'prepared': it prepared"):
        play.update(tasks["b"])


def test_every_task_names_the_plugins_of_all_parts_once() -> None:
    words = {"weigh": {"kind": "own-report"}, "sample": {"kind": "importance", "fraction": 1.0}}
    task = Play(**words).training("a", "b")["a"]
    assert isinstance(task.work, Train)
    assert [plugin.name for plugin in task.work.plugins] == ["importance", "starting_loss"]


def test_a_weigher_that_needs_only_the_sites_own_reports_shows_no_model_to_other_sites() -> None:
    play = Play(weigh={"kind": "own-report"}, evaluate={"every": 1000})
    play.join("a", "b", role="evaluator")
    tasks = play.training("a", "b")
    for n, task in enumerate(tasks.values(), 1):
        assert isinstance(task.work, Train)
        assert task.work.validate_update
        play.update(task, own=Evaluation(n=n, loss_sum=0.0, confusion=((n, 0), (0, 0))))
    assert not play.tasks(Evaluate)
    plan = play.machine.state.plan
    assert plan is not None
    assert [member.weight for member in plan.added] == [1.0, 2.0]
    assert not play.machine.rule.redistributes
    assert compose(job_spec(rule="sync-dvw")).redistributes
    ordinary = Play().training("a", "b")["a"].work
    assert isinstance(ordinary, Train)
    assert not ordinary.validate_update


@pytest.mark.parametrize("wanted", [("a", "a"), ("nobody",)])
def test_a_sampler_that_has_nobody_or_somebody_twice_probed_is_blamed(wanted: tuple[str, ...]) -> None:
    play = Play(sample={"kind": "probing", "wanted": wanted})
    play.join("a", "b")
    with pytest.raises(PluginFailed, match="sample 'probing': it wants to probe"):
        play.update(play.tasks(Init)["a"])


def test_a_sampler_that_wants_nobody_probed_begins_the_round_at_once() -> None:
    play = Play(sample={"kind": "probing"})
    assert set(play.training("a", "b")) == {"a", "b"}
    assert not play.tasks(Probe)
