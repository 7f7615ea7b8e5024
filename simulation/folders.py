"""Where the results of simulations go."""

from pathlib import Path

from hansa.common.run.folder import new_run
from hansa.common.values.errors import Taken

SIMULATIONS = Path(".hansa/simulations")


def new_folder(name: str) -> Path:
    """Return where the results of a simulation go if nobody says where."""
    return new_run(name, SIMULATIONS)


def require_new(folder: Path) -> None:
    """Refuse a folder that holds something."""
    if folder.exists() and any(folder.iterdir()):
        raise Taken(f"--out {folder}: it holds the results of another run; choose a new folder")
