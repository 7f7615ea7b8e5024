"""The gate: transfers wait for a place, slow ones give it up, and none is refused."""

import asyncio

import pytest

from hansa.common.models.frames import FRAME
from hansa.controller.transfers import gate as gates
from hansa.controller.transfers.gate import HELD, PLACE, Gate
from tests.support import pace_checked


async def test_only_so_many_transfers_move_at_once_and_all_of_them_get_through() -> None:
    gate = Gate(memory=3 * PLACE)
    moving, most, done = 0, 0, 0

    async def transfer(number: int) -> None:
        nonlocal moving, most, done
        async with gate.passing(f"site {number}") as place:
            moving += 1
            most = max(most, moving)
            for _ in range(5):
                await place.moved()
                await asyncio.sleep(0)
            moving -= 1
            done += 1

    await asyncio.gather(*(transfer(number) for number in range(50)))
    assert (most, done) == (3, 50)


async def test_a_transfer_that_stands_still_gives_its_place_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "SLOW", 0.01)
    gate = Gate(memory=0)  # two places
    async with gate.passing("a"), gate.passing("b"):
        async with asyncio.timeout(5), gate.passing("c") as third:
            await third.moved()
    async with asyncio.timeout(5), gate.passing("a"), gate.passing("b"):
        pass  # places are neither lost nor multiplied
    assert gate.free == 2 * HELD


@pytest.mark.parametrize(("memory", "places"), [(0, 2), (256 << 20, 4), (1 << 40, gates.MOST)])
async def test_the_budget_decides_how_many_places_there_are(memory: int, places: int) -> None:
    assert Gate(memory).free == places * HELD


async def test_small_models_move_where_few_large_ones_may() -> None:
    gate = Gate(memory=0)
    async with asyncio.timeout(5):
        small = [await gate.enter(f"small {number}", 1000) for number in range(HELD // FRAME)]
        large = await gate.enter("large", 1 << 40)
    next_large = asyncio.ensure_future(gate.enter("next", HELD))
    late = asyncio.ensure_future(gate.enter("late", 1000))
    small.pop().leave()
    await asyncio.sleep(0)
    assert not next_large.done()
    assert not late.done(), "places are given in order of arrival, whatever their size"
    large.leave()
    (await asyncio.wait_for(next_large, 5)).leave()
    (await asyncio.wait_for(late, 5)).leave()
    for place in small:
        place.leave()
    assert gate.free == 2 * HELD


async def test_room_is_not_lost_with_those_who_give_up() -> None:
    gate = Gate(memory=0)
    first, second = await gate.enter("a"), await gate.enter("b")
    waiting = [
        asyncio.ensure_future(gate.enter(who, size)) for who, size in [("c", HELD), ("d", FRAME), ("e", HELD)]
    ]
    await asyncio.sleep(0)
    first.leave()  # c is served, and gives up before it hears of it
    waiting[0].cancel()
    waiting[2].cancel()  # e has not been served
    second.leave()
    second = await gate.enter("f")
    (await asyncio.wait_for(waiting[1], 5)).leave()
    second.leave()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert gate.free == 2 * HELD
    assert not gate.callers


async def test_a_transfer_that_waits_for_us_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "SLOW", 0.01)
    async with Gate(memory=0).passing("a") as place:
        place.working = lambda: True
        for _ in range(3):
            await pace_checked(place)
            assert place.held
        place.working = lambda: False
        await pace_checked(place)
        assert not place.held


async def test_a_transfer_that_is_fast_again_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "SLOW", 0.05)
    gate = Gate(memory=0)
    async with gate.passing("a") as first:
        await pace_checked(first)
        assert not first.held
        second, third = await gate.enter("b"), await gate.enter("c")
        second.working = third.working = lambda: True
        await first.moved()
        assert not first.held, "one frame after a long pause is a slow link"
        fast = asyncio.ensure_future(first.moved())
        await asyncio.sleep(0)
        assert "a" in gate.callers, "it waits, because all places are taken"
        assert not fast.done()
        second.leave()
        await asyncio.wait_for(fast, 5)
        assert first.held
        third.leave()
    assert gate.free == 2 * HELD


async def test_a_caller_that_asks_for_many_places_waits_for_its_own_transfers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "SLOW", 5.0)
    gate = Gate(memory=0)
    greedy = [asyncio.ensure_future(gate.enter("greedy")) for _ in range(100)]
    await asyncio.sleep(0)
    async with asyncio.timeout(2), gate.passing("honest") as place:  # 100 others came first, and stand still
        await place.moved()
    for waiting in greedy[50:]:
        waiting.cancel()
    for entered in greedy[:50]:
        (await asyncio.wait_for(entered, 2)).leave()
    await asyncio.gather(*greedy, return_exceptions=True)
    assert gate.free == 2 * HELD
    assert not gate.callers


async def test_a_transfer_has_one_place_however_many_enter_it() -> None:
    gate = Gate(memory=0)
    others = [await gate.enter("b"), await gate.enter("c")]
    place = gate.place("a")
    first, second, third = (asyncio.ensure_future(place.enter()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()  # who waits behind goes on waiting
    others[0].leave()
    async with asyncio.timeout(5):
        await asyncio.gather(second, third)
        await place.enter()
    assert place.held
    assert gate.free == 0
    place.leave()
    place.leave()
    others[1].leave()
    await asyncio.wait([first])
    assert gate.free == 2 * HELD
    assert not gate.callers


async def test_a_transfer_hears_that_its_place_is_lost_but_not_that_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "SLOW", 0.01)
    gate, lost = Gate(memory=0), asyncio.Event()
    place = await gate.enter("a")
    place.lost = lost.set
    place.leave()
    assert not lost.is_set()
    await place.enter()
    await asyncio.wait_for(lost.wait(), 5)
    assert not place.held
