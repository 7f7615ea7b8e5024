"""Pauses between tries: short at first, since most outages are restarts; long only after many failures."""

import asyncio

from hansa.common.rpc.backoff import FIRST_PAUSE, LONGEST_PAUSE, QUICK_PAUSE, QUICK_TRIES, Backoff


def test_the_first_retries_come_within_a_second_and_only_repeated_failures_make_pauses_longer() -> None:
    backoff = Backoff()
    pauses = [backoff.pause() for _ in range(QUICK_TRIES + 10)]
    assert pauses[0] <= FIRST_PAUSE
    assert sum(pauses[:4]) <= 15 * FIRST_PAUSE
    assert max(pauses[:QUICK_TRIES]) <= QUICK_PAUSE <= 1
    assert sum(pauses[:QUICK_TRIES]) >= 25  # seconds: a container with a large journal is up by then
    assert QUICK_PAUSE < min(pauses[-5:]) <= max(pauses[-5:]) <= LONGEST_PAUSE


def test_success_makes_pauses_short_again() -> None:
    backoff = Backoff()
    for _ in range(QUICK_TRIES + 1):
        backoff.pause()
    assert backoff.patient
    backoff.reset()
    assert not backoff.patient
    assert backoff.pause() <= FIRST_PAUSE


def test_sites_do_not_return_in_step() -> None:
    backoffs = [Backoff() for _ in range(50)]
    for _ in range(5):
        pauses = {backoff.pause() for backoff in backoffs}
    assert len(pauses) > 40
    assert max(pauses) > 1.3 * min(pauses)


async def test_a_rest_ends_when_the_next_try_is_worth_while() -> None:
    backoff, back = Backoff(), asyncio.Event()
    for _ in range(QUICK_TRIES + 10):
        backoff.pause()
    resting = asyncio.create_task(backoff.rest(back))
    await asyncio.sleep(0)
    back.set()
    async with asyncio.timeout(2):
        await resting
