"""Records or checks golden values: `python -m tests.golden.record [--check] [portable|machine|engine …]`.

Without --check the files are written again: do this only for an intended change of behaviour, and read the
diff. With --check nothing is written, every bit is compared, and differences are printed.

    portable.json  digests of community models that are the same on every machine
    machine.json   the same for rules that train with PyTorch or solve by iteration; their bits depend on the
                   machine and the library versions, so the test compares their numbers with a tolerance
    engine/*.json  jobs played event by event through the engine: the steps, and what came of each
"""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.golden import files, jobs
from tests.golden.fleet import run
from tests.golden.stories import STORIES, file_of, improvise, replay


def models(group: Mapping[str, tuple[str, jobs.Family]]) -> dict[str, Any]:
    """Run families of jobs, with PyTorch on one thread: the bits must not depend on the number of cores."""
    torch.set_num_threads(1)
    outcomes: dict[str, Any] = {}
    for name, (app, family) in group.items():
        with tempfile.TemporaryDirectory() as folder:
            outcomes[name] = asyncio.run(run(Path(folder), family, app, numbers=group is jobs.MACHINE))
    return outcomes


def recorded(name: str, check: bool) -> dict[str, Any]:
    """Return the contents of golden files by name; a check of the engine replays the steps in its files."""
    if name == "engine" and check:
        return {file_of(story): replay(files.read(file_of(story))) for story in STORIES}
    if name == "engine":
        return {file_of(name): improvise(story) for name, story in STORIES.items()}
    return {f"{name}.json": models(jobs.PORTABLE if name == "portable" else jobs.MACHINE)}


def main(words: list[str]) -> int:
    """Record or check the named files, or all of them."""
    check, differ = "--check" in words, 0
    for name in [word for word in words if word != "--check"] or ["portable", "machine", "engine"]:
        for place, value in recorded(name, check).items():
            if check:
                lines = files.differences(files.read(place), files.plain(value))
                differ += len(lines)
                print(f"{place}: {len(lines)} differences", *lines, sep="\n  ")
            else:
                print(files.write(place, value))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
