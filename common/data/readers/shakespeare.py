"""Shakespeare's speaking roles: the next character after 80 characters of a role's speeches.

Read from one JSON file (`plays`: short name → title, `speeches`: [play, speaker, text] in reading order).
"""

import json
from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples
from hansa.common.data.partition.table import Key
from hansa.common.data.readers.files import damaged, read_bytes
from hansa.common.values.errors import InvalidData

WINDOW = 80
ALPHABET = 128  # characters that a signed byte can number


def read_roles(files: dict[str, Path]) -> DataSet:
    """Return every window of 80 characters within a role and the next character, as numbers."""
    (path,) = files.values()
    with damaged(path, "a file of speeches"):
        speeches = json.loads(read_bytes(path))["speeches"]
        roles: dict[str, list[str]] = {}
        for play, speaker, text in speeches:
            roles.setdefault(f"{play}/{speaker}", []).append(text)
        texts = {role: "\n".join(speech) for role, speech in roles.items()}
    if not any(len(text) > WINDOW for text in texts.values()):
        raise InvalidData(f"{path}: no role says more than {WINDOW} characters")
    vocabulary = "".join(sorted(set().union(*texts.values())))
    if len(vocabulary) > ALPHABET:
        raise InvalidData(f"{path}: {len(vocabulary)} different characters; at most {ALPHABET} can be read")
    number = np.zeros(max(map(ord, vocabulary)) + 1, np.int16)
    number[[ord(c) for c in vocabulary]] = np.arange(len(vocabulary))
    windows, following, codes = [], [], []
    names = sorted(role for role, text in texts.items() if len(text) > WINDOW)
    for code, role in enumerate(names):
        line = number[np.frombuffer(texts[role].encode("utf-32-le"), np.uint32)]
        windows.append(np.lib.stride_tricks.sliding_window_view(line, WINDOW)[:-1].astype(np.int8))
        following.append(line[WINDOW:].astype(np.int64))
        codes.append(np.full(len(line) - WINDOW, code, np.int32))
    role_of = np.concatenate(codes)
    plays = Key.of(np.array([role.partition("/")[0] for role in names]))
    keys = {"role": Key(role_of, tuple(names)), "play": Key(plays.codes[role_of], plays.names)}
    examples = Examples(np.concatenate(windows), np.concatenate(following))
    return DataSet(examples, 0, keys, classes=tuple(vocabulary), ordered=True)
