"""Files that may be read while they are written: they appear complete or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path

from typing_extensions import Buffer


def write_whole(path: Path, content: bytes | Iterable[Buffer], mode: int, durable: bool = True) -> None:
    """Write a file with its final permissions from the start; readers see the old file or the new one.

    The content may come in parts. A file that is not `durable` survives a crash of the process, but perhaps
    not one of the machine.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)  # the disk may be full
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: syncing a file syncs its contents, not its name."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
