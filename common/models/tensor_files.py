"""Arrays in safetensors files, with texts beside them; neither writing nor reading copies an array."""

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import safetensors

from hansa.common.models.model import DTYPES, Arrays
from hansa.common.process.files import write_whole
from hansa.common.values.errors import InvalidInput

DTYPE_OF = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "BOOL": "bool"} | {
    f"{short}{bits}": f"{name}{bits}"
    for short, name in (("I", "int"), ("U", "uint"))
    for bits in (8, 16, 32, 64)
}
NAME_OF = {dtype: name for name, dtype in DTYPE_OF.items()}


def write_tensors(
    path: Path, arrays: Arrays, texts: Mapping[str, str], mode: int, durable: bool = True
) -> None:
    """Write a file that appears complete or not at all; the arrays have data types that models can have."""
    order = in_order(arrays)
    header: dict[str, object] = {"__metadata__": dict(texts)}
    end = 0
    for name in order:
        begin, end = end, end + arrays[name].nbytes
        kind = NAME_OF[arrays[name].dtype.name]
        header[name] = {"dtype": kind, "shape": list(arrays[name].shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)

    def parts() -> Iterator[bytes | memoryview]:
        yield len(head).to_bytes(8, "little") + head
        for name in order:
            array = np.ascontiguousarray(arrays[name], DTYPES[arrays[name].dtype.name])
            yield array.reshape(-1).view(np.uint8).data

    write_whole(path, parts(), mode, durable)


def in_order(arrays: Arrays) -> list[str]:
    """Return the names of arrays as a file has them.

    The widest numbers come first, so that all are aligned when the file is mapped into memory.
    """
    return sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))


def read_texts(path: Path) -> dict[str, str]:
    """Return the texts of a file; only its head is read, and compared with its size."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise InvalidInput(f"{path}: not a safetensors file: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays and texts of a file.

    The arrays are read from the file as they are used. They may be changed: the file stays as it is.
    """
    read_texts(path)  # checks the header; what it says is read below: the file may be replaced meanwhile
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    texts = header.pop("__metadata__", {})
    arrays = {}
    for name, about in header.items():
        if about["dtype"] not in DTYPE_OF:
            raise InvalidInput(f"{path}: {name} has type {about['dtype']}, which cannot be used")
        kind, (begin, end) = DTYPES[DTYPE_OF[about["dtype"]]], about["data_offsets"]
        flat = np.frombuffer(mapped, kind, (end - begin) // kind.itemsize, start + begin)
        arrays[name] = flat.reshape(about["shape"])
    return arrays, texts
