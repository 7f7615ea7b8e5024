"""FedDAF as a rule: when models are looked at, what follows for the weights, and what operators see of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hansa.common.job.spec import JobSpec
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.plugins.registry import register
from hansa.common.ui.job.groups import print_groups
from hansa.common.values.errors import InvalidJob
from hansa.common.values.history import VersionView
from hansa.common.values.ids import SiteName, update_key
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import JobView
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Examine
from hansa.controller.plugin.outline import outline_of
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules import feddaf
from hansa.controller.rules.fusion.records import Fusing
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.work.drafts import Drafts
from hansa.controller.work.examine import examine
from tests.unit.engine.play import JOB, Play, started
from tests.unit.samples import keep

CHANNELS = 400
SPEC = ModelSpec(
    (
        TensorInfo("conv.weight", "float32", (8, 9), Role.PARAM),
        *(
            TensorInfo(f"bn.{name}", "float32", (CHANNELS,), role, 0, 1e-5)
            for name, role in (
                *(("weight", Role.PARAM), ("bias", Role.PARAM)),
                *(("running_mean", Role.STAT), ("running_var", Role.STAT)),
            )
        ),
        TensorInfo("bn.num_batches_tracked", "int64", (), Role.COUNT),
    )
)
BARE = SPEC.subset(["conv.weight"])
SITES = tuple("abcdefghij")  # a … h are alike, i and j are others
FEW = {*"ij"}


def model_of(
    site: str, number: int, spec: ModelSpec = SPEC, few: bool | None = None
) -> dict[str, np.ndarray]:
    """Return what a site would train: its group's statistics with noise of its own."""
    group = np.random.default_rng(site in FEW if few is None else few)
    noise = np.random.default_rng([ord(site[0]), number])
    arrays: dict[str, np.ndarray] = {}
    for info in spec.tensors:
        if info.role is Role.COUNT:
            arrays[info.name] = np.array(number)
        else:
            shift = group.normal(0, 1, info.shape) * (group.random(info.shape) < 0.5)
            numbers = shift + noise.normal(0, 1, info.shape)
            arrays[info.name] = (np.exp(numbers) if info.name.endswith("var") else numbers).astype(np.float32)
    return arrays


class Federation(Play):
    """A job whose models are in a store, so that examinations are carried out in earnest."""

    def __init__(self, model: ModelSpec = SPEC, layers: Policy[Any] | None = None, **fields: Any) -> None:
        words = {
            "rule": "feddaf",
            "sites": {"min": 2},
            "evaluate": {"every": 1000},
            "pace": {"rounds": 100},
            **fields,
        }
        super().__init__(**words | {"weigh": {"backend": "em"} | words.get("weigh", {})})
        if layers:
            rule = replace(self.machine.rule, layers=layers)
            self.machine = Machine(JOB, self.spec, rule, 0.0)
            self.machine.start()
        self.store, self.model, self.examinations = MemoryStore(), model, 0

    def begin(self, *sites: str) -> None:
        """Bring the job to its first tasks."""
        self.training(*(sites or SITES))
        assert self.machine.state.current is not None
        keep(self.store, self.machine.state.current, self.model, model_of("z", 0, self.model))

    def answer(self, task: Task, **facts: Any) -> list[Effect]:
        """Let a site's update arrive, and examinations be made; return what follows."""
        assert isinstance(task.work, Train)
        number = int(task.id.rpartition("-")[2])
        carried = self.model.subset(task.work.tensors or self.model.names)
        keep(self.store, update_key(task.id), carried, model_of(task.site, number, self.model))
        effects = self.update(task, **facts)
        return effects + self.examine(effects)

    def examine(self, effects: list[Effect], fails: str = "") -> list[Effect]:
        """Carry out the examinations that are asked for, or let them fail."""
        follow: list[Effect] = []
        for number, order in started(effects, Examine).items():
            self.examinations += 1
            if fails:
                follow += self.order_failed(number, fails)
                continue
            weigher, drafts = self.machine.rule.weigh, Drafts(self.store)
            result, _ = examine(JOB, number, order, weigher, self.store, drafts, 1 << 26)
            follow += self.done(number, result)
        return follow

    def commit(self) -> dict[str, float]:
        """Let the merge under way be done, and those after it; return what its updates counted."""
        plan = self.machine.state.plan
        assert plan is not None
        effects = self.merged()
        keep(self.store, f"{JOB}/v{plan.version}", self.model, model_of("z", plan.version, self.model))
        self.examine(effects)
        return {member.site: member.weight for member in plan.added}

    def play_round(self, missing: str = "", steps: Mapping[str, int] | None = None) -> dict[str, float]:
        """Let all but some sites answer, and their updates be merged; return their weights."""
        for site, task in self.tasks(Train).items():
            if site in missing:
                self.examine(self.fail(task))
            else:
                self.answer(task, steps=(steps or {}).get(site, 3))
        return self.commit()

    @property
    def told(self) -> dict[str, Any]:
        """What operators see of the newest version's weights."""
        return dict(self.machine.state.history[-1].diagnostics["weigh"])

    @property
    def memory(self) -> Fusing:
        memory = self.machine.memories["weigh"]
        assert isinstance(memory, Fusing)
        return memory


