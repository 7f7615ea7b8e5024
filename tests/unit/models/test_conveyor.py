"""A conveyor: items reach the worker in order and in batches, and nothing is lost between its callers."""

import asyncio
from collections import deque

import pytest

from hansa.common.models.conveyor import BATCH, Conveyor


class Worker:
    """Takes batches one at a time; each waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.at_once = 0
        self.free = asyncio.Event()

    async def work(self, batch: deque[int]) -> None:
        self.at_once += 1
        assert self.at_once == 1, "two batches at once"
        self.batches.append(list(batch))
        await self.free.wait()
        self.at_once -= 1

    @property
    def done(self) -> list[int]:
        return [item for batch in self.batches for item in batch]


async def test_items_are_worked_on_in_order_and_in_batches() -> None:
    worker = Worker()
    worker.free.set()
    conveyor = Conveyor(worker.work)
    for item in range(11):
        await conveyor.put(item)
    await conveyor.drain()
    assert worker.done == list(range(11))
    assert [len(batch) for batch in worker.batches] == [BATCH, BATCH, 3]


async def test_put_waits_while_a_batch_is_under_way_and_another_is_full() -> None:
    worker = Worker()
    conveyor = Conveyor(worker.work)
    for item in range(2 * BATCH):
        await conveyor.put(item)
    one_more = asyncio.create_task(conveyor.put(99))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert conveyor.busy
    assert not one_more.done()
    worker.free.set()
    await one_more
    await conveyor.drain()
    assert worker.done == [*range(2 * BATCH), 99]


async def test_the_rest_is_what_has_not_been_begun() -> None:
    worker = Worker()
    worker.free.set()
    conveyor = Conveyor(worker.work)
    for item in range(BATCH + 2):
        await conveyor.put(item)
    assert await conveyor.rest() == deque([BATCH, BATCH + 1])
    assert worker.done == list(range(BATCH))
    await conveyor.drain()
    assert worker.done == list(range(BATCH))


async def test_two_tasks_that_put_and_settle_at_once_lose_nothing_and_never_overlap() -> None:
    worker = Worker()
    conveyor = Conveyor(worker.work)

    async def put_all() -> None:
        for item in range(50):
            await conveyor.put(item)

    async def settle_often() -> None:
        for _ in range(30):
            await conveyor.settle()

    async def let_go() -> None:
        for _ in range(200):
            worker.free.set()
            await asyncio.sleep(0)
            worker.free.clear()
        worker.free.set()

    await asyncio.gather(put_all(), settle_often(), let_go())
    await conveyor.drain()
    assert worker.done == list(range(50))


async def test_what_the_worker_raised_reaches_callers_of_put_and_drain() -> None:
    async def fail(batch: deque[int]) -> None:
        raise ValueError(f"{len(batch)} items")

    conveyor = Conveyor(fail)
    for item in range(BATCH):
        await conveyor.put(item)
    with pytest.raises(ValueError, match=f"{BATCH} items"):
        await conveyor.drain()
    await conveyor.settle()  # it raises nothing
    with pytest.raises(ValueError, match="items"):
        await conveyor.rest()


async def test_a_caller_that_is_cancelled_while_waiting_does_not_cancel_the_work() -> None:
    worker = Worker()
    conveyor = Conveyor(worker.work)
    await conveyor.put(1)
    waiting = asyncio.create_task(conveyor.drain())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    worker.free.set()
    await conveyor.drain()
    assert worker.done == [1]
    assert worker.at_once == 0


async def test_what_waits_is_begun_at_once_if_asked_for_but_never_beside_another_batch() -> None:
    worker = Worker()
    conveyor = Conveyor(worker.work)
    conveyor.hasten()
    assert not conveyor.busy
    await conveyor.put(1)
    conveyor.hasten()
    await asyncio.sleep(0)
    await conveyor.put(2)
    conveyor.hasten()
    assert worker.batches == [[1]]
    worker.free.set()
    await conveyor.drain()
    assert worker.batches == [[1], [2]]


async def test_haste_does_not_hide_what_the_worker_raised() -> None:
    async def fail(batch: deque[int]) -> None:
        raise ValueError(f"{len(batch)} items")

    conveyor = Conveyor(fail)
    await conveyor.put(1)
    conveyor.hasten()
    while conveyor.busy:
        await asyncio.sleep(0)
    await conveyor.put(2)
    conveyor.hasten()
    with pytest.raises(ValueError, match="1 items"):
        await conveyor.drain()
