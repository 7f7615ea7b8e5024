"""Names and identifiers: what they look like and how new ones are made."""

import re
import secrets
from collections.abc import Iterable
from typing import NewType

from hansa.common.values.errors import InvalidInput

PROTOCOL = 4  # raised when old and new daemons can no longer talk to each other

SiteName = NewType("SiteName", str)
JobId = NewType("JobId", str)
TaskId = NewType("TaskId", str)
ModelKey = NewType("ModelKey", str)

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
# Names of tensors and layers, and keys of models. They allow what PyTorch and other frameworks produce
# (`encoder.0.weight`, `dense/kernel:0`), and nothing that could leave a folder or control a terminal.
_STEP = r"[A-Za-z0-9_][A-Za-z0-9._:+@-]*"
TENSOR = re.compile(rf"{_STEP}(?:/{_STEP})*")
LONGEST_KEY = 200  # characters of a key of a submission
LONGEST = 1024  # characters of such a name


def submission_key(text: str) -> str:
    """Parse the key under which an operator submits a job; empty if there is none."""
    if not isinstance(text, str) or len(text) > LONGEST_KEY or not text.isprintable():
        raise InvalidInput(
            f"the key {str(text)[:40]!r} cannot be used: write up to {LONGEST_KEY} printable characters"
        )
    return text


def odd_tensor(names: Iterable[str]) -> str:
    """Describe the first of these names that a tensor or layer must not have; return "" if all are valid."""
    for name in names:
        if len(name) > LONGEST or not TENSOR.fullmatch(name):
            shown = ascii(name[:40]) + ("…" if len(name) > 40 else "")
            return (
                f"{shown} cannot be the name of a tensor or layer: use up to {LONGEST} letters, digits and"
                " '.', '_', '-', '+', ':', '@', in steps separated by '/' that begin with a letter, digit"
                " or '_'"
            )
    return ""


def site_name(text: str) -> SiteName:
    """Parse a site's name; names become parts of paths and keys, so the alphabet is small."""
    if not NAME.fullmatch(text):
        raise InvalidInput(
            f"{text[:64]!r} is not a name: use up to 64 letters, digits, '.', '_' and '-',"
            " with a letter or digit at both ends"
        )
    return SiteName(text)


def identifier(text: str, what: str) -> str:
    """Check a peer's name for a job, task or plugin; such names use the same alphabet as names of sites."""
    if not NAME.fullmatch(text):
        raise InvalidInput(f"{text[:64]!r} is not the name of a {what}")
    return text


def new_job_id() -> JobId:
    """Return a new id: short enough to type, long enough never to collide within one controller."""
    return JobId("j" + secrets.token_hex(4))


def new_instance() -> str:
    """Return the identity of one daemon process."""
    return secrets.token_hex(8)


def task_id(job: JobId, number: int) -> TaskId:
    """Return the id of a job's n-th task; the same events give the same ids, which makes tasks idempotent."""
    return TaskId(f"{job}-{number}")


def job_of(task: TaskId) -> JobId:
    """Return the job that a task belongs to."""
    return JobId(task.rpartition("-")[0])


def community_key(job: JobId, version: int) -> ModelKey:
    """Return the key of a community model."""
    return ModelKey(f"{job}/v{version}")


def moment_key(job: JobId, version: int, name: str) -> ModelKey:
    """Return the key of state that a server update carries from one community model to the next."""
    return ModelKey(f"{job}/v{version}.{name}")


def hop_key(job: JobId, version: int, hop: int) -> ModelKey:
    """Return the key of the mean of travelling models after a hop of the round that leads to a version."""
    return ModelKey(f"{job}/h{version}.{hop}")


def kept_key(job: JobId, inquiry: int, place: int) -> ModelKey:
    """Return the key of an array that a part of the rule keeps from an examination of updates."""
    return ModelKey(f"{job}/x{inquiry}.{place}")


def reference_key(job: JobId) -> ModelKey:
    """Return the key of the reference that a job's community models are compared with."""
    return ModelKey(f"{job}/reference")


def update_key(task: TaskId) -> ModelKey:
    """Return the key of the update that results from a task."""
    return ModelKey(f"{job_of(task)}/u{task.rpartition('-')[2]}")


def sent_key(task: TaskId) -> ModelKey:
    """Return the key of an encoded update, as it was sent, until it is decoded."""
    return ModelKey(f"{update_key(task)}.sent")