def grouped(told: Mapping[str, Any]) -> dict[str, int]:
    return {site: int(np.argmax(row)) for site, row in told["allocation"].items()}


# Weights.


@pytest.mark.parametrize("backend", ["em", "vae"])
def test_the_few_count_more_than_their_number_and_operators_see_who_belongs_to_whom(backend: str) -> None:
    job = Federation(weigh={"backend": backend})
    job.begin()
    weights = job.play_round()
    told = job.told
    assert {site for site, group in grouped(told).items() if group} == FEW
    assert told["components"] == 2
    assert sum(told["shares"]) == pytest.approx(1)
    assert told["shares"] == pytest.approx(np.exp([0.8, 0.2]) / np.exp([0.8, 0.2]).sum(), abs=0.02)
    assert (told["fit"], told["kind"], told["numbers"], told["rank"]) == (1, "norm", 4 * CHANNELS, 1)
    assert 0 < told["edge"] < told["top"]
    assert (told["why"], told["warning"]) == ("", "")
    assert sum(told["weights"].values()) == pytest.approx(1)
    assert {site: weight / 10 for site, weight in weights.items()} == pytest.approx(told["weights"])
    assert weights["i"] == pytest.approx(weights["j"], rel=0.05)
    assert weights["i"] > 1.5 > weights["a"] > 0.5


def test_without_groups_the_weights_are_those_of_fedavg_to_the_last_bit() -> None:
    job = Federation(weigh={"base": "examples"})
    job.begin(*"abcdef")
    for number, task in enumerate(job.tasks(Train).values()):
        job.answer(task, n_train=10 + number)
    assert job.commit() == {site: 10.0 + number for number, site in enumerate("abcdef")}
    assert "noise" in job.told["why"]
    assert job.told["components"] == 1


def test_three_sites_count_as_they_are_and_the_version_says_so() -> None:
    job = Federation()
    job.begin("a", "i", "j")
    assert job.play_round() == {"a": 1.0, "i": 1.0, "j": 1.0}
    assert job.told["why"] == "3 contributions; groups are sought from 4 on"


def test_base_weights_may_be_examples() -> None:
    job = Federation(weigh={"base": "examples"})
    job.begin()
    for task in job.tasks(Train).values():
        job.answer(task, n_train=40 if task.site == "i" else 10)
    weights = job.commit()
    assert weights["i"] == pytest.approx(4 * weights["j"])
    assert sum(weights.values()) == pytest.approx(130)


