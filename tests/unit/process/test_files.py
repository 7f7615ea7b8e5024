"""Files appear complete or not at all."""

import errno
import os
from pathlib import Path

import pytest

from hansa.common.process.files import write_whole


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_durable_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path, real, synced = tmp_path / "mark", os.fsync, list[tuple[int, bool]]()

    def noted(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, path.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    write_whole(path, b"here", 0o600, durable)
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert synced == ([(file, False), (folder, True)] if durable else [])


def test_a_disk_that_is_full_keeps_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mark"
    write_whole(path, b"old", 0o600)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new", 0o600)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("mark", b"old")]
