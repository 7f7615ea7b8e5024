"""How the processes of `hansa run` are started: a Ctrl-C in that moment is neither lost nor given to them."""

import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from hansa.common.run.nursery import _ensure_fork_server

SIGNALS = """
import os, pathlib, signal
from hansa.common.run import nursery
def masks(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split()[0]: int(line.split()[1], 16) for line in lines if line.startswith("SigBlk")}
nursery._ensure_fork_server()
interrupt = 1 << (signal.SIGINT - 1)
assert masks(nursery.forkserver._forkserver._forkserver_pid)["SigBlk:"] & interrupt
assert not masks(os.getpid())["SigBlk:"] & interrupt
nursery.Nursery().close()
"""


def test_a_ctrl_c_while_the_fork_server_starts_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []

    def start_slowly() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        begun.append(True)

    monkeypatch.setattr(forkserver, "ensure_running", start_slowly)
    with pytest.raises(KeyboardInterrupt):
        _ensure_fork_server()
    assert begun == [True], "the start itself is not disturbed"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signal masks are read from /proc")
def test_the_fork_server_is_deaf_to_ctrl_c_from_its_first_moment_and_we_are_not() -> None:
    subprocess.run([sys.executable, "-c", SIGNALS], check=True, timeout=120)
