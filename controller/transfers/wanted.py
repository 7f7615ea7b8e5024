"""What a task wants back: the tensors of its update, and the encoding that they are sent in."""

from dataclasses import dataclass

from hansa.common.encodings import encoding_of
from hansa.common.encodings.contract import Encoding
from hansa.common.encodings.model import encoded_spec
from hansa.common.models.auxiliary import with_auxiliary
from hansa.common.models.model import ModelSpec
from hansa.common.values.tasks import Train


@dataclass(frozen=True)
class Encoded:
    """The encoding that an update is sent in, and its tensors before they were encoded."""

    encoding: Encoding
    spec: ModelSpec


def wanted_update(work: Train, base: ModelSpec) -> tuple[ModelSpec, Encoded | None]:
    """Return the tensors that an update is sent as, if its task starts from a model with the spec `base`.

    Raises PluginFailed if the encoding cannot say.
    """
    spec = base.own
    if work.tensors:
        spec = spec.subset(work.tensors)
    spec = with_auxiliary(spec, [each.name for each in work.auxiliary if each.up])
    if work.encoding is None:
        return spec, None
    encoded = Encoded(encoding_of(work.encoding), spec)
    return encoded_spec(encoded.encoding, spec), encoded
