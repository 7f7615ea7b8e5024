"""A Ray of our own on this machine, which lives as long as the driver.

If the process that started Ray is killed, some of Ray's agents go on for about a minute, and nobody is left
to end them. So we start Ray below a keeper. The keeper waits until the driver hangs up, however that happens,
and then ends everything below it. Ray listens on all addresses of the machine: a token that only our
processes know keeps others out.
"""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from hansa.common.values.errors import HansaError, one_line

QUIET = {  # Ray's own settings
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without this, it warns
    "RAY_USAGE_STATS_ENABLED": "0",  # no statistics for its authors
}
KEEP, START = "keep", "start"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_TOKEN = secrets.token_hex(32)


class LocalRay:
    """A local Ray, from the driver's side."""

    def __init__(self, cpus: int) -> None:
        _agree_on_a_token()
        folder = tempfile.mkdtemp(prefix="hansa-ray-")
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, KEEP, folder, str(cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the driver
        )
        assert self._keeper.stdout is not None
        word, _, rest = self._keeper.stdout.readline().strip().partition(" ")
        if word != "ready":
            self.close()
            raise HansaError(f"--ray auto: Ray does not start: {rest or 'it ended without a word'}")
        self.address = rest

    def close(self) -> None:
        """End all of its processes."""
        self._keeper.communicate()


def _agree_on_a_token() -> None:
    """Let Ray in this process and below it use a token; it reads these settings when it is loaded."""
    if "ray" not in sys.modules:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
    elif os.environ.get("RAY_AUTH_MODE") != "token":
        raise HansaError("--ray auto: set RAY_AUTH_MODE=token before Ray is imported")


def _keep(folder: str, cpus: str) -> None:
    """Keep a Ray until standard input ends; then end whatever is below us, and remove its files."""
    _control_process(PR_SET_CHILD_SUBREAPER, 1)  # orphans below us become our children
    command = [sys.executable, "-m", __spec__.name, START, folder, cpus]
    subprocess.Popen(command, stdin=subprocess.DEVNULL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # if the start fails, the driver sees the end of it
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()
    with contextlib.suppress(ChildProcessError):  # no children are left
        while True:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)  # they hold nothing that anybody needs
            os.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _start(folder: str, cpus: str) -> None:
    """Start a Ray and stay: its processes end with us, and we with the keeper."""
    _control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray may print
    try:
        import ray

        ray.init(
            address="local",
            num_cpus=int(cpus),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
        )
        answer.write(f"ready {ray.get_runtime_context().gcs_address}\n")
    except Exception as error:
        answer.write(f"failed {one_line(error)}\n")
        raise SystemExit(1) from None
    answer.close()
    signal.pause()


def _children() -> list[int]:
    texts = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return [int(number) for text in texts for number in text.split()]


def _control_process(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    {KEEP: _keep, START: _start}[sys.argv[1]](*sys.argv[2:])
