"""A worker process: it does blocks of tasks until the driver hangs up."""

import gc
import os
import signal
import threading
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue

from hansa.common.torch.threads import wait_without_spinning
from hansa.common.values.errors import reason
from hansa.common.values.ids import ModelKey
from hansa.simulation.crew.blocks import Block, BlockModels, Done, Fetched, Ready, placed, received, sent
from hansa.simulation.sites.desk import Desk
from hansa.simulation.storage.slab import View


def work(pipe: Connection, make: bytes, slab: str, folder: str) -> None:
    """Do what comes through the pipe. The pipe ends when the driver does, however that happens."""
    gc.freeze()  # what the fork server loaded never becomes garbage, and stays shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then ends us
    blocks: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, blocks), daemon=True).start()
    os.chdir(folder)  # the fork server has the folder of its own start
    import torch

    torch.set_num_threads(1)
    models, view = BlockModels(), View(slab)
    try:
        desk: Desk = received(make)(models)
    except Exception as error:
        pipe.send_bytes(sent(Ready(reason(error))))
        return
    pipe.send_bytes(sent(Ready()))
    while True:
        block: Block = received(blocks.get())
        models.take(block.models, partial(_fetch, block, view))
        for task in block.over:
            desk.forget(task)
        outcomes = tuple(
            placed(outcome, slot, view)
            for outcome, slot in zip(desk.do_all(block.assignments), block.slots, strict=True)
        )
        pipe.send_bytes(sent(Done(block.number, outcomes)))


def _fetch(block: Block, view: View, key: ModelKey) -> Fetched:
    return block.models[key].fetched(view)


def _receive(pipe: Connection, blocks: "SimpleQueue[bytes]") -> None:
    """Take blocks from the pipe while others are done; end the process when the driver ends.

    If the pipe were read between blocks only, both ends could wait for each other for ever: the driver to get
    rid of a large block, and the worker of large outcomes.
    """
    while True:
        try:
            blocks.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)


wait_without_spinning()  # the fork server imports this module, before PyTorch
