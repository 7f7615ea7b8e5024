"""A worker process: it does blocks of tasks until the driver hangs up."""

import gc
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from hansa.common.torch.threads import wait_without_spinning
from hansa.simulation.crew.base import Models
from hansa.simulation.crew.blocks import Block, BlockModels, Done, placed, received, sent
from hansa.simulation.desk import Desk
from hansa.simulation.slab import View

MakeDesk = Callable[[Models], Desk]


def work(pipe: Connection, life: Connection, make: bytes, slab: str, folder: str) -> None:
    """Do what comes through the pipe. `life` is closed when the driver ends, however it ends."""
    gc.freeze()  # what the fork server loaded never becomes garbage, and stays shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then ends us
    threading.Thread(target=_die_with_the_driver, args=(life,), daemon=True).start()
    os.chdir(folder)  # the fork server has the folder of its own start
    import torch

    torch.set_num_threads(1)
    models, view = BlockModels(), View(slab)
    desk: Desk = received(make)(models)
    while True:
        try:
            block: Block = received(pipe.recv_bytes())
        except EOFError:
            return
        models.take(block, view)
        for task in block.over:
            desk.forget(task)
        outcomes = tuple(
            placed(outcome, slot, view)
            for outcome, slot in zip(desk.do_all(block.assignments), block.slots, strict=True)
        )
        pipe.send_bytes(sent(Done(block.number, outcomes)))


def _die_with_the_driver(life: Connection) -> None:
    try:
        life.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


wait_without_spinning()  # the fork server imports this module, before PyTorch
