"""The folder through which a learner and the process that trains for it talk.

They may be on two machines with a file system in common, so there is nothing between them but files, each of
which appears as a whole. The learner deletes the folder when it needs it no longer; a process whose folder is
gone stops.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.models.checkpoints import about, as_model
from hansa.common.models.frames import Layout, views
from hansa.common.models.model import Manifest
from hansa.common.rpc import task_codec
from hansa.common.site.files import DiskFiles
from hansa.common.values.bounds import Value
from hansa.common.values.errors import InvalidInput
from hansa.common.values.results import Failure, Progress, UpdateFacts
from hansa.common.values.tasks import Task
from hansa.learner.memory.finished import FACTS, Update
from hansa.learner.training.memory import Memory, PlainKnown, PlainMemory
from hansa.protos import fleet_pb2 as fleet

ORDER, TASK, BASE, MEMORY = "order.json", "task", "base.safetensors", "memory.safetensors"
PULSE, CANCELLED, PROGRESS = "pulse.json", "cancelled", "progress.json"
UPDATE, MEMORY_AFTER, FAILURE = "update.safetensors", "memory-after.safetensors", "failure.json"
NOTES = "hansa.notes"  # what of a memory is not an array


class Order(Value):
    """What a training process must know of its learner."""

    site: str
    data: Path
    state: Path
    personal: Path | None
    policy: Path | None
    split: str
    device: str
    threads: int | None
    slow: float


class Parcel:
    """The files of one task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = DiskFiles(folder)

    def delete(self) -> None:
        """Delete the folder: whoever still trains for it stops."""
        self._files.delete("")

    @property
    def is_there(self) -> bool:
        """Whether the learner still wants the result."""
        return self._files.exists(ORDER) and not self._files.exists(CANCELLED)

    # What the learner writes.

    def put_order(
        self,
        order: Order,
        task: Task,
        base: Manifest,
        arrays: Mapping[str, np.ndarray],
        memory: PlainMemory | None,
    ) -> None:
        """Write what the training process needs."""
        self._write(TASK, task_codec.task_to_wire(task).SerializeToString())
        self._files.write_tensors(BASE, dict(arrays), about(base.spec), durable=False)
        self._put_memory(MEMORY, memory)
        self._write(ORDER, order.model_dump_json().encode())  # the last: it is there if all is there

    def put_pulse(self, steps: int | None) -> None:
        """Write how many steps the controller has committed to the job."""
        self._write(PULSE, json.dumps(steps).encode())

    def cancel(self) -> None:
        """Withdraw the task."""
        self._write(CANCELLED, b"")

    def settings(self) -> Order:
        """Read what the training process must know first, or refuse a folder without a task."""
        try:
            return Order.model_validate_json(self._files.read(ORDER))
        except OSError:
            raise InvalidInput(
                f"{self.folder}: no task is waiting there; a learner with --launcher starts this command"
            ) from None

    def order(self) -> tuple[Order, Task, Manifest, dict[str, np.ndarray], PlainMemory | None]:
        """Read what the training process needs."""
        wire = fleet.Task.FromString(self._files.read(TASK))
        arrays, texts = self._files.read_tensors(BASE)
        base, payload = as_model(arrays, texts, self._files.where(BASE))
        numbers = dict(views(Layout(base.spec), payload))
        return self.settings(), task_codec.task_from_wire(wire), base, numbers, self._memory(MEMORY)

    def pulse(self) -> int | None:
        """Read how many steps the controller has committed to the job."""
        try:
            steps = json.loads(self._files.read(PULSE))
        except OSError:
            return None
        return steps if isinstance(steps, int) else None

    # What the training process writes.

    def put_progress(self, progress: Progress) -> None:
        """Write how far training has come."""
        self._write(PROGRESS, progress.model_dump_json().encode())

    def progress(self) -> Progress | None:
        """Read how far training has come."""
        try:
            return Progress.model_validate_json(self._files.read(PROGRESS))
        except OSError:
            return None

    def put_update(self, update: Update, memory: PlainMemory | None) -> None:
        """Write the result."""
        self._put_memory(MEMORY_AFTER, memory)
        spec = update.manifest.spec
        texts = about(spec) | {FACTS: update.facts.model_dump_json()}
        self._files.write_tensors(UPDATE, views(Layout(spec), update.payload), texts, durable=False)

    def update(self) -> tuple[Update, PlainMemory | None] | None:
        """Read the result, if there is one."""
        if not self._files.exists(UPDATE):
            return None
        arrays, texts = self._files.read_tensors(UPDATE)
        manifest, payload = as_model(arrays, texts, self._files.where(UPDATE))
        facts = UpdateFacts.model_validate_json(texts[FACTS])
        return Update(manifest, payload, facts), self._memory(MEMORY_AFTER)

    def put_failure(self, failure: Failure) -> None:
        """Write why there is no result."""
        self._write(FAILURE, failure.model_dump_json().encode())

    def failure(self) -> Failure | None:
        """Read why there is no result."""
        if not self._files.exists(FAILURE):
            return None
        return Failure.model_validate_json(self._files.read(FAILURE))

    def _write(self, name: str, content: bytes) -> None:
        self._files.write(name, content, durable=False)

    def _put_memory(self, name: str, memory: PlainMemory | None) -> None:
        """Write what the optimizer and the site's own statistics are; arrays and notes, as JSON, apart."""
        if memory is None:
            return
        arrays: dict[str, np.ndarray] = {}

        def noted(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                arrays[f"a{len(arrays)}"] = value
                return {"array": f"a{len(arrays) - 1}"}
            if isinstance(value, Mapping):
                return {"entries": {key: noted(each) for key, each in value.items()}}
            return {"value": value}

        known = (memory.before, memory.before if memory.after is memory.before else memory.after)
        notes = {"task": memory.task, "known": [[noted(part) for part in each] for each in known]}
        self._files.write_tensors(name, arrays, {NOTES: json.dumps(notes)}, durable=False)

    def _memory(self, name: str) -> PlainMemory | None:
        if not self._files.exists(name):
            return None
        arrays, texts = self._files.read_tensors(name)

        def read(note: Any) -> Any:
            if "entries" in note:
                return {key: read(each) for key, each in note["entries"].items()}
            return arrays[note["array"]] if "array" in note else note["value"]

        notes = json.loads(texts[NOTES])
        before, after = ((read(states), read(statistics)) for states, statistics in notes["known"])
        known: tuple[PlainKnown, PlainKnown] = (before, after)
        return Memory(*known, notes["task"])
