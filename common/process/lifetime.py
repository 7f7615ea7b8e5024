"""How a process learns that it should stop."""

import asyncio
import multiprocessing
import signal


async def stop_signal() -> None:
    """Return at the first SIGTERM or SIGINT, or when our multiprocessing parent is gone."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, stop.set)
    await stop.wait()
    if parent is not None:
        loop.remove_reader(parent.sentinel)
