"""The command line of `--launcher`, checked before anything is loaded."""

import shlex
import shutil

from hansa.common.values.errors import InvalidInput

COMMAND = "{command}"


def checked(template: str) -> str:
    """Return a launcher's command line if it can be used."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise InvalidInput(f"--launcher {template}: {error}") from None
    if template.count(COMMAND) != 1:
        raise InvalidInput(
            f"--launcher {template}: it must have {COMMAND} once, where the command that trains belongs"
        )
    if COMMAND not in words:
        raise InvalidInput(
            f"--launcher {template}: {COMMAND} stands for several words and must not be quoted"
        )
    if words[0] != COMMAND and shutil.which(words[0]) is None:
        raise InvalidInput(f"--launcher {template}: there is no program {words[0]}")
    return template