@pytest.mark.parametrize("idle", ["a", "i", "".join(SITES)], ids=["of many", "of few", "all"])
def test_an_update_that_used_nothing_counts_nothing_and_groups_are_found_all_the_same(idle: str) -> None:
    job = Federation(weigh={"base": "used"})
    job.begin()
    for task in job.tasks(Train).values():
        job.answer(task, n_used=0 if task.site in idle else 10)
    weights = job.commit()
    assert {site for site, weight in weights.items() if not weight} == set(idle)
    assert "no fit" not in job.told["warning"]
    if len(idle) == 1:
        assert {site for site, group in grouped(job.told).items() if group} == FEW


@pytest.mark.parametrize("adjust", ["steps", "none"])
def test_what_follows_from_the_number_of_steps_makes_no_groups(adjust: str) -> None:
    job = Federation(weigh={"adjust": adjust})
    job.begin()
    for number, task in enumerate(job.tasks(Train).values()):
        steps, arrays = 3 + 5 * (7 * number % 10), model_of(task.site, 1)
        for name in ("bn.weight", "bn.bias", "bn.running_mean"):
            arrays[name] += np.float32(8 * np.log(steps)) * np.random.default_rng(5).normal(
                size=CHANNELS
            ).astype("f4")
        keep(job.store, update_key(task.id), SPEC, arrays)
        job.examine(job.update(task, steps=steps))
    job.commit()
    assert ({site for site, group in grouped(job.told).items() if group} == FEW) == (adjust == "steps")


# When a fit is made.


def test_a_fit_holds_for_ten_rounds() -> None:
    job = Federation()
    job.begin()
    first = job.play_round()
    for _ in range(9):
        assert job.play_round() == first
        assert job.told == {"fit": 1, "of": 1}
    assert job.examinations == 1
    job.play_round()
    assert job.told["fit"] == 2
    assert job.examinations == 2


def test_without_memory_another_set_of_sites_is_another_fit() -> None:
    job = Federation(weigh={"memory": False})
    job.begin()
    job.play_round()
    job.play_round(missing="a")
    assert job.told["fit"] == 2
    assert "a" not in job.told["weights"]
    job.play_round(missing="a")
    assert job.told == {"fit": 2, "of": 2}
    assert not job.machine.state.kept.get("weigh")


def test_models_that_travelled_are_grouped_as_slots_and_anew_for_every_merge() -> None:
    job = Federation(pace={"kind": "redistribute", "rounds": 3, "hops": 2, "divergence": "none"})
    job.begin()
    for fit in (1, 2):
        for _ in range(2):
            for task in list(job.tasks(Train).values()):
                job.answer(task)
        assert len(job.commit()) == len(SITES)
        assert job.told["fit"] == fit
        assert set(job.told["weights"]) == {f"slot {number}" for number in range(1, len(SITES) + 1)}
    assert not job.machine.state.kept.get("weigh")
    ((where, why),) = job.machine.rule.warnings(job.spec)
    assert (where, "rarely useful" in why) == (("weigh",), True)


def test_a_site_that_is_called_like_a_slot_is_not_taken_for_it() -> None:
    pace = {"kind": "redistribute", "rounds": 2, "hops": 2, "divergence": "none", "retries": 0}
    sites = ("a", "b", "c", "d", "slot-2")
    job = Federation(pace=pace, sites={"min": 5}, weigh={"base": "examples"})
    job.begin(*sites)
    first = job.tasks(Train)
    own = first["slot-2"].slot  # the model that stays at the site, for nobody trains it in the second hop
    assert own != 2
    for site, task in first.items():
        job.answer(task, n_train=1000 if site == "slot-2" else 10)
    for task in list(job.tasks(Train).values()):
        if task.slot == own:
            job.examine(job.fail(task))
        else:
            job.answer(task)
    plan = job.machine.state.plan
    assert plan is not None
    weights = {member.slot: member.weight for member in plan.added}
    job.commit()
    assert set(job.told["weights"]) == {
        "slot-2",
        *(f"slot {number}" for number in range(1, 6) if number != own),
    }
    assert weights[own] > 10 * weights[2]


