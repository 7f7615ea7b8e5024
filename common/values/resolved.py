"""What a job was, so that its results describe themselves: every default filled in, and what it was run with."""

from collections.abc import Mapping

from pydantic import JsonValue

from hansa.common.values.bounds import Value

MADE_WITH = (
    "made_with"  # the section of a resolved job file that only tells; a file that is run again may have it
)


class PluginOrigin(Value):
    """A part of a job's rule and the package that it came from."""

    kind: str
    package: str
    version: str = ""  # empty: the module belongs to no installed package


class Software(Value):
    """What a job was run with."""

    hansa: str  # the controller's version
    plugins: Mapping[str, PluginOrigin] = {}  # by the point of the rule that each fills
    packages: Mapping[str, str] = {}  # versions of all installed packages that bring plugins or rules


class Resolved(Value):
    """A job with all its parts and parameters, and the software that it was run with."""

    job: Mapping[str, JsonValue]  # can be read as a job file again
    made_with: Software
    init: str = ""  # digest of version 0, if the submission brought it
    reference: str = ""  # digest of the model that versions were measured against


class ModelOrigin(Value):
    """Which community model a file holds. It travels in the file's metadata."""

    job: str
    name: str
    version: int
    digest: str  # of the model
    receipt: str = ""  # hash of the receipt in the job's chain; empty: the submission brought the model
    resolved: Resolved | None = None
