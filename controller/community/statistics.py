"""Batch-norm statistics of all sites' data together, instead of the mean of the sites' (methods/README §4).

The variance of data from several sites is the mean of their variances plus the variance of their means. The
plain mean of variances leaves out the second part, which is the larger one where sites differ much.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hansa.common.models.frames import Span, numbers
from hansa.common.models.model import DTYPES, ModelSpec, Role
from hansa.controller.community.reading import Carriers, Library, read_numbers
from hansa.controller.storage.stores import StoredModel
from hansa.controller.values.members import Member

MEAN, VARIANCE = "running_mean", "running_var"  # as PyTorch calls them, below the name of their layer


def variances(spec: ModelSpec) -> Mapping[int, int]:
    """Return the tensors that are variances, each with the tensor of its means."""
    pairs: dict[int, int] = {}
    for at, info in enumerate(spec.tensors):
        layer, dot, name = info.name.rpartition(".")
        mean = spec.index.get(f"{layer}{dot}{MEAN}")
        if name == VARIANCE and mean is not None:
            other = spec.tensors[mean]
            if info.role is Role.STAT and other.role is Role.STAT and info.shape == other.shape:
                pairs[at] = mean
    return pairs


def with_pooled_variances(
    frames: Iterator[np.ndarray], members: Sequence[Member], library: Library, current: StoredModel
) -> Iterator[np.ndarray]:
    """Yield the frames of a mean in which variances of all data together replace means of variances.

    The variance is Σp(v + m²)/P − M² in the form Σp(v + (m − M)²)/P, which cannot become negative.
    """
    spec = current.manifest.spec
    carriers = Carriers(members, spec, library)
    wanted = variances(spec)
    for index, frame in enumerate(frames):
        for span in current.layout.spans(index):
            if span.tensor in wanted:
                mean = wanted[span.tensor]
                both = [member for member in carriers.of(span.tensor) if member in carriers.of(mean)]
                if len(both) > 1:  # the tensor of a single member has been copied already
                    pooled = _pooled(spec, span, mean, both, library)
                    numbers(spec.tensors[span.tensor], span, frame)[...] = pooled
        yield frame


def _digests(model: StoredModel, *names: str) -> tuple[bytes, ...]:
    return tuple(model.manifest.digests[model.manifest.spec.index[name]] for name in names)


def _pooled(
    spec: ModelSpec, span: Span, mean: int, members: Sequence[Member], library: Library
) -> np.ndarray:
    variance = spec.tensors[span.tensor]
    width = DTYPES[variance.dtype].itemsize
    place = (span.start // width, span.stop // width)

    def read(member: Member, name: str) -> np.ndarray:
        return read_numbers(library.get(member.model), name, *place, {}).astype(np.float64)

    name = spec.tensors[mean].name
    if len({_digests(library.get(member.model), variance.name, name) for member in members}) == 1:
        return read(members[0], variance.name)  # as with any tensor that is the same everywhere
    shares = np.array([member.weight for member in members]) / max(member.weight for member in members)
    shares /= shares.sum()  # sums of huge weights stay finite
    centre = sum(share * read(member, name) for share, member in zip(shares, members, strict=True))
    spread = (
        share * (read(member, variance.name) + (read(member, name) - centre) ** 2)
        for share, member in zip(shares, members, strict=True)
    )
    return np.asarray(sum(spread))
