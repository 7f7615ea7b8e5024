"""Who does the work of a simulation, and with how much memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Who does the work of a simulation."""

    workers: int = 0  # processes; 0: this one does everything
    # Bytes of models and of what sites remember; what exceeds them is on the disk.
    memory: int = 4 << 30


USUAL = Options()
