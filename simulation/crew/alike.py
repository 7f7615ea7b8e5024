"""What the bits of models depend on besides the job: software, processor, the app's source and the data.

Workers on other machines compare theirs with the driver's before they do anything.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from blake3 import blake3

from hansa.common.app import load_app
from hansa.common.site.source import source_of
from hansa.common.values.errors import InvalidData
from hansa.simulation.sites.data import VirtualData

SHOWN = 12  # characters of a digest


def software(ref: str) -> dict[str, str]:
    """Describe this machine's software, and the app as it is here."""
    import torch

    load_app(ref)  # if it is missing or broken, this says so better than a digest
    return {
        "PyTorch": torch.__version__,
        "the CPU capability": torch.backends.cpu.get_cpu_capability(),
        "the build of PyTorch": blake3(torch.__config__.show().encode()).hexdigest()[:SHOWN],
        "the app's source": source_of(ref).digest[:SHOWN],
    }


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Name the first thing that another machine has otherwise; empty if it has everything alike."""
    for name, value in here.items():
        if there[name] != value:
            return f"{name} is {there[name]} there and {value} here"
    return ""


def digests_of(data: VirtualData) -> tuple[bytes, ...]:
    """Return the digests of the data's files."""
    return tuple(_digest(path) for path in data.files())


def other_data(data: VirtualData, digests: Iterable[bytes]) -> str:
    """Name the first file that is not the driver's; empty if all are."""
    for path, digest in zip(data.files(), digests, strict=True):
        if _digest(path) != digest:
            return f"{path} holds other data there than here"
    return ""


def _digest(path: Path) -> bytes:
    """Return the digest of a file, or of all files in a folder."""
    try:
        if not path.is_dir():
            path.open("rb").close()  # its errors are clearer than those of blake3
            return blake3().update_mmap(path).digest()
        hasher = blake3()
        for inner in sorted(each for each in path.rglob("*") if each.is_file()):
            hasher.update(str(inner.relative_to(path)).encode() + b"\0" + _digest(inner))
        return hasher.digest()
    except OSError as error:
        raise InvalidData(f"{path} cannot be read: {error.strerror or error}") from None
