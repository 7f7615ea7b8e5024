"""Auxiliary tensors: named tensors beside a model, such as SCAFFOLD's control variates.

They are further tensors of the same manifest, after the model's own, so they travel, are checked, stored and
verified as the model is. Tensor `weight` of the auxiliary tensors `c` is called `c/weight`. There is one for
each parameter of the model, in float32. A model without them, such as version 0, stands for zeros.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from hansa.common.models.model import (
    MAX_TENSORS,
    Manifest,
    ModelSpec,
    Role,
    TensorInfo,
    check_manifest,
    require_fit,
)
from hansa.common.values.errors import Rejected
from hansa.common.values.ids import odd_tensor

DTYPE = "float32"


def auxiliary_name(name: str, tensor: str) -> str:
    """Return what an auxiliary tensor is called."""
    return f"{name}/{tensor}"


def auxiliary_infos(spec: ModelSpec, name: str) -> Iterator[TensorInfo]:
    """Yield the auxiliary tensors of a name that belong to a model, or to a part of one."""
    for info in spec.tensors:
        if info.role is Role.PARAM:
            yield TensorInfo(auxiliary_name(name, info.name), DTYPE, info.shape, Role.AUX, info.layer)


def with_auxiliary(spec: ModelSpec, names: Iterable[str]) -> ModelSpec:
    """Return the tensors of a model followed by those beside it."""
    beside = tuple(info for name in names for info in auxiliary_infos(spec.own, name))
    return ModelSpec(spec.own.tensors + beside, spec.layers) if beside else spec.own


def accompanied(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Return the manifest of the model itself and, as far as it has them, the named auxiliary tensors."""
    spec = manifest.spec
    if spec.own is spec:
        return manifest
    return manifest.part(spec.index.keys() & with_auxiliary(spec, names).index.keys())


def require_first(manifest: Manifest, names: Collection[str]) -> None:
    """Refuse a version 0 that has auxiliary tensors itself, or no room for those of a rule beside it."""
    check_manifest(manifest)
    spec = manifest.spec
    if spec.own is not spec:
        raise Rejected("the first model has auxiliary tensors, which only a rule adds")
    whole = with_auxiliary(spec, names)
    taken = next((name for name in whole.names[len(spec.tensors) :] if name in spec.index), None)
    if taken is not None:
        prefix = taken.partition("/")[0]
        raise Rejected(
            f"tensor {taken} must be renamed: names that begin with {prefix}/ are those of auxiliary tensors"
        )
    if len(whole.tensors) > MAX_TENSORS:
        raise Rejected(
            f"{len(whole.tensors)} tensors, with the rule's auxiliary ones; at most {MAX_TENSORS} are allowed"
        )
    if wrong := odd_tensor(whole.names):
        raise Rejected(wrong)


def apart(
    arrays: Mapping[str, np.ndarray], spec: ModelSpec, names: Iterable[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Return the auxiliary tensors among a model's arrays, by name and by tensor; zeros where it has none."""
    parameters = [info for info in spec.own.tensors if info.role is Role.PARAM]
    beside: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        beside[name] = {}
        for info in parameters:
            array = arrays.get(auxiliary_name(name, info.name))
            if array is None:
                array = np.zeros(info.shape, dtype=DTYPE)
                array.flags.writeable = False
            beside[name][info.name] = array
    return beside


def require_auxiliary(spec: ModelSpec, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the auxiliary tensors of an update by their names on the wire, if they fit the update."""
    if not isinstance(arrays, Mapping) or not all(isinstance(each, np.ndarray) for each in arrays.values()):
        raise Rejected(f"{name}: they must be arrays by the names of tensors")
    given = ModelSpec(
        tuple(
            TensorInfo(auxiliary_name(name, tensor), array.dtype.name, array.shape, Role.AUX)
            for tensor, array in arrays.items()
        )
    )
    wanted = ModelSpec(tuple(auxiliary_infos(spec, name)))
    order = [each for each in wanted.names if each in given.index]
    rest = [each for each in given.names if each not in wanted.index]
    require_fit(wanted, ModelSpec(tuple(given.tensors[given.index[each]] for each in (*order, *rest))))
    return {auxiliary_name(name, tensor): array for tensor, array in arrays.items()}
