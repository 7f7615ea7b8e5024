"""What the plugins of a job remember at a site: a state for each task, in a file named after the task.

Every training task says which update of the site the controller has accepted last (`Train.after`), and it
starts from the state that the task of that update left. It leaves a state of its own and does not touch the
one it started from. So a learner may be killed at any moment, and a receipt may be lost: a task that is done
again starts from the same state and gives the same update, and what an update remembers counts if and only if
the update does.
"""

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from pydantic import JsonValue

from hansa.common.models.model import DTYPES, Arrays
from hansa.common.process import faults
from hansa.common.site.files import Files, job_file
from hansa.common.values.bounds import Value
from hansa.common.values.errors import InvalidInput, Refused, TooLarge
from hansa.common.values.ids import NAME, JobId, TaskId, odd_tensor
from hansa.common.values.tasks import Task, Train

log = logging.getLogger(__name__)
FOLDER = "memory"  # in the state directory
MEMORY = "hansa.memory"  # the entry of a file that has the notes
LARGEST = 1 << 20  # bytes of a job's notes
KEPT = 1000  # jobs; learners are not told when a job ends
DAYS = 30  # after which a job without tasks is forgotten
PIECE = 1 << 24  # bytes that are compared at a time


class Notes(Value):
    """What plugins remember as JSON."""

    memory: dict[str, JsonValue]


@dataclass
class State:
    """What the plugins of a job remember: notes and arrays."""

    memory: dict[str, JsonValue] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    lost: bool = False  # the state after the site's last accepted update is not here

    def notes(self) -> str:
        """Return the notes as they are written, or refuse what is not JSON or too long."""
        text = _json(self.memory)
        if text is None:
            odd = next((key for key, value in self.memory.items() if _json({key: value}) is None), "")
            raise Refused(
                f"run.memory[{odd!r:.100}] is not JSON: strings, finite numbers, lists and dictionaries"
                " belong in run.memory, arrays in run.arrays"
            )
        size = len(text.encode())
        if size > LARGEST:
            raise TooLarge(
                f"the plugins remember {size} bytes of the job in run.memory; {LARGEST} are allowed"
                " (run.arrays holds more)"
            )
        return text

    def require_arrays(self) -> None:
        """Refuse arrays that cannot be kept."""
        for name, array in self.arrays.items():
            if not isinstance(name, str) or odd_tensor((name,)) or name == "__metadata__":
                raise Refused(f"run.arrays: {name!r:.100} cannot be the name of an array")
            if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
                is_array = isinstance(array, np.ndarray)
                kind = array.dtype.name if is_array else f"{type(array).__name__}, not an array"
                raise Refused(f"run.arrays: {name} is {kind}; arrays of numbers of at most 64 bits are kept")

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


class Recollection:
    """A job's state as a task finds it and its plugins change it; it is read when one of them asks for it."""

    def __init__(self, read: Callable[[], State] = State) -> None:
        self._read = read

    @cached_property
    def state(self) -> State:
        """The state."""
        return self._read()

    @property
    def asked(self) -> bool:
        """Whether a plugin has asked for the state, and may have changed it."""
        return "state" in self.__dict__


