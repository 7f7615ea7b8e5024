"""Models that travel from site to site: invariants of RADFed, restarts, partial updates, refused jobs."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hansa.common.torch.seeding import task_seed
from hansa.common.values.errors import InvalidJob, PluginFailed
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.rulebook.compose import compose
from tests.unit.engine import evaluated_updates
from tests.unit.engine.play import Play, job_spec, sent
from tests.unit.engine.travel import (
    FIRST,
    SITES,
    SPEC,
    Arrays,
    Travel,
    constant,
    digest_of,
    hop_of,
    noise,
    radfed,
    sync,
    trip_of,
)

assert evaluated_updates  # importing it registers its plugins


# Invariants (radfed §8).


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_one_hop_it_is_a_synchronous_round_with_equal_weights_bit_for_bit(seed: int) -> None:
    one = Travel(noise, chance=1, seed=seed, **radfed(rounds=3, hops=1)).run(*SITES, first=FIRST)
    other = Travel(noise, chance=2, seed=seed, **sync(rounds=3)).run(*SITES, first=FIRST)
    assert [r.digest for r in one.machine.state.history] == [r.digest for r in other.machine.state.history]
    assert Counter(t.site for t in one.tasks_given) == Counter(t.site for t in other.tasks_given)
    assert not one.machine.rule.redistributes
    assert one.machine.state.steps == other.machine.state.steps


def test_one_slot_is_sequential_training_bit_for_bit() -> None:
    play = Travel(noise, **radfed(rounds=2, hops=5, fraction=0.01)).run(*SITES, first=FIRST)
    assert len(play.tasks_given) == 10
    model: Arrays = FIRST
    for task in play.tasks_given:
        model = noise(model, task)
    assert play.digest == digest_of(SPEC, model)
    assert len({task_seed(task) for task in play.tasks_given}) == 10


def test_every_hop_has_as_many_different_sites_as_there_are_slots_and_every_slot_once() -> None:
    play = Travel(noise, **radfed(rounds=3, hops=4)).run(*SITES, first=FIRST)
    assert len(play.tasks_given) == 3 * 4 * 4
    hops = Counter((task.round, task.hop) for task in play.tasks_given)
    assert set(hops) == {(t, s) for t in (1, 2, 3) for s in (1, 2, 3, 4)}
    for at in hops:
        there = [task for task in play.tasks_given if (task.round, task.hop) == at]
        assert len({task.site for task in there}) == 4
        assert sorted(task.slot for task in there) == [1, 2, 3, 4]
        assert {task.turn for task in there} == {(at[0] - 1) * 4 + at[1]}  # what schedules count
    drawn = [
        frozenset(task.site for task in play.tasks_given if (task.round, task.hop) == at)
        for at in sorted(hops)
    ]
    assert len(set(drawn)) > 6, "the same sites are drawn every time"
    assert [len(record.hops) for record in play.machine.state.history] == [0, 4, 4, 4]
    for record in play.machine.state.history[1:]:
        for hop in record.hops:
            at_slot = {
                t.slot: t.site for t in play.tasks_given if (t.round, t.hop) == (record.round, hop.hop)
            }
            assert hop.sites == [at_slot[slot] for slot in (1, 2, 3, 4)]


@pytest.mark.parametrize("sample", [{"kind": "all"}, {"kind": "importance", "fraction": 1.0}])
def test_with_all_sites_drawn_models_still_change_places(sample: dict[str, Any]) -> None:
    play = Travel(noise, **radfed(rounds=1, hops=6) | {"sample": sample}).run(*SITES, first=FIRST)
    for slot in range(1, 9):
        assert len({task.site for task in play.tasks_given if task.slot == slot}) > 2


@pytest.mark.parametrize("scale", [1e-9, 1.0, 10.0, 1e9])
@pytest.mark.parametrize("slots", [1, 3, 4, 7, 8])
def test_sites_that_change_nothing_leave_the_model_as_it_is(slots: int, scale: float) -> None:
    first = {name: (array * scale).astype(array.dtype) for name, array in FIRST.items()}
    play = Travel(lambda arrays, _: arrays, **radfed(rounds=9, fraction=slots / 8)).run(*SITES, first=first)
    assert play.machine.state.version == 9
    assert len(play.merges[0].added) == slots
    for name, array in play.model.items():
        np.testing.assert_array_equal(array, first[name])


def test_constants_add_up() -> None:
    play = Travel(constant, **radfed(rounds=2, hops=3)).run(*SITES, first=FIRST)
    total = sum(int(task.site[1:]) for task in play.tasks_given) / 4
    np.testing.assert_allclose(play.model["b"], FIRST["b"] + total, rtol=1e-9)
    assert play.machine.state.steps == 3 * len(play.tasks_given), "the steps of all hops are committed"


@pytest.mark.parametrize(
    ("part", "value"), [("server", {"kind": "mix", "alpha": 1}), ("local", {"kind": "proximal", "mu": 0})]
)
def test_a_variant_that_does_nothing_is_radfed_bit_for_bit(part: str, value: dict[str, Any]) -> None:
    plain = Travel(noise, **radfed()).run(*SITES, first=FIRST)
    variant = Travel(noise, chance=5, **radfed() | {part: value}).run(*SITES, first=FIRST)
    assert plain.digest == variant.digest


def test_sizes_do_not_matter_nor_does_the_order_of_arrival() -> None:
    one = Travel(noise, **radfed()).run(*SITES, first=FIRST)
    other = Travel(noise, chance=9, **radfed())
    other.n_train = lambda task: 1 + int(task.site[1:]) ** 3
    assert other.run(*SITES, first=FIRST).digest == one.digest


def test_a_failure_without_retries_leaves_the_slot_as_it_is_and_the_others_alone() -> None:
    def lost(task: Task) -> bool:
        return (task.hop, task.slot) == (2, 3)

    whole = Travel(constant, **radfed(rounds=1, hops=3)).run(*SITES, first=FIRST)
    play = Travel(constant, **radfed(rounds=1, hops=3, pace={"retries": 0}))
    play.fails = lost
    play.run(*SITES, first=FIRST)
    assert len(play.merges[0].added) == 4
    done = [task for task in play.tasks_given if not lost(task)]
    total = sum(int(task.site[1:]) for task in done) / 4
    np.testing.assert_allclose(play.model["b"], FIRST["b"] + total, rtol=1e-9)
    (record,) = play.machine.state.history[1:]
    assert [(hop.trained, hop.skipped) for hop in record.hops] == [(4, 0), (3, 1), (4, 0)]
    assert set(record.lost.values()) == {"out of memory"}
    assert {(t.site, t.slot) for t in play.tasks_given} == {(t.site, t.slot) for t in whole.tasks_given}


def test_counters_come_from_the_first_slot_and_statistics_are_averaged() -> None:
    play = Travel(noise, **radfed(rounds=1, hops=2)).run(*SITES, first=FIRST)
    of = {task.slot: task for task in play.tasks_given if task.hop == 2}
    before = {task.slot: task for task in play.tasks_given if task.hop == 1}
    slots = [noise(noise(FIRST, before[slot]), of[slot]) for slot in (1, 2, 3, 4)]
    assert int(play.model["n"]) == int(slots[0]["n"])
    mean = np.mean([slot["var"].astype(np.float64) for slot in slots], axis=0)
    np.testing.assert_allclose(play.model["var"], mean, rtol=1e-6)


# Models, restarts, partial updates.


@pytest.mark.parametrize("divergence", ["none", "weights", "delta"])
def test_the_store_keeps_no_more_than_the_slots_and_the_model_and_in_the_end_only_what_verify_needs(
    divergence: str,
) -> None:
    play = Travel(noise, **radfed(rounds=2, hops=4, pace={"divergence": divergence}))
    most = 0

    def watch() -> bool:
        nonlocal most
        most = max(most, len(play.store.keys()))
        assert set(play.store.keys()) == play.machine.state.models
        return False

    play.run(*SITES, first=FIRST, until=watch)
    # The slots, the community model, the updates that the last version was made of; examinations may hold
    # a few hops more.
    assert most <= {"none": 10, "weights": 26, "delta": 26}[divergence]
    assert len(play.store.keys()) == 5
    assert play.machine.state.unmerged == set()


def test_a_restart_in_mid_hop_goes_on_with_the_same_models() -> None:
    calm = Travel(noise, **radfed(rounds=2, hops=4)).run(*SITES, first=FIRST)
    for moment in range(1, 34, 3):
        play = Travel(noise, **radfed(rounds=2, hops=4))
        play.run(*SITES, first=FIRST, until=lambda moment=moment, play=play: len(play.tasks_given) >= moment)  # type: ignore[misc]
        if moment % 2:
            play.save()
        again = play.again()
        assert again.state.model_dump() == play.machine.state.model_dump()
        assert again.memories == play.machine.memories
        assert again.resume() == play.machine.resume()
        play.machine = again
        play.waiting = [e for e in again.resume() if not isinstance(e, ev.AlarmRang)]
        play.run()
        assert play.digest == calm.digest, moment


def test_partial_updates_are_laid_over_the_community_model_from_hop_to_hop() -> None:
    def train(arrays: Arrays, task: Task) -> Arrays:
        assert isinstance(task.work, Train)
        assert set(arrays) == set(SPEC.names), "a site downloads a whole model"
        made = constant(arrays, task)
        return {
            name: made[name] if not task.work.tensors or name in task.work.tensors else arrays[name]
            for name in made
        }

    fields = radfed(rounds=2, hops=3, local={"kind": "alternate", "tensors": ["b"]}, weigh={"kind": "equal"})
    play = Travel(train, **fields).run(*SITES, first=FIRST)
    first = [int(task.site[1:]) for task in play.tasks_given if task.round == 1]
    second = [int(task.site[1:]) for task in play.tasks_given if task.round == 2]
    np.testing.assert_allclose(play.model["b"], FIRST["b"] + sum(first) / 4 + sum(second) / 4, rtol=1e-9)
    np.testing.assert_allclose(play.model["w"], FIRST["w"] + sum(first) / 4, rtol=1e-5)
    later = [task for task in play.tasks_given if task.round == 2 and task.hop > 1]
    assert all(task.models[0] == "j1/v1" and len(task.models) == 2 for task in later)
    assert set(play.store.keys()) == play.machine.state.models


def test_the_tensors_to_be_trained_cannot_change_within_a_round() -> None:
    play = Play(**radfed(rounds=1, hops=2, sites={"min": 4}) | {"local": {"kind": "alternate"}})
    first, second = play.training("a", "b", "c", "d").values()
    play.update(first)
    phases = play.machine.memories["local"]
    assert isinstance(phases, evaluated_updates.Phases)
    phases.merges += 1  # a policy that changes its mind between two hops
    (task, _) = sent(play.update(second))
    with pytest.raises(PluginFailed, match="changed within a round"):
        play.update(task)


def test_updates_are_evaluated_after_the_last_hop_alone() -> None:
    fields = radfed(rounds=1, hops=3, sites={"min": 4}) | {"weigh": {"kind": "evaluated"}}
    play = Play(**fields)
    play.join("a", "b", "c", "d", role="evaluator")
    play.training("a", "b", "c", "d")
    for hop in (1, 2, 3):
        assert not play.tasks(Evaluate), f"hop {hop} has begun: models that travel on are not evaluated"
        for number, task in enumerate(hop_of(play).values(), 1):
            play.update(task)
            evaluations = {
                t.work.model for t in play.machine.state.tasks.values() if isinstance(t.work, Evaluate)
            }
            # Evaluators begin while other sites still train.
            assert len(evaluations) == (number if hop == 3 else 0)
    evaluated = {
        task.work.model for task in play.machine.state.tasks.values() if isinstance(task.work, Evaluate)
    }
    assert evaluated == {slot.held.model for slot in trip_of(play).slots if slot.held}
    assert len(evaluated) == 2


def test_a_slot_that_lags_behind_is_evaluated_when_it_has_caught_up_not_before() -> None:
    pace = {"retries": 0, "catch_up": 1}
    play = Play(**radfed(rounds=1, hops=2, pace=pace, sites={"min": 4}) | {"weigh": {"kind": "evaluated"}})
    play.join("a", "b", "c", "d", role="evaluator")
    late, other = play.training("a", "b", "c", "d").values()
    play.fail(late)
    play.update(other)

    def evaluated() -> set[str]:
        return {
            task.work.model for task in play.machine.state.tasks.values() if isinstance(task.work, Evaluate)
        }

    for task in hop_of(play).values():
        play.update(task)
    first, second = trip_of(play).slots
    behind, ahead = (first, second) if late.slot == 1 else (second, first)
    assert ahead.held is not None
    assert evaluated() == {ahead.held.model}
    (task,) = hop_of(play).values()
    play.update(task)
    assert behind.held is not None
    assert evaluated() == {ahead.held.model, behind.held.model}
    assert behind.hops == 2


# What is refused.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            radfed(merge={"kind": "latest"}),
            "merge: latest does not go with pace redistribute: a travelling model belongs to no site",
        ),
        (radfed(merge={"kind": "incremental"}), "merge: incremental does not go with pace redistribute"),
        (sync(evaluate={"virtual": True}), "evaluate.virtual: pace sync has no travelling models"),
        (
            {"rule": "async-fedavg", "sample": {"kind": "importance"}},
            "sample: importance does not go with pace async: every site that is free is asked",
        ),
        (
            radfed() | {"sample": {"kind": "importance", "online": True, "per_example": True}},
            "sample.online: training",
        ),
        (
            {"rule": "radfed", "merge": {"kind": "median"}, "pace": {"weight": "hops"}},
            "pace.weight: merge median counts all models the same",
        ),
        (
            {"rule": "radfed", "merge": {"kind": "krum"}, "pace": {"weight": "hops"}},
            "pace.weight: merge krum counts all models the same",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_both_names_and_the_reason(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message.replace(".", r"\.")):
        compose(job_spec(**fields))


@pytest.mark.parametrize(("hops", "warned"), [(1, False), (2, True)])
def test_groups_of_models_that_travel_cause_a_warning(hops: int, warned: bool) -> None:
    spec = job_spec(rule="feddaf", pace={"kind": "redistribute", "hops": hops})
    assert any("rarely useful" in why for _, why in compose(spec).warnings(spec)) == warned


def test_the_defaults_are_those_of_the_specification() -> None:
    rule = compose(job_spec(rule="radfed"))
    assert rule.pace.model_dump() | {"rounds": 0} == {
        "rounds": 0,
        "hops": 20,
        "retries": 1,
        "catch_up": 0,
        "no_repeat": False,
        "weight": "equal",
        "deadline": None,
        "divergence": "weights",
    }
    assert rule.sample.model_dump() == {"fraction": 0.1}
    drawn = compose(job_spec(rule="radfed-i")).sample.model_dump()
    assert (drawn["fraction"], drawn["gamma"], drawn["init"]) == (0.1, 0.9, "mean")


@pytest.mark.parametrize("name", ["radfed", "radfed-p", "radfed-m", "radfed-a", "radfed-i"])
def test_every_rule_of_the_family_shows_sites_models_to_others_unless_there_is_one_hop(name: str) -> None:
    assert compose(job_spec(rule=name)).redistributes
    assert not compose(job_spec(rule=name, pace={"hops": 1})).redistributes
