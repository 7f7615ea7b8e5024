"""Checkpoints and exports as safetensors files. Roles and layers are in the file's metadata."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import safetensors
from pydantic import Field, ValidationError

from hansa.common.models.frames import Layout, pack, seal, views
from hansa.common.models.model import DTYPES, FLOATS, Arrays, Manifest, ModelSpec, Role, TensorInfo
from hansa.common.models.tensor_files import DTYPE_OF, read_texts, write_tensors
from hansa.common.values.bounds import Value
from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import odd_tensor
from hansa.common.values.resolved import ModelOrigin

# The metadata entry that says which community model it is, and how it was made.
ORIGIN = "hansa.origin"
LONGEST_ORIGIN = 4 << 20  # characters of that entry; a job has at most a million


def save_checkpoint(
    path: Path, manifest: Manifest, payload: np.ndarray, origin: ModelOrigin | None = None
) -> None:
    """Write a model, optionally with its origin; the file appears complete or not at all."""
    texts = about(manifest.spec) | ({ORIGIN: _bounded(origin)} if origin else {})
    try:
        write_tensors(path, views(Layout(manifest.spec), payload), texts, 0o666, durable=False)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror or error}") from None


def about(spec: ModelSpec) -> dict[str, str]:
    """Return what a file says about its tensors, so that the model can be read again as it was."""
    notes = {info.name: [info.role.name, info.layer] for info in spec.tensors}
    norms = {info.name: info.norm for info in spec.tensors if info.norm is not None}
    own = {"layers": spec.layers, "tensors": notes} | ({"norms": norms} if norms else {})
    return {"format": "pt", "hansa": json.dumps(own)}


def _bounded(origin: ModelOrigin) -> str:
    """Return a model's origin as JSON; for a very large job without the job itself."""
    text = origin.model_dump_json()
    return (
        text
        if len(text) <= LONGEST_ORIGIN
        else origin.model_copy(update={"resolved": None}).model_dump_json()
    )


def read_origin(path: Path) -> ModelOrigin | None:
    """Return a model's origin, if its file has it; only the head of the file is read."""
    try:
        text = read_texts(path).get(ORIGIN)
        return ModelOrigin.model_validate_json(text) if text else None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise InvalidInput(f"{path}: its entry {ORIGIN} is damaged") from None


def load_checkpoint(path: Path) -> tuple[Manifest, np.ndarray]:
    """Read a safetensors file into a manifest and a payload; tensors keep the file's order."""
    try:
        raw = path.read_bytes()
        entries = safetensors.deserialize(raw)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None
    except safetensors.SafetensorError as error:
        raise InvalidInput(f"{path}: not a safetensors file: {error}") from None
    _require_names((name for name, _ in entries), str(path))  # before any of them is part of a message
    arrays = {}
    for name, tensor in entries:
        dtype = DTYPE_OF.get(tensor["dtype"])
        if dtype is None:
            raise InvalidInput(f"{path}: {name} has type {tensor['dtype']}, which cannot be sent")
        arrays[name] = np.frombuffer(tensor["data"], DTYPES[dtype]).reshape(tensor["shape"])
    length = int.from_bytes(raw[:8], "little")
    return as_model(arrays, json.loads(raw[8 : 8 + length]).get("__metadata__", {}), str(path))


def as_model(arrays: Arrays, texts: Mapping[str, str], where: str) -> tuple[Manifest, np.ndarray]:
    """Return what a file holds as a manifest and a payload; `where` is what messages call the file."""
    notes = _notes(texts, where)
    _require_names((*arrays, *notes.layers), where)
    infos = []
    for name in sorted(arrays, key=lambda name: _position(name, notes)):
        dtype = arrays[name].dtype.name
        role, layer = notes.tensors.get(name, ("PARAM" if dtype in FLOATS else "COUNT", 0))
        infos.append(TensorInfo(name, dtype, arrays[name].shape, Role[role], layer, notes.norms.get(name)))
    spec = ModelSpec(tuple(infos), notes.layers)
    payload = pack(spec, arrays)
    return seal(spec, payload), payload


def _require_names(names: Iterable[str], where: str) -> None:
    if wrong := odd_tensor(tuple(names)):
        raise InvalidInput(f"{where}: {wrong}")


class _Notes(Value):
    """What safetensors does not know about a model."""

    layers: tuple[str, ...] = ()
    tensors: dict[str, tuple[Literal["PARAM", "STAT", "COUNT", "AUX"], int]] = {}  # role and layer by name
    norms: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}  # ε of normalisation layers


def _notes(texts: Mapping[str, str], where: str) -> _Notes:
    try:
        return _Notes.model_validate_json(texts.get("hansa", "{}"))
    except ValidationError:
        raise InvalidInput(f"{where}: its Hansa metadata is damaged") from None


def _position(name: str, notes: _Notes) -> tuple[int, str]:
    order = list(notes.tensors)
    return (order.index(name), "") if name in order else (len(order), name)
