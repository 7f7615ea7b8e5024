"""Models that travel from site to site: the invariants of RADFed, what happens when sites are lost, and replays."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from hansa.common.errors import InvalidJob, Stale
from hansa.common.plugins import register
from hansa.common.tasks import Evaluate, Task, Train
from hansa.common.ui.live import _line
from hansa.common.views import JobView
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import StartStudy
from hansa.controller.engine.view import Contribution, View
from hansa.controller.job_views import _history_views
from hansa.controller.pacers.redistribute import Trip
from hansa.controller.rules.compose import compose
from hansa.controller.rules.fedavg import Equal
from hansa.learner.session import task_seed
from tests.unit import appraised
from tests.unit.play import Play, dropped, endings, job_spec, sent, withdrawn
from tests.unit.samples import values
from tests.unit.travel import SPEC, Arrays, Travel, arrays_of, digest_of

assert appraised  # importing it registers its plugins
SITES = tuple(f"s{i}" for i in range(8))
FIRST = values(SPEC, 3)


def noise(arrays: Arrays, task: Task) -> Arrays:
    """Train as a learner does: what comes out depends on what came in, the site, the round and the hop."""
    rng = np.random.default_rng(task_seed(task))
    made = {}
    for name, array in arrays.items():
        step = rng.standard_normal(array.shape) if array.dtype.kind == "f" else rng.integers(1, 9, array.shape)
        made[name] = (array * (0.9 if array.dtype.kind == "f" else 1) + step).astype(array.dtype)
    return made


def constant(arrays: Arrays, task: Task) -> Arrays:
    """Add the number in the site's name."""
    return {name: array + array.dtype.type(int(task.site[1:])) for name, array in arrays.items()}


def radfed(rounds: int = 2, hops: int = 3, fraction: float = 0.5, **more: Any) -> dict[str, Any]:
    pace = {"rounds": rounds, "hops": hops} | more.pop("pace", {})
    return {"rule": "radfed", "pace": pace, "sample": {"fraction": fraction}, "sites": {"min": 8}} | more


def sync(rounds: int = 2, fraction: float = 0.5, **more: Any) -> dict[str, Any]:
    sample = {"kind": "uniform", "fraction": fraction}
    equal = {"weigh": {"kind": "equal"}, "sites": {"min": 8}}
    return {"rule": "fedavg", "pace": {"rounds": rounds}, "sample": sample} | equal | more


def trip_of(play: Play) -> Trip:
    trip = play.machine.memories["pace"]
    assert isinstance(trip, Trip)
    return trip


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
    drawn = [frozenset(task.site for task in play.tasks_given if (task.round, task.hop) == at) for at in sorted(hops)]
    assert len(set(drawn)) > 6, "the same sites are drawn again and again"
    assert [len(record.hops) for record in play.machine.state.history] == [0, 4, 4, 4]
    for record in play.machine.state.history[1:]:
        for hop in record.hops:
            at_slot = {t.slot: t.site for t in play.tasks_given if (t.round, t.hop) == (record.round, hop.hop)}
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


# Lost sites (radfed §3).


def hop_of(play: Play) -> dict[str, Task]:
    return play.tasks(Train)


def small(**pace: Any) -> Play:
    """Four sites, two slots, in the first hop."""
    play = Play(**radfed(rounds=1, hops=2, pace=pace, sites={"min": 4}))
    play.training("a", "b", "c", "d")
    return play


def test_a_slot_whose_site_fails_goes_to_another_from_the_same_model() -> None:
    play = small()
    first, second = hop_of(play).values()
    play.update(second)
    (again,) = sent(play.fail(first))
    assert again.site not in (first.site, second.site)
    assert (again.slot, again.hop, again.work) == (first.slot, 1, first.work)
    (record,) = play.machine.state.history
    play.update(again)
    assert trip_of(play).hop == 2
    assert record.version == 0


