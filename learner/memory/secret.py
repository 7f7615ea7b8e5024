"""Randomness that nobody outside the site can recompute, for noise that hides something.

A task draws the same numbers again if it is done again: they follow from a key of the site, the fingerprint
of the task and a name. Two different noises on the same update would tell more about it than either of them,
and the same noise on two updates would tell how these differ.
"""

import hashlib
import os
from collections.abc import Callable

import numpy as np

from hansa.common.site.files import Files
from hansa.common.values.errors import Broken

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

    def __init__(self, key: Callable[[], bytes], task: Callable[[], str]) -> None:
        """`task` returns the fingerprint of the task; few tasks need one."""
        self._key, self._task = key, task
        self._generators: dict[str, np.random.Generator] = {}

    @property
    def drawn(self) -> bool:
        """Whether a plugin has used it."""
        return bool(self._generators)

    def __call__(self, name: str) -> np.random.Generator:
        """Return the task's generator of a name; no number is drawn from it twice."""
        if name not in self._generators:
            text = self._task().encode() + name.encode()  # fingerprints are all of the same length
            digest = hashlib.blake2b(text, digest_size=32, key=self._key(), person=b"hansa.secret").digest()
            seed = np.random.SeedSequence(int.from_bytes(digest, "little"))
            # Its output does not reveal its state to anybody who sees much of it, as that of PCG64 does.
            self._generators[name] = np.random.Generator(np.random.Philox(seed))
        return self._generators[name]
