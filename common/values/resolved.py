"""A job with every default filled in, and the software that ran it, so that results describe themselves."""

from collections.abc import Mapping

from pydantic import JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.settings.training import Travel

# The section of a resolved job file that is for information only; it is ignored when the file is run again.
MADE_WITH = "made_with"


class PluginOrigin(Value):
    """A part of a job's rule and the package that it came from."""

    kind: str
    package: str
    version: str = ""  # empty: the module does not belong to an installed package


class Software(Value):
    """The software that ran a job."""

    hansa: str  # the controller's version
    plugins: Mapping[str, PluginOrigin] = {}  # by the point of the rule that each fills
    packages: Mapping[str, str] = {}  # versions of all installed packages that provide plugins or rules


class Resolved(Value):
    """A job with all its parts and parameters, and the software that it was run with."""

    job: Mapping[str, JsonValue]  # can be read as a job file again
    made_with: Software
    init: str = ""  # digest of version 0, if it came with the submission
    reference: str = ""  # digest of the model that versions were compared with


class ModelOrigin(Value):
    """Which community model a file holds. It travels in the file's metadata."""

    job: str
    name: str
    version: int
    digest: str  # of the model
    receipt: str = ""  # hash of the receipt in the job's chain; empty if the model came with the submission
    resolved: Resolved | None = None
    travel: Travel = Travel()  # which tensors of the app's model it has
    backbone: str = ""  # the digest of those that it lacks and that are the same at every site