def test_a_slot_that_fails_twice_skips_the_hop_and_its_first_late_update_is_dropped() -> None:
    play = small()
    first, second = hop_of(play).values()
    play.update(second)
    (again,) = sent(play.fail(first))
    effects = play.fail(again)
    with pytest.raises(Stale):
        play.update(first)
    with pytest.raises(Stale):
        play.update(again)
    assert trip_of(play).hop == 2
    assert len(sent(effects)) == 2  # both slots in the next hop
    assert sorted(slot.hops for slot in trip_of(play).slots) == [0, 1]


def test_a_site_that_leaves_loses_its_slot_to_another() -> None:
    play = small()
    first, _ = hop_of(play).values()
    effects = play.leave(first.site)
    assert withdrawn(effects) == [first.id]
    assert [task.slot for task in sent(effects)] == [first.slot]
    with pytest.raises(Stale):
        play.update(first)


def test_a_site_that_is_late_loses_its_slot_and_so_does_the_next() -> None:
    play = small(deadline=10.0)
    first, second = hop_of(play).values()
    play.update(second)
    effects = play.ring("hop-1-1")
    assert withdrawn(effects) == [first.id]
    (again,) = sent(effects)
    effects = play.ring(f"hop-1-1-{first.slot - 1}-1")
    assert withdrawn(effects) == [again.id]
    assert trip_of(play).hop == 2
    assert play.machine.state.alarms.keys() >= {"hop-1-2"}
    record = play.machine.state.hops[0]
    assert record.skipped == 1
    assert record.lost == dict.fromkeys((first.site, again.site), "late: no update within 10 s")


def test_a_site_that_steps_in_has_a_deadline_of_its_own() -> None:
    play = small(deadline=10.0)
    first, second = hop_of(play).values()
    (again,) = sent(play.fail(first))
    effects = play.ring("hop-1-1")  # the hop's deadline: for those who were asked when it began
    assert withdrawn(effects) == [second.id]
    assert again.site in hop_of(play)
    (third,) = sent(effects)
    assert (third.slot, withdrawn(play.ring(f"hop-1-1-{second.slot - 1}-1"))) == (second.slot, [third.id])
    assert trip_of(play).hop == 1  # the slot that was taken over first still has time
    play.update(again)
    assert trip_of(play).hop == 2


def test_the_deadline_of_a_site_that_failed_is_not_that_of_the_next() -> None:
    play = small(deadline=10.0, retries=2)
    first, second = hop_of(play).values()
    (again,) = sent(play.fail(first))
    (third,) = sent(play.fail(again))
    assert {first.site, second.site, again.site, third.site} == {"a", "b", "c", "d"}
    assert withdrawn(play.ring(f"hop-1-1-{first.slot - 1}-1")) == []
    assert withdrawn(play.ring(f"hop-1-1-{first.slot - 1}-2")) == [third.id]


def test_with_too_few_sites_for_the_slots_those_trained_least_come_first() -> None:
    play = Play(**radfed(rounds=1, hops=4, fraction=1.0, pace={"retries": 0}, sites={"min": 3}))
    tasks = play.training("a", "b", "c")
    assert len(tasks) == 3
    play.fail(tasks["a"])  # slot 1 has no training
    play.leave("c")
    play.update(tasks["b"])
    assert sorted(task.slot for task in hop_of(play).values()) == [1, 3]
    for task in hop_of(play).values():
        play.update(task)
    assert [slot.hops for slot in trip_of(play).slots] == [1, 1, 1]
    assert sorted(task.slot for task in hop_of(play).values()) == [1, 2]  # ties: by slot


def test_slots_that_lag_behind_catch_up_before_the_merge_if_that_is_wanted() -> None:
    play = small(retries=0, catch_up=2)
    first, second = hop_of(play).values()
    play.fail(first)
    play.update(second)
    for task in hop_of(play).values():
        play.update(task)
    assert trip_of(play).hop == 3
    (late,) = hop_of(play).values()
    assert (late.slot, late.hop, late.turn) == (first.slot, 3, 2)
    play.update(late)
    assert play.machine.state.plan is not None
    assert [part.weight for part in play.machine.state.plan.added] == [1.0, 1.0]


