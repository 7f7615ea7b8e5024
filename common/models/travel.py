"""Which tensors of a model travel, and which stay at the sites (personal-models §1).

travelling   what the job's models consist of
backbone     stays, is frozen, and is the same at every site: its digest proves it
personal     stays, is trained, and is each site's own
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from blake3 import blake3

from hansa.common.models.model import Arrays, ModelSpec, Role, TensorInfo
from hansa.common.values.errors import InvalidApp
from hansa.common.values.settings.training import Travel
from hansa.common.values.wording.words import listed


@dataclass(frozen=True)
class TensorSets:
    """The names of a model's tensors by what becomes of them, in the model's order."""

    travelling: tuple[str, ...]
    backbone: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()


def tensor_sets(spec: ModelSpec, travel: Travel, trainable: Collection[str]) -> TensorSets:
    """Divide a model's tensors; `trainable` are those that the app trains. Something must travel."""
    if travel.whole:
        return TensorSets(spec.names)
    for problem in mismatches(spec, travel):
        raise InvalidApp(problem)
    sets = _divided(spec, travel, trainable)
    if not any(spec.tensors[spec.index[name]].role is Role.PARAM for name in sets.travelling):
        raise InvalidApp("layers.trainable: the app trains none of the tensors that would travel")
    return sets


def mismatches(spec: ModelSpec, travel: Travel) -> Iterator[str]:
    """Yield what in a job's `layers` does not fit a model."""
    if travel.whole:
        return
    for field in ("match", "personal"):
        for pattern in getattr(travel, field):
            if not any(fnmatchcase(name, pattern) for name in spec.names):
                known = listed(spec.names)
                yield f"layers.{field}: no tensor of the model matches {pattern!r}; its tensors are {known}"
    if travel.norm and not any(info.norm is not None for info in spec.tensors):
        yield "layers.norm: the model has no normalisation layers"
    travelling = set(_divided(spec, travel, spec.names).travelling)
    if not any(info.role is Role.PARAM and info.name in travelling for info in spec.tensors):
        yield "layers: no parameter of the model would travel, so sites would learn nothing from one another"


def _divided(spec: ModelSpec, travel: Travel, trainable: Collection[str]) -> TensorSets:
    travels, own = _is_travelling(travel, frozenset(trainable)), _is_personal(spec, travel)
    parameters = [info for info in spec.tensors if info.role is Role.PARAM]
    place = {
        info.name: "personal" if own(info) else "travelling" if travels(info.name) else "backbone"
        for info in parameters
    }
    by_module: dict[str, set[str]] = {}
    by_layer: dict[int, set[str]] = {}
    for info in parameters:
        by_module.setdefault(_owner(info.name), set()).add(place[info.name])
        by_layer.setdefault(info.layer, set()).add(place[info.name])
    for info in spec.tensors:
        if info.role is Role.PARAM:
            continue
        if own(info):
            place[info.name] = "personal"
        elif travel.kind == "trainable" and travels(info.name):
            place[info.name] = "travelling"
        else:  # statistics go with the parameters of their module; without any, with those of its layer
            beside = by_module.get(_owner(info.name)) or by_layer.get(info.layer, set())
            place[info.name] = next(
                (each for each in ("travelling", "personal") if each in beside), "backbone"
            )
    return TensorSets(
        *(
            tuple(name for name in spec.names if place[name] == each)
            for each in ("travelling", "backbone", "personal")
        )
    )


def _is_travelling(travel: Travel, trainable: frozenset[str]) -> Callable[[str], bool]:
    """Return whether a tensor travels that is not personal."""
    if travel.kind == "trainable":
        return (lambda name: _matches(name, travel.match)) if travel.match else trainable.__contains__
    return lambda _: True


def _is_personal(spec: ModelSpec, travel: Travel) -> Callable[[TensorInfo], bool]:
    patterns = travel.match if travel.kind == "personal" else travel.personal
    first_own = len(spec.layers) - travel.last

    def personal(info: TensorInfo) -> bool:
        in_last_layers = travel.last > 0 and info.layer >= first_own
        return in_last_layers or (travel.norm and info.norm is not None) or _matches(info.name, patterns)

    return personal


def _owner(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def digest_of(arrays: Arrays) -> str:
    """Return the digest of tensors: of their names, types, shapes and bytes. That of none is empty."""
    if not arrays:
        return ""
    hasher = blake3()
    for name, array in sorted(arrays.items()):
        content = blake3(max_threads=blake3.AUTO)
        content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        hasher.update(f"{name}\0{array.dtype.name}\0{array.shape}\0".encode() + content.digest())
    return hasher.hexdigest()
