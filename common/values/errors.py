"""The errors that people can meet, as one tree, each with its gRPC status and exit code.

HansaError
├── InvalidInput        somebody wrote something wrong             INVALID_ARGUMENT     2
│   ├── InvalidJob      a job file; every wrong field is named
│   ├── InvalidApp      an app reference that cannot be loaded
│   └── InvalidData     data a site cannot learn from
├── Rejected            an update that cannot be accepted          DATA_LOSS            1
├── NotFound            no such job, model, site                   NOT_FOUND            1
├── Taken               the name, port or folder is in use         ALREADY_EXISTS       1
├── Refused             not allowed in this state                  FAILED_PRECONDITION  1
│   ├── Stale           the task is over; its result is unneeded   ABORTED              1
│   ├── Unoffered       the update must be offered (again) first
│   ├── Unequipped      the site lacks what the job asks for
│   └── Unfit           the site has another backbone than the job
├── Unproven            no certificate, or it expired or is revoked UNAUTHENTICATED      1
├── Forbidden           the certificate does not allow this        PERMISSION_DENIED    1
├── TooLarge            a limit is exceeded                        RESOURCE_EXHAUSTED   1
├── Broken              state on disk or in memory is damaged      INTERNAL             1
│   └── StoreFailed     the store cannot be written or read
├── PluginFailed        a plugin raised, or broke its contract     UNKNOWN              1
├── JobFailed           a job that somebody waited for has failed  OUT_OF_RANGE         1
│   └── JobCancelled    or was cancelled
└── Unreachable         no answer from the address                 UNAVAILABLE          3
"""

from typing import Protocol


class HansaError(Exception):
    """Something went wrong in a way that we foresaw. The message is for people."""

    code = "INTERNAL"  # name of a gRPC status
    exit_code = 1


class InvalidInput(HansaError):
    """Somebody wrote something that is wrong."""

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
    """There is nothing of that name."""

    code = "NOT_FOUND"


class Taken(HansaError):
    """The name, port or folder is already in use."""

    code = "ALREADY_EXISTS"


class Refused(HansaError):
    """The request is not allowed in this state."""

    code = "FAILED_PRECONDITION"


class Stale(Refused):
    """The task is over, and its result is no longer needed."""

    code = "ABORTED"


class Unoffered(Refused):
    """The controller does not know this upload, or has less of it: the update must be offered again."""


class Unequipped(Refused):
    """The site lacks what the job asks for, and trying again will not help."""


class Unfit(Refused):
    """The site has something else than the job's other sites; it is left out, and they go on."""


class Unproven(HansaError):
    """The caller's identity is not proven: the certificate is missing, has expired or was revoked."""

    code = "UNAUTHENTICATED"


class Forbidden(HansaError):
    """The caller is known but may not do this."""

    code = "PERMISSION_DENIED"


class TooLarge(HansaError):
    """A limit is exceeded; the message names it."""

    code = "RESOURCE_EXHAUSTED"


class Broken(HansaError):
    """State on disk or in memory is damaged."""


class StoreFailed(Broken):
    """The store cannot be written or read at the moment."""


class Named(Protocol):
    """What is known of a plugin by its point and its kind."""

    @property
    def point(self) -> str:
        """The point that it fills."""

    @property
    def kind(self) -> str:
        """What job files and tasks call it."""


class PluginFailed(HansaError):
    """A plugin raised `error`, or broke its contract as `error` says; the message names the plugin."""

    code = "UNKNOWN"

    def __init__(self, part: Named | str, error: BaseException | str = "") -> None:
        """`part` is a text where only the message is known: in a client of the controller that raised it."""
        self.part, self.error = part, error
        self.why = error if isinstance(error, str) else reason(error)
        super().__init__(part if isinstance(part, str) else f"{part.point} {part.kind!r}: {self.why}")


class JobFailed(HansaError):
    """A job that somebody waited for has failed: why, and which site's failure it was, if it was one's."""

    code = "OUT_OF_RANGE"  # no call is answered with it

    def __init__(self, reason: str, site: str = "") -> None:
        self.reason, self.site = reason, site
        super().__init__(reason)


class JobCancelled(JobFailed):
    """A job that somebody waited for was cancelled."""


class Unreachable(HansaError):
    """There is no answer from that address."""

    code = "UNAVAILABLE"
    exit_code = 3


def family(root: type[HansaError] = HansaError) -> dict[str, type[HansaError]]:
    """Return every error class by name, so that a client can raise what the server raised."""
    classes = {root.__name__: root}
    for child in root.__subclasses__():
        classes |= family(child)
    return classes


def by_code(code: str) -> type[HansaError]:
    """Return the broadest class that stands for a status."""
    if code in ("DEADLINE_EXCEEDED", "CANCELLED"):
        return Unreachable
    return next(
        (kind for kind in family().values() if kind.code == code and kind is not HansaError), HansaError
    )


def reason(error: BaseException) -> str:
    """Return why something failed; our own errors speak for themselves."""
    return _writable(str(error)) if isinstance(error, HansaError) else one_line(error)


def one_line(error: BaseException) -> str:
    """Describe an error we did not foresee in one line."""
    text = " ".join(_writable(str(error)).split())
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _writable(text: str) -> str:
    """Return text that can be journaled and sent: messages of others may have half a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
