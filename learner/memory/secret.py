"""Randomness that nobody outside the site can recompute, for noise that hides something.

A task draws the same numbers again if it is done again: they follow from a key of the site, the job, the task
and a name. Whoever could see two different noises on the same update would know more about it than either of
them alone tells.
"""

import hashlib
import os
from collections.abc import Callable

import numpy as np

from hansa.common.site.files import Files
from hansa.common.values.errors import Broken
from hansa.common.values.tasks import Task

FILE = "secret.key"  # in the state directory
BYTES = 32


def read_key(files: Files) -> bytes:
    """Return the site's key; it is made when it is first needed."""
    if not files.exists(FILE):
        files.write(FILE, os.urandom(BYTES))
    key = files.read(FILE)
    if len(key) != BYTES:
        raise Broken(
            f"{files.where(FILE)} is damaged: it should hold {BYTES} bytes; delete it, and a new key is made"
        )
    return key


class Secret:
    """The secret randomness of one task."""

    def __init__(self, key: Callable[[], bytes], task: Task) -> None:
        self._key, self._task = key, task
        self.drawn = False  # whether a plugin has used it

    def __call__(self, name: str) -> np.random.Generator:
        """Return a generator that starts from the same point whenever it is asked for by the same name."""
        self.drawn = True
        words = [part.encode() for part in (self._task.job, self._task.id, name)]
        text = b"".join(len(word).to_bytes(8, "little") + word for word in words)
        digest = hashlib.blake2b(text, digest_size=32, key=self._key(), person=b"hansa.secret").digest()
        # Its output does not reveal its state to anybody who sees much of it, as that of PCG64 does.
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(digest, "little"))))
