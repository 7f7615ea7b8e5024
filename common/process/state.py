"""State directories: one process at a time, its pid, its log, its readiness."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hansa.common.values.errors import Broken, HansaError, Refused, StoreFailed, Taken

READY = "HANSA_READY_FD"  # the descriptor on which a detached daemon reports that it is up, or why not
FORMAT = 3  # of everything in a state directory; migration starts with release 0.2.0
TRIES = 10  # to take a lock, within half a second


@contextmanager
def locked(folder: Path, role: str) -> Iterator[None]:
    """Hold a state directory for this process; refuse if another process holds it.

    New files are for the owner only: the directory may be older, and open to others.
    """
    make_folder(folder)
    mask = os.umask(0o077)
    try:
        handle = os.open(
            folder / f"{role}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        os.umask(mask)
        raise StoreFailed(f"state directory {folder}: {error.strerror}") from None
    try:
        if not _flock(handle):
            pid = read_note(folder, role).get("pid", "unknown")
            raise Taken(f"state directory {folder} is in use by another {role} (pid {pid})")
        check_format(folder, mark=True)
        write_note(folder, role, {"pid": os.getpid()})
        yield
    finally:
        os.umask(mask)
        os.close(handle)


def _flock(handle: int) -> bool:
    """Take an exclusive lock; `status` and `stop`, which only look, hold a shared one for a moment."""
    for _ in range(TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def make_folder(folder: Path) -> None:
    """Create a state directory for its owner only; refuse one that contains links to other files."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        links = [path.name for path in folder.iterdir() if path.is_symlink() and not path.is_dir()]
    except OSError as error:
        raise StoreFailed(f"state directory {folder}: {error.strerror}") from None
    if links:
        raise Refused(
            f"state directory {folder}: {links[0]} is a link to another file, which Hansa must not touch"
        )


def check_format(folder: Path, mark: bool) -> None:
    """Refuse a state directory of another format; `mark` a new one with ours."""
    path = folder / "format"
    text = path.read_text(errors="replace").strip() if path.exists() else ""
    if not text:  # the directory is new, or the disk was full when it was created
        if mark:
            try:
                path.write_text(f"{FORMAT}\n")
            except OSError as error:
                raise StoreFailed(f"state directory {folder}: {error.strerror}") from None
    elif not text.isdecimal():
        raise Broken(f"{path} is damaged: it should hold the number {FORMAT}")
    elif int(text) != FORMAT:
        age = "a newer" if int(text) > FORMAT else "an older"
        raise Refused(
            f"state directory {folder} was written by {age} Hansa"
            f" (format {int(text)}, this one knows {FORMAT});"
            " choose another --state"
        )


def write_note(folder: Path, role: str, note: dict[str, Any]) -> None:
    """Write which process holds the directory, for `status` and `stop`."""
    path = folder / f"{role}.lock"
    path.write_text(json.dumps(note) + "\n")


def read_note(folder: Path, role: str) -> dict[str, Any]:
    """Read which process holds, or last held, the directory."""
    try:
        note = json.loads((folder / f"{role}.lock").read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def holder(folder: Path, role: str) -> int | None:
    """Return the pid of the process that holds a state directory, or None if it is free."""
    try:
        handle = os.open(folder / f"{role}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Shared, so that others who look are not mistaken for the holder.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(read_note(folder, role).get("pid", 0)) or None
    else:
        return None
    finally:
        os.close(handle)


def stop(folder: Path, role: str, patience: float = 30.0) -> bool:
    """Ask the holder of a state directory to stop and wait for it; return whether there was one."""
    pid = holder(folder, role)
    if pid is None:
        return False
    patience += float(read_note(folder, role).get("drain", 0))  # it may finish a task first
    if not _end(pid, patience, lambda: holder(folder, role) == pid):
        raise HansaError(f"{role} (pid {pid}) did not stop within {patience:g} s")
    return True


def _end(pid: int, patience: float, holds: Callable[[], bool]) -> bool:
    """Tell a process to stop; return whether it ended in time (without pidfd, its lock shows it)."""
    if hasattr(os, "pidfd_open"):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        with os.fdopen(handle) as process:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            return bool(select.select([process], [], [], patience)[0])
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + patience
    while holds() and time.monotonic() < end:
        time.sleep(0.05)
    return not holds()


def detach(arguments: list[str], folder: Path, role: str, patience: float = 120.0) -> str:
    """Start the same command without --daemon in its own session; return what it announces when it is up."""
    log = log_file(folder, role)
    make_folder(folder)
    try:
        out = os.fdopen(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab")
    except OSError as error:
        raise StoreFailed(f"state directory {folder}: {error.strerror}") from None
    read, write = os.pipe()
    with out:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "hansa", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            pass_fds=(write,),
            env=os.environ | {READY: str(write), "HANSA_LOG_FILE": str(log)},
        )
    os.close(write)
    with os.fdopen(read) as answers:
        answer = answers.readline().strip()  # returns when the child answers or dies
    if not answer.startswith("ready "):
        code = child.wait(timeout=patience)
        failure = HansaError(
            answer.removeprefix("failed ") or f"the {role} ended with code {code}; see {log}"
        )
        failure.exit_code = code or 1
        raise failure
    return answer.removeprefix("ready ")


def log_file(folder: Path, role: str) -> Path:
    """Return where a detached process writes its log."""
    return folder / f"{role}.log"


def announce(text: str) -> None:
    """Tell the process that detached us, if any, that we are up (`ready …`) or why not (`failed …`)."""
    descriptor = os.environ.pop(READY, None)
    if descriptor:
        with os.fdopen(int(descriptor), "w") as parent:
            parent.write(" ".join(text.split()) + "\n")
