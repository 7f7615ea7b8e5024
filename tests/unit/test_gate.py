"""The gate: transfers wait for a place, a slow one does not keep it, nobody is refused."""

import asyncio

import pytest

from hansa.controller import gate as gates
from hansa.controller.gate import PLACE, Gate


async def test_only_so_many_transfers_move_at_once_and_all_of_them_get_through() -> None:
    gate = Gate(memory=3 * PLACE)
    moving, most, done = 0, 0, 0

    async def transfer() -> None:
        nonlocal moving, most, done
        async with gate.passing() as place:
            moving += 1
            most = max(most, moving)
            for _ in range(5):
                place.moved()
                await asyncio.sleep(0)
            moving -= 1
            done += 1

    await asyncio.gather(*(transfer() for _ in range(50)))
    assert (most, done) == (3, 50)


async def test_a_transfer_that_stands_still_gives_its_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "STILL", 0.01)
    gate = Gate(memory=0)  # two places
    async with gate.passing(), gate.passing():
        async with asyncio.timeout(5), gate.passing() as third:
            third.moved()
    async with asyncio.timeout(5), gate.passing(), gate.passing():
        pass  # places are neither lost nor multiplied
    assert gate._places._value == 2


@pytest.mark.parametrize(("memory", "places"), [(0, 2), (256 << 20, 4), (1 << 30, 8), (1 << 40, 8)])
async def test_the_budget_decides_how_many_places_there_are(memory: int, places: int) -> None:
    assert Gate(memory)._places._value == places
