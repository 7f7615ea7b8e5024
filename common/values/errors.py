"""The errors people can meet, in one tree, each with its gRPC status and its exit code.

HansaError
├── InvalidInput        a person wrote something wrong             INVALID_ARGUMENT     2
│   ├── InvalidJob      a job file, each wrong field named
│   ├── InvalidApp      an app reference that cannot be loaded
│   └── InvalidData     data a site cannot learn from
├── Rejected            an update that cannot be accepted          DATA_LOSS            1
├── NotFound            no such job, model, site                   NOT_FOUND            1
├── Taken               somebody else holds the name, port, folder ALREADY_EXISTS       1
├── Refused             not in this state, not by you              FAILED_PRECONDITION  1
│   ├── Stale           the task is over: nobody waits for this    ABORTED              1
│   ├── Unoffered       the update must be offered (again) first
│   └── Unequipped      the site lacks what the job asks for
├── Unproven            the certificate is missing, over, revoked  UNAUTHENTICATED      1
├── Forbidden           the certificate is not for this            PERMISSION_DENIED    1
├── TooLarge            a limit is exceeded                        RESOURCE_EXHAUSTED   1
├── Broken              state on disk or in memory is damaged      INTERNAL             1
│   └── StoreFailed     the store cannot be written or read
├── PluginFailed        a plugin raised, or broke its contract     UNKNOWN              1
└── Unreachable         nobody answers                             UNAVAILABLE          3
"""

from typing import Protocol


class HansaError(Exception):
    """Anything that goes wrong in a way we foresaw. The message is for people."""

    code = "INTERNAL"  # name of a gRPC status
    exit_code = 1


class InvalidInput(HansaError):
    """A person wrote something that cannot be meant."""

    code = "INVALID_ARGUMENT"
    exit_code = 2


class InvalidJob(InvalidInput):
    """A job file with wrong fields; the message names each of them."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = problems.splitlines() if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class InvalidApp(InvalidInput):
    """An app reference that does not lead to a usable App."""


class InvalidData(InvalidInput):
    """Data that a site cannot learn from."""


class Rejected(HansaError):
    """An update that does not fit its task or is damaged; it never reaches a rule."""

    code = "DATA_LOSS"


class NotFound(HansaError):
    """Nothing of that name."""

    code = "NOT_FOUND"


class Taken(HansaError):
    """Somebody else holds the name, the port or the folder."""

    code = "ALREADY_EXISTS"


class Refused(HansaError):
    """Not in this state, or not by this caller."""

    code = "FAILED_PRECONDITION"


class Stale(Refused):
    """The task is over; nobody waits for its result."""

    code = "ABORTED"


class Unoffered(Refused):
    """The controller does not know of this upload, or not that so much of it has come: it must be offered again."""


class Unequipped(Refused):
    """The site lacks what the job asks for, and no other try will help."""


class Unproven(HansaError):
    """Who is calling is not proven: the certificate is missing, has expired or was revoked."""

    code = "UNAUTHENTICATED"


class Forbidden(HansaError):
    """The caller is known, and may not do this."""

    code = "PERMISSION_DENIED"


class TooLarge(HansaError):
    """A limit is exceeded; the message names it."""

    code = "RESOURCE_EXHAUSTED"


class Broken(HansaError):
    """State that should be sound is not."""


class StoreFailed(Broken):
    """The store cannot be written or read just now."""


class Named(Protocol):
    """What is known of a plugin by its point and its kind."""

    @property
    def point(self) -> str:
        """The point that it fills."""

    @property
    def kind(self) -> str:
        """What job files and tasks call it."""


class PluginFailed(HansaError):
    """A plugin raised `error`, or broke its contract as `error` says; the message names its point and its kind."""

    code = "UNKNOWN"

    def __init__(self, part: Named | str, error: BaseException | str = "") -> None:
        """`part` is a text where only the message is left: in a client, which raises what the controller raised."""
        self.part, self.error = part, error
        self.why = error if isinstance(error, str) else reason(error)
        super().__init__(part if isinstance(part, str) else f"{part.point} {part.kind!r}: {self.why}")


class Unreachable(HansaError):
    """Nobody answers at that address."""

    code = "UNAVAILABLE"
    exit_code = 3


def family(root: type[HansaError] = HansaError) -> dict[str, type[HansaError]]:
    """Return every error class by name, so that a client can raise what the server raised."""
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= family(child)
    return found


def by_code(code: str) -> type[HansaError]:
    """Return the broadest class that stands for a status."""
    if code in ("DEADLINE_EXCEEDED", "CANCELLED"):
        return Unreachable
    return next(
        (kind for kind in family().values() if kind.code == code and kind is not HansaError), HansaError
    )


def reason(error: BaseException) -> str:
    """Say why something failed: in our words if we foresaw it."""
    return _writable(str(error)) if isinstance(error, HansaError) else one_line(error)


def one_line(error: BaseException) -> str:
    """Describe an error we did not foresee in one line."""
    text = " ".join(_writable(str(error)).split())
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _writable(text: str) -> str:
    """Return text that can be journaled and sent: others may raise errors with half a surrogate pair in them."""
    return text.encode("utf-8", "replace").decode()
