"""An installation without PyTorch: an environment with the packages of this one, but for those of torch."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"torch", "functorch", "torchgen", "torchvision"}


class LightInstall:
    """A virtual environment with links to packages; its processes find no PyTorch."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        for place in map(Path, sys.path):
            if place.name == "site-packages":
                for entry in place.iterdir():
                    name = entry.name.partition("-")[0].partition(".")[0]
                    if name not in LEFT_OUT and entry.suffix != ".pth" and not (site / entry.name).exists():
                        (site / entry.name).symlink_to(entry)
        if not (site / "hansa").exists():
            (site / "hansa").symlink_to(ROOT / "hansa")

    def run(self, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run a command of `hansa` to its end."""
        return subprocess.run(
            [self.python, "-P", "-m", "hansa", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            cwd=cwd,
        )