class States:
    """The states of a site's jobs, in a folder for each of them."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # States that could not be written: a full disk must not end training.
        self._unwritten: dict[tuple[JobId, str], State] = {}

    def recall(self, task: Task, work: Train) -> Recollection:
        """Return what the plugins of a task start from; forget what later or refused tasks have left."""
        job, after = task.job, work.after
        for key in [key for key in self._unwritten if key[0] == job and key[1] != after]:
            del self._unwritten[key]
        start = _name(job, after)
        for name in self._files.names(job):
            if f"{job}/{name}" != start:
                self._files.delete(f"{job}/{name}")
        return Recollection(lambda: self._read(job, after))

    def keep(
        self, task: Task, work: Train, recollection: Recollection, require: Callable[[Task, int], None]
    ) -> None:
        """Write the state after a task, before its update is handed in.

        `require` refuses states whose arrays have more bytes than the site's owner allows.
        """
        job, after = task.job, work.after
        if recollection.asked:
            recollection.state.require_arrays()
            require(task, recollection.state.nbytes)
            text = recollection.state.notes()
            if not self._has(job, after) or not self._same(job, after, recollection.state, text):
                self._write(job, task.id, recollection.state, text)
                return
        elif not self._has(job, after):
            return  # most plugins remember nothing
        self._carry_on(job, after, task.id)

    def _has(self, job: JobId, task: str) -> bool:
        return bool(task) and ((job, task) in self._unwritten or self._files.exists(_name(job, task)))

    def _read(self, job: JobId, after: str, frozen: bool = False) -> State:
        """Return a state, which may be changed unless it is frozen."""
        if not after:
            return State()
        if (job, after) in self._unwritten:
            return deepcopy(self._unwritten[job, after])
        name = _name(job, after)
        try:
            arrays, texts = self._files.read_tensors(name, frozen)
            return State(Notes.model_validate_json(texts[MEMORY]).memory, arrays)
        except FileNotFoundError:
            log.warning("job %s: what the plugins remembered after task %s is not here", job, after)
        except (OSError, InvalidInput, KeyError, ValueError) as error:
            why = error if isinstance(error, OSError | InvalidInput) else "damaged"
            where = self._files.where(name)
            log.warning("job %s: what the plugins remembered cannot be read: %s: %s", job, where, why)
        return State(lost=True)

    def _same(self, job: JobId, after: str, state: State, text: str) -> bool:
        """Whether a state is the one that the task started from."""
        start = self._read(job, after, frozen=True)
        return not start.lost and start.notes() == text and _equal(start.arrays, state.arrays)

    def _carry_on(self, job: JobId, after: str, task: TaskId) -> None:
        """Let a task leave the state that it started from."""
        if (job, after) in self._unwritten:
            self._unwritten[job, task] = self._unwritten[job, after]
            return
        try:
            self._files.link(_name(job, after), _name(job, task))  # nothing is written twice
        except OSError:  # the file system has no links
            state = self._read(job, after)
            self._write(job, task, state, state.notes())

    def _write(self, job: JobId, task: TaskId, state: State, text: str) -> None:
        name = _name(job, task)
        try:
            if not self._files.exists(job):
                self._make_room()
            self._files.write_tensors(name, state.arrays, {MEMORY: text})
        except OSError as error:
            where, what = self._files.where(name), "a restart would lose what the plugins remember"
            log.error("%s: cannot be written: %s; %s", where, error.strerror, what)  # noqa: TRY400
            self._unwritten[job, task] = deepcopy(state)
            self._unwritten[job, task].lost = False
        faults.reach("state-kept")

    def _make_room(self) -> None:
        """Forget the jobs that had their last tasks longest ago."""
        jobs = self._files.names()
        for number, job in enumerate(jobs, 1):
            if number <= len(jobs) + 1 - KEPT or self._files.age(job) > DAYS * 24 * 3600:
                self._files.delete(job)


def _name(job: JobId, task: str) -> str:
    """Return the file of a state; a job without an accepted update has none."""
    if task and not NAME.fullmatch(task):
        raise InvalidInput(f"{task!r} is not a task id")
    return job_file(job, f"/{task}.safetensors")


def _json(memory: dict[str, JsonValue]) -> str | None:
    """Return notes as JSON, or None if they are something else."""
    try:
        text = Notes(memory=memory).model_dump_json()
        text.encode()
    except ValueError:
        return None
    return text


def _equal(some: Arrays, others: Arrays) -> bool:
    """Whether arrays are the same, bit for bit."""
    if some.keys() != others.keys():
        return False
    for name, one in some.items():
        other = others[name]
        if (one.dtype.name, one.shape) != (other.dtype.name, other.shape):
            return False
        left, right = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
        for at in range(0, len(left), PIECE):
            if not np.array_equal(left[at : at + PIECE], right[at : at + PIECE]):
                return False
    return True
