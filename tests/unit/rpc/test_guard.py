"""The guard's patience: a call is ended if its caller is silent for too long, and for no other reason."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hansa.common.rpc.guard import Call
from hansa.common.values.errors import TooLarge


class Caller:
    """Sends the messages that it is given."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard: list[bytes | None] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.words.get()

    def listened_to(self, *waits: tuple[float | None, str]) -> Call:
        """Begin a call that waits for some messages, with a limit in seconds for each."""

        async def listen() -> None:
            stream = aiter(self)
            for seconds, what in waits:
                self.heard.append(await call.next(stream, seconds, what))
            await asyncio.Event().wait()

        call = Call(None, None)
        call.task = asyncio.create_task(listen())
        return call

    async def says(self, word: bytes) -> None:
        """Send a message and return when it was received."""
        count = len(self.heard)
        self.words.put_nowait(word)
        while len(self.heard) == count:
            await asyncio.sleep(0)


async def ended(call: Call) -> str:
    """Wait until a call is ended, and return why."""
    assert call.task is not None
    async with asyncio.timeout(10):
        await asyncio.wait([call.task])
    assert call.task.cancelled()
    assert isinstance(call.ended, TooLarge)
    return str(call.ended)


async def over(call: Call) -> None:
    call.close()
    assert call.task is not None
    call.task.cancel()
    await asyncio.wait([call.task])


async def test_a_caller_that_sends_nothing_learns_how_long_we_waited() -> None:
    assert (
        await ended(Caller().listened_to((0.01, "no message arrived")))
        == "no message arrived for 0.01 s, which is the limit"
    )


@pytest.mark.parametrize(("patience", "silence"), [(300.0, 0.01), (0.01, 0.02)])
async def test_a_silent_caller_is_refused_however_long_the_first_message_could_have_taken(
    patience: float, silence: float
) -> None:
    caller = Caller()
    caller.words.put_nowait(b"first")
    call = caller.listened_to((patience, "no message arrived"), (silence, "no further message arrived"))
    assert await ended(call) == f"no further message arrived for {silence:g} s, which is the limit"


async def test_the_time_that_a_message_takes_us_is_not_silence() -> None:
    caller = Caller()
    call = caller.listened_to((300.0, "no message arrived"))
    await caller.says(b"first")
    call.look()  # the timer fires while the message is being handled
    assert (call.ended, call.timer) == (None, None)
    await over(call)


async def test_a_timer_that_was_set_for_an_earlier_message_is_set_anew() -> None:
    caller = Caller()
    call = caller.listened_to(*[(300.0, "no message arrived")] * 3)
    await caller.says(b"first")
    timer = call.timer
    await caller.says(b"second")
    assert call.timer is timer  # one timer, however many messages
    call.look()  # the third is not due yet
    assert call.ended is None
    assert call.timer is not None
    assert call.timer is not timer
    assert timer is not None
    timer.cancel()
    await caller.says(b"third")
    assert caller.heard == [b"first", b"second", b"third"]
    await over(call)


async def test_a_call_that_may_be_silent_is_not_ended_by_the_timer_of_its_first_message() -> None:
    caller = Caller()
    call = caller.listened_to((300.0, "no message arrived"), (None, "no further message arrived"))
    await caller.says(b"first")
    call.look()
    assert call.ended is None
    await caller.says(b"second")
    await over(call)


async def test_a_call_that_was_ended_for_one_reason_is_not_ended_for_another() -> None:
    call = Caller().listened_to((300.0, "no message arrived"))
    call.end(TooLarge("first"))
    call.end(TooLarge("second"))
    assert await ended(call) == "first"
    assert call.task is not None
    assert call.task.cancelling() == 1
    call.close()