def test_with_memory_a_missing_site_takes_part_with_its_last_update() -> None:
    job = Federation(weigh={"refit": 3})
    job.begin()
    job.play_round()
    assert set(job.machine.state.kept["weigh"]) == set(SITES)
    without = job.play_round(missing="j")
    assert job.told == {"fit": 1, "of": 1}
    assert set(without) == set(SITES) - {"j"}
    assert job.examinations == 2, "what is there is remembered while somebody is missing"
    job.play_round()
    assert job.examinations == 2
    again = job.play_round(missing="i")
    assert job.told["fit"] == 2
    assert {site for site, group in grouped(job.told).items() if group} == FEW
    assert tuple(job.told["weights"]) == SITES, (
        "always in the order of sites, because a fit's bits depend on it"
    )
    assert set(again) == set(SITES) - {"i"}


def test_with_sampling_every_site_that_was_seen_takes_part() -> None:
    job = Federation(sample={"kind": "uniform", "fraction": 0.4})
    job.begin()
    seen: set[str] = set()
    while seen != set(SITES):
        seen |= set(job.play_round())
    assert set(job.told["weights"]) == set(SITES)
    assert {site for site, group in grouped(job.told).items() if group} == FEW


def test_a_site_that_is_gone_is_forgotten() -> None:
    job = Federation()
    job.begin()
    job.play_round()
    job.leave("j")
    for task in [task for site, task in job.tasks(Train).items() if site != "j"]:
        job.answer(task)
    job.commit()
    assert job.told["fit"] == 2
    assert job.memory.tried == tuple(site for site in SITES if site != "j")
    assert set(job.machine.state.kept["weigh"]) == set(job.memory.known) == set(SITES) - {"j"}


def test_a_newcomer_that_no_fit_has_seen_has_its_base_weight() -> None:
    job = Federation()
    job.begin()
    before = job.play_round()
    job.join("k")
    assert job.play_round() == before
    effects: list[Effect] = []
    for task in job.tasks(Train).values():
        effects += job.update(task)
    job.examine(effects, fails="out of memory")
    assert job.commit() == before | {"k": 1.0}


# Groups that a later fit does not find again.


class Fading(Federation):
    """A job whose groups are there in the rounds that are named, and cannot be seen in others."""

    def __init__(self, seen: set[int], **weigh: Any) -> None:
        super().__init__(weigh={"refit": 1, **weigh})
        self.seen, self.rounds = seen, 0

    def play_round(self, missing: str = "", steps: Mapping[str, int] | None = None) -> dict[str, float]:
        """Let models differ by noise alone, unless the groups are to be seen."""
        self.rounds += 1
        for site, task in self.tasks(Train).items():
            if site in missing:
                self.examine(self.fail(task))
                continue
            arrays = model_of(site, self.rounds, few=site in FEW and self.rounds in self.seen)
            keep(self.store, update_key(task.id), SPEC, arrays)
            self.examine(self.update(task))
        return self.commit()


def test_groups_that_a_fit_does_not_find_again_are_believed_for_two_more_fits() -> None:
    job = Fading({1})
    job.begin()
    first = job.play_round()
    assert first["i"] > 1.5
    for lapse in (1, 2):
        assert job.play_round() == first
        told = job.told
        assert (told["fit"], told["of"], told["kept"], told["components"]) == (lapse + 1, 1, lapse, 1)
        assert told["warning"].startswith(
            f"the fit of version 1, with 2 groups, stays in use ({lapse} of 2 times): "
        )
        assert told["why"]
        assert told["why"] in told["warning"]
        assert "allocation" not in told, "the groups that are shown are those that count"
    assert job.play_round() == dict.fromkeys(SITES, 1.0), "the third time, one group is believed"
    assert (job.told["fit"], job.told["components"], job.told["warning"]) == (4, 1, "")
    assert job.play_round() == dict.fromkeys(SITES, 1.0)
    assert "kept" not in job.told, "there is nothing left to be kept"


