"""Messages to those who watch a job whose controller stays away."""

import asyncio

import pytest

from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.job.watching import Watching
from hansa.common.values.errors import Unreachable
from tests.redis_server import free_port


async def test_a_controller_that_stays_away_is_mentioned_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hansa.common.ui.job.watching.REMINDER", 0.01)
    told: list[str] = []
    enough = asyncio.Event()

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 4:
            enough.set()

    to = Endpoint(f"127.0.0.1:{free_port()}")
    watching = Watching(to, "j1", known=True, tell=tell)
    trying = asyncio.ensure_future(anext(watching.views()))
    async with asyncio.timeout(30):
        await enough.wait()
    trying.cancel()
    await asyncio.gather(trying, return_exceptions=True)
    assert told[0] == f"lost the connection to {to}; trying again (Ctrl-C stops watching, not the job)"
    assert all(text.startswith(f"no controller has answered at {to} for ") for text in told[1:])
    assert "continues when its controller is back" in watching.farewell()


async def test_a_job_that_may_not_exist_is_not_waited_for() -> None:
    watching = Watching(Endpoint(f"127.0.0.1:{free_port()}"), "j1")
    with pytest.raises(Unreachable, match="no controller answers"):
        await anext(watching.views())
    assert watching.farewell() == ""
