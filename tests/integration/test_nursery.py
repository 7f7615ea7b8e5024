"""How `hansa run` starts processes: a Ctrl-C at that moment is neither lost nor passed to them.

Each test has its own process: in one with other threads, any of them may receive a signal.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CTRL_C = """
import os, signal
from multiprocessing import forkserver
from hansa.common.run import nursery
begun = []
def start_slowly():
    os.kill(os.getpid(), signal.SIGINT)
    begun.append(True)
forkserver.ensure_running = start_slowly
try:
    nursery.ensure_fork_server()
except KeyboardInterrupt:
    assert begun == [True], "the start itself is disturbed"
else:
    raise AssertionError("the Ctrl-C is lost")
"""
MASKS = """
import os, pathlib, signal
from hansa.common.run import nursery
def masks(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split()[0]: int(line.split()[1], 16) for line in lines if line.startswith("SigBlk")}
nursery.ensure_fork_server()
interrupt = 1 << (signal.SIGINT - 1)
assert masks(nursery.forkserver._forkserver._forkserver_pid)["SigBlk:"] & interrupt
assert not masks(os.getpid())["SigBlk:"] & interrupt
nursery.Nursery().close()
"""


def test_a_ctrl_c_while_the_fork_server_starts_comes_after_it() -> None:
    subprocess.run([sys.executable, "-c", CTRL_C], check=True, timeout=120)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signal masks are read from /proc")
def test_the_fork_server_blocks_ctrl_c_from_the_start_and_we_do_not() -> None:
    subprocess.run([sys.executable, "-c", MASKS], check=True, timeout=120)