def test_groups_that_are_found_again_begin_anew() -> None:
    job = Fading({1, 3, 6})
    job.begin()
    kept = []
    for _ in range(10):
        weights = job.play_round()
        kept.append(job.told.get("kept", 0))
        assert (weights["i"] > 1.5) is (job.rounds < 9)
    assert kept == [0, 1, 0, 1, 2, 0, 1, 2, 0, 0]


@pytest.mark.parametrize(("patience", "kept"), [(0, 0), (1, 1), (4, 4)])
def test_how_often_they_are_kept_is_the_jobs_choice(patience: int, kept: int) -> None:
    job = Fading({1}, patience=patience)
    job.begin()
    first = job.play_round()
    weights = [job.play_round() for _ in range(5)]
    assert [each == first for each in weights] == [True] * kept + [False] * (5 - kept)


def test_weights_that_are_kept_are_restricted_to_the_sites_that_are_there() -> None:
    job = Fading({1}, memory=False)
    job.begin()
    first = job.play_round()
    job.join("k")
    assert job.play_round(missing="b") == {site: weight for site, weight in first.items() if site != "b"}
    assert job.told["kept"] == 1
    assert job.play_round() == first | {"k": 1.0}, "a site without a weight has its base weight"
    assert job.told["kept"] == 2


def test_what_is_kept_survives_the_snapshot() -> None:
    job = Fading({1})
    job.begin()
    job.play_round()
    job.play_round()
    assert Fusing.model_validate_json(job.memory.model_dump_json()) == job.memory
    assert (job.memory.groups, job.memory.lapses, job.memory.version) == (2, 1, 1)


def test_slots_are_other_models_in_every_merge_so_their_weights_are_not_kept() -> None:
    job = Federation(pace={"kind": "redistribute", "rounds": 3, "hops": 2, "divergence": "none"})
    job.begin()
    for seen in (True, False):
        for _ in range(2):
            for task in list(job.tasks(Train).values()):
                arrays = model_of(task.site, task.slot, few=seen and task.slot > 8)
                keep(job.store, update_key(task.id), SPEC, arrays)
                job.examine(job.update(task))
        weights = job.commit()
        assert (job.told["components"] == 2) is seen
        assert "kept" not in job.told
    assert set(weights.values()) == {1.0}


# Trouble.


def test_a_fit_that_fails_leaves_the_last_one_in_use_with_a_warning() -> None:
    job = Federation(weigh={"refit": 1})
    job.begin()
    first = job.play_round()
    effects: list[Effect] = []
    for task in job.tasks(Train).values():
        effects += job.update(task)
    late = "the examination of updates by weigh 'fusion' took longer than 10 s"
    job.examine(effects, fails=late)
    assert job.commit() == first
    said = f"no fit was made, the fit of version 1 stays in use: {late}"
    assert job.told == {"fit": 2, "of": 1, "warning": said}


def test_a_first_fit_that_fails_leaves_base_weights() -> None:
    job = Federation()
    job.begin()
    effects: list[Effect] = []
    for task in job.tasks(Train).values():
        effects += job.update(task)
    job.examine(effects, fails="no memory")
    assert job.commit() == dict.fromkeys(SITES, 1.0)
    said = "no fit was made, base weights are used: no memory"
    assert job.told == {"fit": 1, "of": 0, "warning": said}


def test_a_fit_that_fails_is_tried_again_soon_but_less_and_less_often() -> None:
    job = Federation(weigh={"refit": 10})
    job.begin()
    tried = []
    for version in range(1, 30):
        effects: list[Effect] = []
        for task in job.tasks(Train).values():
            effects += job.update(task)
        if job.examine(effects, fails="too slow"):
            tried.append(version)
        job.commit()
    assert tried == [1, 2, 4, 8, 16, 26]
    for _ in range(7):
        assert job.memory.failures == 6
        job.play_round()
    assert (job.told["fit"], job.memory.failures) == (7, 0)


