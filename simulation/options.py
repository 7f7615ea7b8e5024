"""Who does the work of a simulation, with how much memory, and in which order things happen."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """How a job is simulated."""

    workers: int = 0  # processes or, on Ray, actors; 0: this process does everything, or one for each CPU
    ray: str | None = None  # the address of a Ray cluster, or "auto" for one on this machine
    # Bytes of models and of what sites remember; what exceeds them is on the disk.
    memory: int = 4 << 30
    batched: bool = True  # small clients are trained in blocks where that gives the same bits
    replay: Path | None = None  # where the journal of a deployed job is, in whose order things happen
    job: str | None = None  # which job of that journal

    def __str__(self) -> str:
        if self.ray is None:
            return str(self.workers)
        return f"{self.workers or 'one per CPU'} on Ray ({self.ray})"


USUAL = Options()
