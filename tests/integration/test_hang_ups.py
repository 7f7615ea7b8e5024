"""Operators who hang up during a submission leave nothing behind."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import filled, job, sealed, serving, small_spec


async def test_an_operator_who_hangs_up_while_a_draft_is_begun_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow: the thread that begins the draft cannot be stopped, and ends after they left."""
    drafts, begun, go_on, opened = tmp_path / "store" / "drafts", asyncio.Event(), threading.Event(), os.open
    loop, (manifest, payload) = asyncio.get_running_loop(), sealed(small_spec(), filled(small_spec(), 1.0))

    def slow(path: Any, *how: Any, **more: Any) -> int:
        if Path(path).parent == drafts:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(30)
        return opened(path, *how, **more)

    async def frames() -> AsyncIterator[bytes]:
        yield payload.tobytes()

    async with serving(tmp_path) as served, asyncio.timeout(30):
        monkeypatch.setattr(os, "open", slow)
        submission = asyncio.create_task(served.submit(job(), manifest, frames()))
        await begun.wait()
        submission.cancel()
        loop.call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await submission
        await served.federation.workers.io(lambda: None)  # threads that were at work before have come back
        assert list(drafts.iterdir()) == []
