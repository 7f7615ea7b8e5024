"""The record of a run, in its folder: what it computes, how it ended, and its job on a controller."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from hansa.common.process.files import write_whole
from hansa.common.values.documents import written

RECORD = "run.json"
Status = Literal["running", "completed", "failed"]


@dataclass(frozen=True)
class Record:
    """How a run stands; `running` after a crash, too."""

    digest: str  # of what it computes from, so that a changed sweep does not take it for its own
    status: Status
    reason: str = ""  # why it failed
    hansa: str = ""  # the version that ran it
    started: str = ""
    seconds: float = 0.0  # until it ended
    job: str = ""  # its id on a standing controller


def read_record(folder: Path) -> Record | None:
    """Return a run's record; None if there is none that can be read."""
    try:
        return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """Write a run's record."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RECORD, f"{written(asdict(record))}\n".encode(), 0o644)


def note_job(folder: Path, job: str) -> None:
    """Remember which job of a controller a run is."""
    record = read_record(folder) or Record("", "running")
    write_record(folder, replace(record, job=job))


def noted_job(folder: Path) -> str | None:
    """Return the job of a controller that a run is, if it was submitted."""
    record = read_record(folder)
    return record.job or None if record else None
