"""A deployed job as its controller's journal has it, for a replay."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.common.job.spec import JobSpec
from hansa.common.values.errors import InvalidInput, NotFound, Refused
from hansa.common.values.wording.words import listed
from hansa.controller.engine import events as ev
from hansa.controller.jobs.records import event_of, find_record, read_spec
from hansa.controller.plugin.policies import Policy
from hansa.controller.rulebook.compose import composed_again
from hansa.controller.storage.backends import JOURNAL, recorded
from hansa.controller.storage.journal import JobRecord
from hansa.simulation.sites.data import VirtualData

# What a controller is not told or writes itself, and what the recorded job says better than a job file.
APART = {"name", "app", "data", "simulate", "operator", "made_with", "sites", "init", "reference"}
OF_A_RUN = "controller"  # the controller's folder within that of `hansa run`


@dataclass(frozen=True)
class Recording:
    """A job as it was submitted, and everything that happened to it."""

    record: JobRecord
    spec: JobSpec
    events: tuple[ev.Event, ...]

    def require_fit(self, spec: JobSpec, data: VirtualData) -> None:
        """Refuse a job that cannot be replayed, and a job file or sites that are not those of the job."""
        job = self.record.id
        if composed_again(self.spec).policies_with(Policy.listens):
            raise Refused(
                f"--replay: sites of job {job} listened to what others committed while they trained"
                " (train.until); the journal does not say what they heard, so the job cannot be replayed"
            )
        other = [name for name in JobSpec.model_fields if name not in APART and self._differs(name, spec)]
        if other:
            raise InvalidInput(
                f"--replay: the job file is not that of job {job}: {listed(other)} {_differ(other)}"
            )
        joined = {event.site for event in self.events if isinstance(event, ev.SiteJoined)}
        unknown = sorted(joined - set(data.names))
        if unknown:
            raise InvalidInput(
                f"--replay: job {job} had sites that the job file does not have: {listed(unknown, 5)}"
            )

    def _differs(self, name: str, spec: JobSpec) -> bool:
        return bool(_plain(getattr(self.spec, name)) != _plain(getattr(spec, name)))


def read_recording(path: Path, job: str | None) -> Recording:
    """Read a job from a journal, from a controller's folder, or from the folder of `hansa run`.

    Without a `job` there must be only one.
    """
    folder = path.parent if path.name == JOURNAL else path
    if not (folder / JOURNAL).exists() and (folder / OF_A_RUN / JOURNAL).exists():
        folder = folder / OF_A_RUN
    if not (folder / JOURNAL).is_file():
        raise NotFound(f"--replay {path}: there is no {JOURNAL}; name the state directory of a controller")
    with recorded("memory:", folder) as backends:  # models are not needed
        records = backends.journal.jobs()
        if job is None and len(records) != 1:
            known = listed((record.id for record in records), 10) or "none"
            raise InvalidInput(f"--replay {path}: say which job with --job; known jobs: {known}")
        record = records[0] if job is None else find_record(records, job)
        entries = backends.journal.entries(record.id)
    if not entries:
        raise NotFound(f"--replay {path}: nothing has happened to job {record.id} yet")
    events = tuple(event_of(record.id, entry, number) for number, entry in enumerate(entries, 1))
    return Recording(record, read_spec(record), events)


def _plain(value: Any) -> Any:
    plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return plain or None  # a part without fields is no part


def _differ(fields: list[str]) -> str:
    return "differs" if len(fields) == 1 else "differ"
