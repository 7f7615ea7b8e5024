"""Records golden values, or checks them: `python -m tests.golden.record [--check] [portable|machine|engine …]`.

Without --check the files are written anew: do that only for a change of behaviour that is meant, and read the
diff. With --check nothing is written, every bit is compared, and what differs is printed.

    portable.json  digests of community models that are the same on every machine
    machine.json   the same for rules that train with PyTorch or solve by iteration. Their bits hold on the machine and
                   for the library versions that made them; the committed test compares their numbers with a
                   tolerance
    engine/*.json  jobs played event by event through the engine: what was done, and what came of it
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
    """Run families of jobs; PyTorch works on one thread, lest the bits depend on how many cores there are."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, (app, family) in group.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = asyncio.run(run(Path(folder), family, app, numbers=group is jobs.MACHINE))
    return found


def recorded(name: str, check: bool) -> dict[str, Any]:
    """Return what belongs into each golden file; a check of the engine plays what its files say was done."""
    if name == "engine" and check:
        return {file_of(story): replay(files.read(file_of(story))) for story in STORIES}
    if name == "engine":
        return {file_of(name): improvise(story) for name, story in STORIES.items()}
    return {f"{name}.json": models(jobs.PORTABLE if name == "portable" else jobs.MACHINE)}


def main(words: list[str]) -> int:
    """Record or check the files that are named, or all."""
    check, differ = "--check" in words, 0
    for name in [word for word in words if word != "--check"] or ["portable", "machine", "engine"]:
        for place, value in recorded(name, check).items():
            if check:
                found = files.differences(files.read(place), files.plain(value))
                differ += len(found)
                print(f"{place}: {len(found)} differences", *found, sep="\n  ")
            else:
                print(files.write(place, value))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
