"""Checks of an exported model: is it the community model that its origin names?"""

from collections.abc import Iterator
from pathlib import Path

from hansa import __version__
from hansa.common.models.checkpoints import load_checkpoint, read_origin
from hansa.controller.engine.machine import Machine
from hansa.controller.rulebook.resolve import resolved


def check_export(file: Path, machine: Machine) -> Iterator[str]:
    """Yield every way in which an exported model, or its origin, differs from the job's receipts."""
    origin = read_origin(file)
    if origin is None:
        yield "it does not say which job it is from: neither `hansa job model` nor `hansa run` wrote it"
        return
    if origin.job != machine.job:
        yield f"it says that it is from job {origin.job}"
        return
    if not 0 <= origin.version <= machine.state.version:
        yield f"it says that it is version {origin.version}, which the job never had"
        return
    record = machine.state.history[origin.version]
    if origin.receipt != record.receipt:
        yield f"its receipt is not the one that the journal has for version {origin.version}"
    if load_checkpoint(file)[0].digest.hex() != record.digest:
        yield f"its tensors are not those of version {origin.version}, which the receipt names"
    claimed, known = origin.resolved, resolved(machine.spec)
    if claimed is None:
        return
    if (claimed.made_with, claimed.init, claimed.reference) != (known.made_with, known.init, known.reference):
        yield "the software and models that it names for the job are not those of the submission"
    same_version = known.made_with.hansa == __version__  # other versions have other defaults
    if claimed.job != known.job and same_version:
        yield "the job that it describes is not the one that was submitted"
