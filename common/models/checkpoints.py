"""Checkpoints and exports as safetensors files. Roles and layers are in the file's metadata."""

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import safetensors
from pydantic import Field, ValidationError

from hansa.common.models.frames import Layout, allocate, seal, views
from hansa.common.models.model import FLOATS, Manifest, ModelSpec, Role, TensorInfo
from hansa.common.models.tensor_files import DTYPE_OF, write_tensors
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
        with safetensors.safe_open(path, "numpy") as file:
            text = (file.metadata() or {}).get(ORIGIN)
        return ModelOrigin.model_validate_json(text) if text else None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except safetensors.SafetensorError as error:
        raise InvalidInput(f"{path}: not a safetensors file: {error}") from None
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
    notes = _notes(raw, path)
    if wrong := odd_tensor((*(name for name, _ in entries), *notes.layers)):
        raise InvalidInput(f"{path}: {wrong}")
    infos = []
    for name, tensor in sorted(entries, key=lambda item: _position(item[0], notes)):
        dtype = DTYPE_OF.get(tensor["dtype"])
        if dtype is None:
            raise InvalidInput(f"{path}: {name} has type {tensor['dtype']}, which cannot be sent")
        role, layer = notes.tensors.get(name, ("PARAM" if dtype in FLOATS else "COUNT", 0))
        infos.append(
            TensorInfo(name, dtype, tuple(tensor["shape"]), Role[role], layer, notes.norms.get(name))
        )
    spec = ModelSpec(tuple(infos), notes.layers)
    layout = Layout(spec)
    payload = allocate(layout)
    data = {name: tensor["data"] for name, tensor in entries}
    for name, room in views(layout, payload).items():
        room.reshape(-1).view(np.uint8)[...] = np.frombuffer(data[name], np.uint8)
    return seal(spec, payload), payload


class _Notes(Value):
    """What safetensors does not know about a model."""

    layers: tuple[str, ...] = ()
    tensors: dict[str, tuple[Literal["PARAM", "STAT", "COUNT", "AUX"], int]] = {}  # role and layer by name
    norms: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}  # ε of normalisation layers


def _notes(raw: bytes, path: Path) -> _Notes:
    length = int.from_bytes(raw[:8], "little")
    about = json.loads(raw[8 : 8 + length]).get("__metadata__", {})
    try:
        return _Notes.model_validate_json(about.get("hansa", "{}"))
    except ValidationError:
        raise InvalidInput(f"{path}: its Hansa metadata is damaged") from None


def _position(name: str, notes: _Notes) -> tuple[int, str]:
    order = list(notes.tensors)
    return (order.index(name), "") if name in order else (len(order), name)