def test_a_merge_waits_as_long_as_the_job_says() -> None:
    assert (
        compose(JobSpec(app="a.py:a", rule="feddaf", weigh={"time_limit": 3})).weigh.examination_seconds == 3
    )


def test_a_model_without_normalisation_layers_is_described_by_its_weights() -> None:
    job = Federation(model=BARE)
    job.begin()
    job.play_round()
    assert job.told["kind"] == "weights"
    assert "no normalisation layer" in job.told["warning"]


UNTOLD = ModelSpec(tuple(replace(info, norm=None) for info in SPEC.tensors))  # nobody said which are norms


@pytest.mark.parametrize(
    ("stats", "model", "refused"),
    [("norm", BARE, True), ("norm", SPEC, False), ("norm", UNTOLD, False), ("auto", BARE, False)],
)
def test_a_job_that_insists_on_normalisation_layers_fails_without_them_before_a_site_trains(
    stats: str, model: ModelSpec, refused: bool
) -> None:
    job = Federation(model=model, weigh={"stats": stats})
    job.outline = outline_of(model)
    assert bool(job.training(*SITES)) is not refused
    why = "weigh.stats: the model has no normalisation layer; use weights"
    assert (job.machine.state.status, job.machine.state.reason) == (
        ("failed", why) if refused else ("running", "")
    )


def test_statistics_that_are_no_numbers_leave_base_weights_and_are_not_remembered() -> None:
    job = Federation()
    job.begin()
    for site, task in job.tasks(Train).items():
        arrays = model_of(site, 1)
        if site == "c":
            arrays["bn.running_var"] = -arrays["bn.running_var"]
        keep(job.store, update_key(task.id), SPEC, arrays)
        job.examine(job.update(task))
    assert job.commit() == dict.fromkeys(SITES, 1.0)
    assert job.told["why"] == job.told["warning"] == "statistics of 1 of 10 contributions are not finite"
    assert set(job.memory.known) == set(SITES) - {"c"}


# Restarts and order.


def test_a_restart_resumes_exactly() -> None:
    job = Federation(sample={"kind": "uniform", "fraction": 0.5})
    job.begin()
    for number in range(6):
        job.play_round()
        if number == 3:
            job.save()
    again = job.again()
    assert again.state == job.machine.state
    assert again.memories == job.machine.memories


def test_the_order_in_which_updates_arrive_does_not_matter() -> None:
    found = []
    for turn in (1, -1):
        job = Federation(weigh={"backend": "vae"})
        job.begin()
        for task in list(job.tasks(Train).values())[::turn]:
            job.answer(task)
        weights = job.commit()
        found.append(({site: weights[site] for site in SITES}, job.told))
    assert found[0] == found[1]


def test_very_many_sites_are_compared_by_fewer_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.controller.rules.fusion.grouping.MOST_NUMBERS", 6000)
    job = Federation()
    job.begin()
    job.play_round()
    assert job.told["numbers"] == 600
    assert {site for site, group in grouped(job.told).items() if group} == FEW


# Without rounds; partial updates; what is refused.


