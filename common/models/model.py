"""A model's description: an ordered list of tensors, their roles and layers, and the digest of each.

Data types follow methods/README §1; the payload's layout is in `frames`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate

import ml_dtypes
import numpy as np
from blake3 import blake3

from hansa.common.values.digests import joined
from hansa.common.values.errors import Rejected
from hansa.common.values.ids import odd_tensor
from hansa.common.values.wording.words import listed

MAX_TENSORS = 100_000
MAX_BYTES = 1 << 42  # 4 TiB: far more than any model, far below overflow
ALIGN = 64  # every tensor begins at a multiple of it in the payload

DTYPES: Mapping[str, np.dtype[np.generic]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("float16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))

Arrays = Mapping[str, np.ndarray]


class Role(IntEnum):
    """How a tensor is merged. The values are those on the wire."""

    PARAM = 1  # trainable
    STAT = 2  # float buffer, such as running statistics
    COUNT = 3  # integer or boolean buffer: copied, never averaged
    AUX = 4  # not of the model itself: it travels beside it, see `auxiliary`


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a model, without its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    layer: int = 0
    # The ε of the normalisation layer that it belongs to; None if it belongs to none, or if that is unknown.
    norm: float | None = None

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its size in bytes, without padding."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def is_float(self) -> bool:
        """Whether it is averaged."""
        return self.dtype in FLOATS

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype} {list(self.shape)})"


@dataclass(frozen=True)
class ModelSpec:
    """The tensors in payload order, and the weight-bearing layers in forward order."""

    tensors: tuple[TensorInfo, ...]
    layers: tuple[str, ...] = ()

    @cached_property
    def index(self) -> dict[str, int]:
        """Position by name."""
        return {info.name: i for i, info in enumerate(self.tensors)}

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names in order."""
        return tuple(info.name for info in self.tensors)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each tensor, without padding."""
        return tuple(info.nbytes for info in self.tensors)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each tensor begins in the payload; the last entry is the payload's size."""
        return tuple(accumulate((-(-size // ALIGN) * ALIGN for size in self.sizes), initial=0))

    @property
    def roles(self) -> dict[str, Role]:
        """The role of each tensor, by name."""
        return {info.name: info.role for info in self.tensors}

    @property
    def nbytes(self) -> int:
        """The tensors' bytes without padding."""
        return sum(self.sizes)

    @property
    def is_averaged(self) -> bool:
        """Whether it has parameters, which are averaged; buffers alone say little."""
        return any(info.role is Role.PARAM for info in self.tensors)

    def subset(self, names: Iterable[str]) -> "ModelSpec":
        """Return the spec of some of the tensors, in the same order."""
        wanted = set(names)
        return ModelSpec(tuple(info for info in self.tensors if info.name in wanted), self.layers)

    def joined(self, other: "ModelSpec") -> "ModelSpec":
        """Return the spec of these tensors and of those that only the other spec has."""
        more = (info for info in other.tensors if info.name not in self.index)
        return ModelSpec((*self.tensors, *more), self.layers or other.layers)

    @cached_property
    def own(self) -> "ModelSpec":
        """The tensors of the model itself, without auxiliary ones."""
        own = tuple(info for info in self.tensors if info.role is not Role.AUX)
        return self if len(own) == len(self.tensors) else ModelSpec(own, self.layers)


@dataclass(frozen=True)
class Manifest:
    """A model's spec with the digest of every tensor; models with equal manifests are equal bit for bit."""

    spec: ModelSpec
    digests: tuple[bytes, ...]

    @cached_property
    def digest(self) -> bytes:
        """One digest for everything: the model and, if there are any, the auxiliary tensors beside it."""
        if self.spec.own is self.spec:
            return self._digest(self.spec.tensors)
        return bytes.fromhex(joined(self.model_digest.hex(), self.auxiliary_digest.hex()))

    @cached_property
    def model_digest(self) -> bytes:
        """The digest of the model itself."""
        return self._digest(self.spec.own.tensors)

    @cached_property
    def auxiliary_digest(self) -> bytes:
        """The digest of the auxiliary tensors; empty if there are none."""
        beside = [info for info in self.spec.tensors if info.role is Role.AUX]
        return self._digest(beside) if beside else b""

    def part(self, names: Iterable[str]) -> "Manifest":
        """Return the manifest of some of the tensors, in the same order."""
        spec = self.spec.subset(names)
        return Manifest(spec, tuple(self.digests[self.spec.index[name]] for name in spec.names))

    def _digest(self, tensors: Iterable[TensorInfo]) -> bytes:
        hasher = blake3("\0".join(self.spec.layers).encode())
        for info in tensors:
            head = f"{info.name}\0{info.dtype}\0{info.shape}\0{info.role.name}\0{info.layer}\0"
            hasher.update(head.encode() + self.digests[self.spec.index[info.name]])
        return hasher.digest()


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that no model can have, before anything is allocated for it."""
    tensors = manifest.spec.tensors
    if not tensors:
        raise Rejected("the manifest names no tensors")
    if len(tensors) > MAX_TENSORS:
        raise Rejected(f"{len(tensors)} tensors; at most {MAX_TENSORS} are allowed")
    if wrong := odd_tensor((*manifest.spec.names, *manifest.spec.layers)):
        raise Rejected(wrong)
    if len(manifest.spec.index) != len(tensors):
        raise Rejected("two tensors have the same name")
    total = 0
    for info, digest in zip(tensors, manifest.digests, strict=True):
        if info.dtype not in DTYPES:
            raise Rejected(
                f"{info.name}: dtype {info.dtype[:40]!r} is not one of {', '.join(sorted(DTYPES))}"
            )
        if any(n > MAX_BYTES for n in info.shape):
            raise Rejected(f"{info.name}: the model is larger than {MAX_BYTES >> 40} TiB")
        if len(info.shape) > 32 or any(n < 0 for n in info.shape):
            raise Rejected(f"{info.name}: impossible shape {list(info.shape)[:32]}")
        if len(digest) != 32:
            raise Rejected(f"{info.name}: its digest has {len(digest)} bytes, not 32")
        if info.norm is not None and not 0 <= info.norm < 1:
            raise Rejected(f"{info.name}: no normalisation layer has ε = {info.norm}")
        if (info.role is Role.COUNT) == info.is_float or (info.role is Role.AUX and info.dtype != "float32"):
            raise Rejected(f"{info.name}: a {info.dtype} tensor cannot have role {info.role.name}")
        total += info.nbytes
        # Even a tensor without elements must have a possible shape: numpy multiplies its other dimensions.
        if total > MAX_BYTES or math.prod(n or 1 for n in info.shape) > MAX_BYTES:
            raise Rejected(f"the model is larger than {MAX_BYTES >> 40} TiB")


def difference(wanted: ModelSpec, given: ModelSpec, most: int = 5) -> str | None:
    """Describe how a spec differs from the wanted one, or None; names only a few tensors."""
    missing = [info.name for info in wanted.tensors if info.name not in given.index]
    extra = [info.name for info in given.tensors if info.name not in wanted.index]
    changed = [
        f"{info} should be {wanted.tensors[wanted.index[info.name]]}"
        for info in given.tensors
        if info.name in wanted.index and not _alike(info, wanted.tensors[wanted.index[info.name]])
    ]
    parts = [("missing ", missing), ("unexpected ", extra), ("", changed)]
    differences = [head + listed(names, most) for head, names in parts if names]
    if not differences and given.names != wanted.names:
        differences = ["the tensors are not in the model's order"]
    return "; ".join(differences) or None


def require_fit(wanted: ModelSpec, given: ModelSpec) -> None:
    """Refuse a spec that differs from the wanted one."""
    wrong = difference(wanted, given)
    if wrong:
        raise Rejected(wrong)


def _alike(a: TensorInfo, b: TensorInfo) -> bool:
    return (a.dtype, a.shape, a.role) == (b.dtype, b.shape, b.role)
