"""TensorBoard: a run for the job, and one for each site beside it, in a folder."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.common.process.files import write_whole
from hansa.common.trackers.base import Tracker, pooled_numbers, site_numbers
from hansa.common.values.errors import InvalidInput, Refused
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView

NOTE = ".hansa.json"  # says which version is a run's newest; no site can have this name


class TensorBoard(Tracker):
    """Folders `DIR/NAME-ID` and `DIR/NAME-ID/SITE`. What was cut off half way is replaced."""

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError:
            raise Refused("--to tensorboard needs tensorboardX: pip install 'hansa[tracking]'") from None
        self._folder = folder
        self._run = folder
        self._after = -1
        self._writers: dict[str, Any] = {}

    def open(self, job: JobView) -> int:
        """Read which versions the folder has."""
        self._run = self._folder / f"{job.name}-{job.job}"
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            note = self._run / NOTE
            self._after = int(json.loads(note.read_text())["version"]) if note.exists() else -1
        except OSError as error:
            raise self._unusable(error) from None
        except (ValueError, LookupError, TypeError):
            raise InvalidInput(f"{self._run / NOTE}: damaged; choose another folder") from None
        return self._after

    def take(self, version: VersionView) -> None:
        """Write a version's numbers, and note it when all are on disk."""
        try:
            for site, numbers in {"": pooled_numbers(version), **site_numbers(version)}.items():
                writer = self._writer(site)
                writer.write_event(_scalars(numbers, version.version))
                writer.flush()
            write_whole(self._run / NOTE, json.dumps({"version": version.version}).encode(), 0o644)
        except OSError as error:
            raise self._unusable(error) from None

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()

    def _unusable(self, error: OSError) -> InvalidInput:
        return InvalidInput(f"{error.filename or self._run}: cannot be written: {error.strerror}")

    def _writer(self, site: str) -> Any:
        """Return the writer of a run: not a SummaryWriter, whose `flush` does not wait for its queue."""
        if site not in self._writers:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog

            folder = self._run / site
            folder.mkdir(exist_ok=True)
            # Steps from `begun` on are written again. Two exports that begin in one second need two files.
            begun = self._after + 1
            writer = EventsWriter(str(folder / "events"), f".from-{begun:08}")
            writer.write_event(Event(step=begun, session_log=SessionLog(status=SessionLog.START)))
            self._writers[site] = writer
        return self._writers[site]


def _scalars(numbers: Mapping[str, float], step: int) -> Any:
    """Return the event that has these numbers of a step."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=values))
