"""Where the results of simulations go."""

import os
import time
from pathlib import Path

from hansa.common.values.errors import Taken

SIMULATIONS = Path(".hansa/simulations")


def new_folder(name: str) -> Path:
    """Return where the results of a simulation go if nobody says where."""
    return SIMULATIONS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def require_new(folder: Path) -> None:
    """Refuse a folder that holds something."""
    if folder.exists() and any(folder.iterdir()):
        raise Taken(f"--out {folder}: it holds the results of another run; choose a new folder")
