"""Models that travel from site to site: when sites fail, leave, are late or come back (radfed §3)."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from hansa.common.plugins.registry import register
from hansa.common.process.clock import SystemClock
from hansa.common.ui.job.live import show_live
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.common.values.views import JobView
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.fleet.sessions import DaemonRole, Session
from hansa.controller.jobs.views import Surroundings, history_views, job_view
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import Equal
from tests.unit.engine.play import Play, endings, sent, withdrawn
from tests.unit.engine.travel import (
    FIRST,
    SITES,
    Travel,
    hop_of,
    noise,
    radfed,
    small,
    trip_of,
)


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
    """Weights that are finite, but twice as much is not."""

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
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
    assert "weights that are not finite" in play.machine.state.queue[0].account.note


class Unattended:
    """Ignores sites that join and leave."""

    def attended(self, session: Session) -> None:
        pass

    def left(self, site: SiteName, role: DaemonRole) -> None:
        pass


async def shown(play: Play) -> AsyncIterator[JobView]:
    """Yield the job as operators see it."""
    fleet = Fleet(SystemClock(), Unattended(), 5, 15)
    history = history_views(play.machine)
    yield job_view(play.machine, Surroundings(fleet, play.now, 0, 0, ""), history=history)


async def test_a_site_may_be_the_last_to_train_two_slots_and_everything_adds_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    assert [update.site for update in record.updates] == [moved.site] * 2
    (receipt,) = [play.machine.issued] if play.machine.issued else []
    assert receipt.contributions == {part.task: 1.0 for part in plan.added}
    assert play.again().state.model_dump() == play.machine.state.model_dump()
    play.cancel()
    await show_live(shown(play))
    assert "  2 updates  " in capsys.readouterr().out, "slots are counted, not sites"


def test_both_slots_that_a_site_was_the_last_to_train_are_in_the_model() -> None:
    fields = radfed(rounds=1, hops=2, fraction=1.0, pace={"retries": 0}, sites={"min": 2})
    for seed in range(8):
        play = Travel(noise, seed=seed, **fields)
        play.fails = lambda task: (task.hop, task.site) == (2, "s1")
        play.run("s0", "s1", first=FIRST)
        tasks = {(str(task.site), task.hop): task for task in play.tasks_given}
        if tasks["s0", 2].slot == tasks["s1", 1].slot:
            break  # the sites have changed places
    else:
        pytest.fail("another seed would be needed")
    slots = noise(FIRST, tasks["s0", 1]), noise(noise(FIRST, tasks["s1", 1]), tasks["s0", 2])
    assert play.machine.state.history[1].contributions == {"s0": 2.0}
    np.testing.assert_allclose(play.model["b"], (slots[0]["b"] + slots[1]["b"]) / 2)
    assert len(play.machine.state.members[SiteName("s0")]) == 2
    assert set(play.store.keys()) == play.machine.state.models


def test_if_no_site_trains_a_slot_the_model_stays() -> None:
    play = small(retries=0, deadline=10.0)
    play.ring("hop-1-1")
    play.ring("hop-1-2")
    plan = play.machine.state.plan
    assert plan is not None
    assert plan.added == ()


@pytest.mark.parametrize(
    ("fraction", "retries"), [(0.5, 1), (0.25, 0)], ids=["in one hop", "one after another"]
)
def test_if_every_site_fails_the_job_fails(fraction: float, retries: int) -> None:
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
    assert reason.startswith("all sites failed in hop ")
    assert reason.endswith("; a: no memory")


def test_a_few_sites_that_fail_do_not_end_a_job_though_they_are_all_that_were_asked_in_a_hop() -> None:
    # There is one slot, and two sites are tried in a hop.
    play = Play(**radfed(rounds=1, hops=3, fraction=0.1, sites={"min": 8}))
    first = next(iter(play.training(*SITES).values()))
    effects = play.fail(first)
    effects = play.fail(next(iter(sent(effects))))
    assert not endings(effects)
    (task,) = hop_of(play).values()
    assert (task.hop, task.models) == (2, first.models)
    assert trip_of(play).slots[0].hops == 0


def test_a_lost_site_is_named_only_in_its_own_round_and_hop() -> None:
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


def test_failures_before_the_last_update_do_not_count() -> None:
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


def test_later_in_a_round_a_hop_in_which_every_site_fails_is_skipped() -> None:
    play = small(retries=0)
    for task in hop_of(play).values():
        play.update(task)
    for task in hop_of(play).values():
        play.fail(task)
    assert play.machine.state.plan is not None
    assert len(play.machine.state.plan.added) == 2


def test_later_in_a_round_a_hop_in_which_all_sites_of_the_job_fail_is_skipped_too() -> None:
    play = Play(**radfed(rounds=1, hops=2, fraction=1.0, sites={"min": 2}))
    for task in play.training("a", "b").values():
        play.update(task)
    effects = [effect for task in hop_of(play).values() for effect in play.fail(task)]
    assert not endings(effects)
    assert trip_of(play).phase == "merging"
    assert [slot.hops for slot in trip_of(play).slots] == [1, 1]


def test_when_all_sites_leave_the_hop_waits_until_one_comes_back() -> None:
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
    # A second training in hop 1 would be one too many.
    assert [task.hop for task in sent(play.join(first.site))] == [2]
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