@register("layers", "halves")
class Halves(Policy):
    """Tasks ask for the normalisation layer and for the rest in turn."""

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        norm = tuple(name for name in SPEC.names if name.startswith("bn."))
        half = norm if (view.version // 6) % 2 else ("conv.weight",)
        return work.model_copy(update={"tensors": half})


def counted(job: Federation) -> dict[str, float]:
    """Return what counts in the newest model."""
    return {site: held[0].weight for site, held in sorted(job.machine.state.members.items())}


def test_without_rounds_every_new_fit_weighs_all_that_is_remembered_anew() -> None:
    job = Federation(pace={"kind": "async", "updates": 50}, merge={"kind": "latest"})
    job.begin()
    for task in list(job.tasks(Train).values()):
        job.answer(task)
        job.commit()
    assert counted(job).keys() == set(SITES)
    assert set(job.told["weights"]) == set(SITES)
    assert {site for site, group in grouped(job.told).items() if group} == FEW
    total = sum(counted(job).values())
    assert {site: w / total for site, w in counted(job).items()} == pytest.approx(job.told["weights"])
    record = job.machine.state.history[-1]
    assert set(record.contributions) == {"j"}, "history tells of what is new"
    job.answer(job.tasks(Train)["a"])
    before = counted(job)
    job.commit()
    assert job.told == {"fit": 10, "of": 10}
    assert counted(job) == before
    again = job.again()
    assert again.state == job.machine.state


def test_partial_updates_are_read_over_the_model_that_they_started_from() -> None:
    job = Federation(
        pace={"kind": "async", "updates": 90},
        merge={"kind": "latest"},
        weigh={"refit": 1},
        layers=Halves(),
    )
    job.begin(*"abcdij")
    for _ in range(3):
        for site in "abcdij":
            job.answer(job.tasks(Train)[site])
            job.commit()
    assert {len(held) for held in job.machine.state.members.values()} == {2}, (
        "norms from one update, the rest of another"
    )
    for held in job.machine.state.members.values():
        assert len({member.weight for member in held}) == 1, "whatever is new, all of a site weighs the same"
    assert job.told["numbers"] == 4 * CHANNELS
    again = job.again(Machine(JOB, job.spec, job.machine.rule, 0.0))
    assert again.state == job.machine.state


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidJob) as refused:
        compose(JobSpec.model_validate({"app": "a.py:a", "rule": "feddaf", **fields}))
    return str(refused.value)


def test_what_makes_no_sense_is_refused() -> None:
    assert "use merge latest" in refusal(pace={"kind": "async"}, merge={"kind": "incremental"})
    assert "use merge latest" in refusal(pace={"kind": "async"})
    assert "weigh.memory: must be true without rounds" in refusal(
        pace={"kind": "async"}, merge={"kind": "latest"}, weigh={"memory": False}
    )
    assert "does not go with" in refusal(merge={"kind": "median"})
    compose(JobSpec(app="a.py:a", rule="feddaf", pace={"kind": "async"}, merge={"kind": "latest"}))
    compose(JobSpec(app="a.py:a", rule="feddaf", server={"kind": "adam"}, local={"kind": "proximal"}))


# What people see.


def shown(job: Federation, capsys: pytest.CaptureFixture[str]) -> str:
    history = [
        VersionView(version=r.version, round=r.round, seconds=0, diagnostics=r.diagnostics)
        for r in job.machine.state.history
    ]
    print_groups(JobView(job="j", name="n", status="running", history=tuple(history)))
    return capsys.readouterr().out


def test_people_see_who_is_in_which_group(capsys: pytest.CaptureFixture[str]) -> None:
    job = Federation()
    job.begin()
    assert shown(job, capsys) == ""
    job.play_round()
    job.play_round()
    lines = shown(job, capsys).splitlines()
    assert lines[1] == "groups, as of version 1:"
    assert [line.split() for line in lines[-2:]] == [
        ["1", "64.6%", *(f"{site}," for site in "abcdefg"), "h"],
        ["2", "35.4%", "i,", "j"],
    ]


def test_people_see_why_there_are_no_groups(capsys: pytest.CaptureFixture[str]) -> None:
    job = Federation()
    job.begin("a", "b")
    job.play_round()
    said = "groups, as of version 1: none, 2 contributions; groups are sought from 4 on"
    assert shown(job, capsys).strip() == said


def test_the_defaults_are_those_of_the_specification() -> None:
    usual = {"backend": "vae", "stats": "auto", "base": "equal", "adjust": "steps", "memory": True}
    numbers = {
        "max_components": 15,
        "min_clients": 2,
        "theta": 1.0,
        "max_boost": 4.0,
        "refit": 10,
        "time_limit": 10.0,
    }
    assert feddaf.Fusion().model_dump().items() >= (usual | numbers).items()