@pytest.mark.parametrize("catch_up", [0, 1, 2])
def test_there_are_no_more_hops_to_catch_up_than_wanted(catch_up: int) -> None:
    play = Play(**radfed(rounds=2, hops=3, pace={"retries": 0, "catch_up": catch_up}, sites={"min": 4}))
    play.training("a", "b", "c", "d")
    for turn in (3, 6):
        for _ in range(3):
            for task in hop_of(play).values():
                play.update(task) if task.slot == 1 else play.fail(task)
        for hop in range(4, 4 + catch_up):
            assert trip_of(play).phase == "open"
            (task,) = hop_of(play).values()
            assert (task.hop, task.slot, task.turn) == (hop, 2, turn)  # rates that fall with the hops stay
            play.update(task)
        assert trip_of(play).phase == "merging"
        assert [slot.hops for slot in trip_of(play).slots] == [3, catch_up]
        play.merged()


def test_only_trained_slots_are_merged_by_their_hops_if_that_is_wanted() -> None:
    pace = {"retries": 0, "weight": "hops"}
    play = Play(**radfed(rounds=1, hops=2, fraction=1.0, pace=pace, sites={"min": 3}))
    tasks = play.training("a", "b", "c")
    never = tasks["a"]
    play.fail(never)
    play.update(tasks["b"])
    play.update(tasks["c"])
    for task in hop_of(play).values():
        _ = play.fail(task) if task.slot in (never.slot, 2) else play.update(task)
    plan = play.machine.state.plan
    assert plan is not None
    assert {part.slot: part.weight for part in plan.added} == {2: 1.0, 3: 2.0}


@register("weigh", "gigantic")
class Gigantic(Equal):
    """Weights that are numbers; twice as much is none."""

    def weigh(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return weights near the largest."""
        return np.full(len(contributions), 1.5e308)


def test_weights_that_only_the_hops_make_infinite_leave_the_model_as_it_is() -> None:
    pace, weigh = {"weight": "hops"}, {"kind": "gigantic"}
    play = Play(**radfed(rounds=1, hops=2, fraction=1.0, pace=pace, weigh=weigh, sites={"min": 2}))
    for task in play.training("a", "b").values():
        play.update(task)
    for task in hop_of(play).values():
        play.update(task)
    plan = play.machine.state.plan
    assert plan is not None
    assert [part.weight for part in plan.added] == [0.0, 0.0]
    assert "weights that are not finite" in play.machine.state.queue[0].note


def test_a_site_may_be_the_last_to_train_two_slots_and_everything_adds_up() -> None:
    pace = {"retries": 0}
    play = Play(seed=3, **radfed(rounds=1, hops=2, fraction=1.0, pace=pace, sites={"min": 2}))
    tasks = play.training("a", "b")
    for task in tasks.values():
        play.update(task)
    kept, moved = hop_of(play).values()
    assert tasks[moved.site].slot == kept.slot, "the sites have changed places: another seed would be needed"
    play.fail(kept)
    play.update(moved)
    plan = play.machine.state.plan
    assert plan is not None
    assert [part.site for part in plan.added] == [moved.site, moved.site]
    play.merged()
    record = play.machine.state.history[1]
    assert record.contributions == {moved.site: 2.0}
    assert record.updates == 2
    _, shown = _history_views(play.machine, 0)
    assert "  2 updates  " in _line(shown, JobView(job="j1", name="n", status="running")), "slots, not sites"
    (receipt,) = [play.machine.issued] if play.machine.issued else []
    assert receipt.contributions == {part.task: 1.0 for part in plan.added}
    assert play.again().state.model_dump() == play.machine.state.model_dump()


def test_if_nobody_trains_a_slot_the_model_stays() -> None:
    play = small(retries=0, deadline=10.0)
    play.ring("hop-1-1")
    play.ring("hop-1-2")
    plan = play.machine.state.plan
    assert plan is not None
    assert plan.added == ()


@pytest.mark.parametrize(("fraction", "retries"), [(0.5, 1), (0.25, 0)], ids=["in one hop", "one after another"])
def test_if_every_site_says_that_it_failed_the_job_fails(fraction: float, retries: int) -> None:
    play = Play(**radfed(rounds=3, hops=20, fraction=fraction, pace={"retries": retries}, sites={"min": 4}))
    play.training("a", "b", "c", "d")
    effects: list[Any] = []
    failed: set[str] = set()
    while not endings(effects):
        assert failed != {"a", "b", "c", "d"}
        task = next(iter(hop_of(play).values()))
        failed.add(task.site)
        effects = play.fail(task, reason="no memory")
    ((status, reason),) = endings(effects)
    assert failed == {"a", "b", "c", "d"}
    assert status == "failed"
    assert reason.startswith("every site has failed by hop ")
    assert reason.endswith("; a: no memory")


def test_a_few_sites_that_fail_do_not_end_a_job_though_they_are_all_that_were_asked_in_a_hop() -> None:
    play = Play(**radfed(rounds=1, hops=3, fraction=0.1, sites={"min": 8}))  # one slot: two sites are tried in a hop
    first = next(iter(play.training(*SITES).values()))
    effects = play.fail(first)
    effects = play.fail(next(iter(sent(effects))))
    assert not endings(effects)
    (task,) = hop_of(play).values()
    assert (task.hop, task.models) == (2, first.models)
    assert trip_of(play).slots[0].hops == 0


def test_who_was_lost_is_told_of_its_own_round_and_hop_alone() -> None:
    play = Play(**radfed(rounds=2, hops=2, pace={"retries": 0}, sites={"min": 4}))
    first, second = play.training("a", "b", "c", "d").values()
    play.fail(first)
    play.update(second)
    for _ in range(3):
        for task in hop_of(play).values():
            play.update(task)
        if trip_of(play).phase == "merging":
            play.merged()
    _, one, two = play.machine.state.history
    assert (one.lost, two.lost) == ({first.site: "out of memory"}, {})
    assert [hop.lost for hop in (*one.hops, *two.hops)] == [{first.site: "out of memory"}, {}, {}, {}]


def test_failures_before_the_last_update_that_came_do_not_count() -> None:
    """Both sites fail at the beginning of some round, but each has trained since the other failed."""
    play = Play(**radfed(rounds=9, hops=2, fraction=0.1, pace={"retries": 0}, sites={"min": 2}))
    play.training("a", "b")
    failed: set[str] = set()
    while failed != {"a", "b"}:
        (task,) = hop_of(play).values()
        if task.hop == 1 and task.site not in failed:
            failed.add(task.site)
            assert not endings(play.fail(task))
            continue
        play.update(task)
        if trip_of(play).phase == "merging":
            play.merged()
    assert trip_of(play).failed.keys() == {task.site}


def test_a_site_that_fails_does_not_end_a_job_whose_other_sites_may_come_back() -> None:
    play = small(retries=0)
    first, second = hop_of(play).values()
    play.fail(first)
    for site in {"a", "b", "c", "d"} - {first.site, second.site}:
        play.leave(site)
    assert not endings(play.leave(second.site))
    assert not endings(play.leave(first.site))
    assert trip_of(play).phase == "stalled"


def test_later_in_a_round_a_hop_that_everybody_fails_is_skipped() -> None:
    play = small(retries=0)
    for task in hop_of(play).values():
        play.update(task)
    for task in hop_of(play).values():
        play.fail(task)
    assert play.machine.state.plan is not None
    assert len(play.machine.state.plan.added) == 2


def test_later_in_a_round_a_hop_that_all_sites_of_the_job_fail_is_skipped_too() -> None:
    play = Play(**radfed(rounds=1, hops=2, fraction=1.0, sites={"min": 2}))
    for task in play.training("a", "b").values():
        play.update(task)
    effects = [effect for task in hop_of(play).values() for effect in play.fail(task)]
    assert not endings(effects)
    assert trip_of(play).phase == "merging"
    assert [slot.hops for slot in trip_of(play).slots] == [1, 1]


def test_when_all_leave_the_hop_waits_for_somebody_to_come_back() -> None:
    play = small()
    for task in hop_of(play).values():
        play.update(task)
    for site in ("a", "b", "c", "d"):
        play.leave(site)
    trip = trip_of(play)
    assert (trip.phase, trip.hop, [slot.hops for slot in trip.slots]) == ("stalled", 1, [1, 1])
    assert "gather" in play.machine.state.alarms
    play.join("c")
    assert (trip_of(play).phase, trip_of(play).hop) == ("open", 2)
    (task,) = hop_of(play).values()
    assert isinstance(task.work, Train)
    assert task.work.model.startswith("j1/u")
    play.update(task)
    assert play.machine.state.plan is not None
    assert len(play.machine.state.plan.added) == 2


def test_when_all_leave_after_a_slot_was_trained_the_hop_is_over() -> None:
    play = small()
    first, _ = hop_of(play).values()
    play.update(first)
    for site in ("a", "b", "c", "d"):
        play.leave(site)
    assert trip_of(play).phase == "stalled"
    assert [task.hop for task in sent(play.join(first.site))] == [2]  # a second training in hop 1 would be one too many
    assert sorted(slot.hops for slot in trip_of(play).slots) == [0, 1]


def test_a_site_that_comes_to_a_round_under_way_can_be_drawn_in_the_next_hop() -> None:
    play = Play(**radfed(rounds=1, hops=30, fraction=1.0, sites={"min": 2}))
    play.training("a", "b")
    play.join("c")
    drawn: set[str] = set()
    while play.machine.state.plan is None:
        assert len(hop_of(play)) == 2
        for task in hop_of(play).values():
            drawn.add(task.site)
            play.update(task)
    assert drawn == {"a", "b", "c"}


def test_a_slot_avoids_sites_it_has_been_at_while_there_are_others() -> None:
    fields = {"fraction": 0.01, "pace": {"no_repeat": True}, "sites": {"min": 4}}
    play = Travel(noise, **radfed(rounds=2, hops=4, **fields))  # type: ignore[arg-type]
    play.run(*SITES[:4], first=FIRST)
    for round_ in (1, 2):
        assert len({task.site for task in play.tasks_given if task.round == round_}) == 4
    longer = Travel(noise, **radfed(rounds=1, hops=6, **fields))  # type: ignore[arg-type]
    longer.run(*SITES[:4], first=FIRST)
    assert len(longer.tasks_given) == 6  # more hops than sites


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
    # The slots, the community model, the updates that the last version was made of; studies may hold a few hops more.
    assert most <= {"none": 10, "weights": 26, "delta": 26}[divergence]
    assert len(play.store.keys()) == 5
    assert play.machine.state.fresh == set()


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
            name: made[name] if not task.work.tensors or name in task.work.tensors else arrays[name] for name in made
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
    assert isinstance(phases, appraised.Phases)
    phases.merges += 1  # a policy that changes its mind between two hops
    (task, _) = sent(play.update(second))
    with pytest.raises(ValueError, match="changed within a round"):
        play.update(task)


def test_updates_are_appraised_after_the_last_hop_alone() -> None:
    fields = radfed(rounds=1, hops=3, sites={"min": 4}) | {"weigh": {"kind": "appraised"}}
    play = Play(**fields)
    play.join("a", "b", "c", "d", role="evaluator")
    play.training("a", "b", "c", "d")
    for hop in (1, 2, 3):
        assert not play.tasks(Evaluate), f"hop {hop} has begun: nobody scores models that travel on"
        for number, task in enumerate(hop_of(play).values(), 1):
            play.update(task)
            judging = {t.work.model for t in play.machine.state.tasks.values() if isinstance(t.work, Evaluate)}
            assert len(judging) == (number if hop == 3 else 0)  # evaluators begin while others still train
    judged = {task.work.model for task in play.machine.state.tasks.values() if isinstance(task.work, Evaluate)}
    assert judged == {slot.held.model for slot in trip_of(play).slots if slot.held}
    assert len(judged) == 2


# Looking at hops.


def test_the_divergence_of_each_hop_is_in_the_history_and_is_least_right_after_a_merge() -> None:
    play = Travel(noise, **radfed(rounds=2, hops=5)).run(*SITES, first=FIRST)
    for record in play.machine.state.history[1:]:
        found = [hop.divergence for hop in record.hops]
        assert None not in found
        assert found[0] == min(found)  # type: ignore[type-var]
    slots = [task for task in play.tasks_given if (task.round, task.hop) == (1, 1)]
    flat = []
    for task in sorted(slots, key=lambda task: task.slot):
        made = noise(FIRST, task)
        flat.append(np.concatenate([made[name].astype(np.float64).ravel() for name in ("w", "b")]))
    pairs = [(i, j) for i in range(4) for j in range(i)]
    cosines = [flat[i] @ flat[j] / np.linalg.norm(flat[i]) / np.linalg.norm(flat[j]) for i, j in pairs]
    assert play.machine.state.history[1].hops[0].divergence == pytest.approx(1 - np.mean(cosines), rel=1e-9)


def test_the_divergence_of_changes_is_that_of_what_each_site_added() -> None:
    def along(arrays: Arrays, task: Task) -> Arrays:
        """All go in the same direction, from wherever they are."""
        return {n: a + (a.dtype.type(int(task.site[1:]) + 1) if n == "b" else 0) for n, a in arrays.items()}

    play = Travel(along, **radfed(rounds=1, hops=3, pace={"divergence": "delta"})).run(*SITES, first=FIRST)
    assert [hop.divergence for hop in play.machine.state.history[1].hops] == pytest.approx([0, 0, 0], abs=1e-6)
    still = Travel(lambda arrays, _: arrays, **radfed(rounds=1, hops=2, pace={"divergence": "delta"}))
    still.run(*SITES, first=FIRST)
    assert [hop.divergence for hop in still.machine.state.history[1].hops] == [0, 0]


def test_the_mean_of_the_slots_is_evaluated_between_merges_and_training_does_not_notice() -> None:
    plain = Travel(noise, **radfed(rounds=2, hops=3)).run(*SITES, first=FIRST)
    play = Travel(noise, **radfed(rounds=2, hops=3, evaluate={"virtual": True}))
    play.join("e", role="evaluator")
    play.run(*SITES, first=FIRST)
    assert play.digest == plain.digest
    assert play.machine.state.status == "completed"
    scored = [bool(hop.pooled) for record in play.machine.state.history[1:] for hop in record.hops]
    assert any(scored)
    assert not scored[2]
    assert not scored[5]  # the last hop's mean is the community model
    assert set(play.store.keys()) == play.machine.state.models


@pytest.mark.parametrize("weight", ["equal", "hops"])
def test_what_is_evaluated_between_merges_is_the_mean_that_a_merge_would_make_now(weight: str) -> None:
    def train(arrays: Arrays, task: Task) -> Arrays:
        made[task.hop, task.slot] = noise(arrays, task)
        return made[task.hop, task.slot]

    made: dict[tuple[int, int], Arrays] = {}
    fields = radfed(rounds=1, hops=2, pace={"retries": 0, "weight": weight, "catch_up": 1}, evaluate={"virtual": True})
    play = Travel(train, **fields)
    play.fails = lambda task: (task.hop, task.slot) == (2, 4)
    play.join("e", role="evaluator")
    means: dict[int, Arrays] = {}

    def look() -> bool:
        """Have hops studied and measured at once, so that none is skipped because the evaluator is busy."""
        for effect in [e for e in play.waiting if isinstance(e, StartStudy)]:
            play.waiting.remove(effect)
            play._carry_out(effect)
        for task in list(play.machine.state.tasks.values()):
            if isinstance(task.work, Evaluate):
                if task.id in play.machine.state.scoring:
                    means[play.machine.state.scoring[task.id][1]] = arrays_of(play.store, *task.models)
                play.report(task)
        return False

    play.run(*SITES, first=FIRST, until=look)
    after_second = [made[2, slot] for slot in (1, 2, 3)] + [made[1, 4]]
    counts = {"equal": [1, 1, 1, 1], "hops": [2, 2, 2, 1]}[weight]
    wanted = sum(n * slot["b"] for n, slot in zip(counts, after_second, strict=True)) / sum(counts)
    np.testing.assert_allclose(means[1]["b"], np.mean([made[1, slot]["b"] for slot in (1, 2, 3, 4)], axis=0))
    np.testing.assert_allclose(means[2]["b"], wanted)


def test_means_that_are_being_evaluated_do_not_keep_a_job_from_its_end() -> None:
    pace = {"divergence": "none"}
    play = Play(**radfed(rounds=1, hops=2, evaluate={"virtual": True}, pace=pace, sites={"min": 4}))
    play.join("a", role="evaluator")
    for task in play.training("a", "b", "c", "d").values():
        play.update(task)
    (effect,) = sent(play.studied(1, 1, mean=True))
    assert isinstance(effect.work, Evaluate)
    assert effect.work.model == "j1/v1.h1"
    for task in hop_of(play).values():
        play.update(task)
    held = set(play.machine.state.models)
    effects = play.merged()
    assert effect.id in withdrawn(effects)
    assert dropped(effects) == held - play.machine.state.models, "what is no longer kept is deleted"
    assert "j1/v1.h1" in dropped(effects)
    (last,) = play.tasks(Evaluate).values()
    assert endings(play.report(last)) == [("completed", "the round is done")]


def test_with_one_hop_nobody_is_shown_the_mean_of_slots_which_may_be_one_sites_model() -> None:
    play = Play(
        **radfed(
            rounds=1,
            hops=1,
            evaluate={"virtual": True},
            pace={"divergence": "none", "retries": 0, "catch_up": 1},
            sites={"min": 4},
        )
    )
    play.join("a", role="evaluator")
    first, second = play.training("a", "b", "c", "d").values()
    play.update(first)
    play.fail(second)
    assert trip_of(play).hop == 2  # the other slot catches up
    assert play.machine.state.studies == []


# What is refused.


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            radfed(merge={"kind": "latest"}),
            "merge: latest does not go with pace redistribute: a travelling model is no",
        ),
        (radfed(merge={"kind": "incremental"}), "merge: incremental does not go with pace redistribute"),
        (sync(evaluate={"virtual": True}), "evaluate.virtual: pace sync has no travelling models"),
        (
            {"rule": "async-fedavg", "sample": {"kind": "importance"}},
            "sample: importance does not go with pace async: every site that is free is asked",
        ),
        (radfed() | {"sample": {"kind": "importance", "online": True, "per_example": True}}, "sample.online: training"),
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
def test_what_makes_no_sense_is_refused_with_both_parts_and_the_reason(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said.replace(".", r"\.")):
        compose(job_spec(**fields))


@pytest.mark.parametrize(("hops", "warned"), [(1, False), (2, True)])
def test_groups_among_models_that_travel_are_warned_of(hops: int, warned: bool) -> None:
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
