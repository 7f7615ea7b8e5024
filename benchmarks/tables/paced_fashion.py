"""The fashion app at a fixed pace: every step of training takes a moment, whatever else the machine does meanwhile.

Ten sites on one machine compete for its cores, and sites of a federation do not. With a pause that is longer than the
arithmetic of a step, time on this machine passes nearly as it would at the sites; `--slow` lengthens pauses, too.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hansa.common.app import load_app

FASHION = Path(__file__).resolve().parents[2] / "examples" / "fashion" / "app.py"
PAUSE = 0.1  # seconds for each step


def _paced(batch: Any) -> Any:
    time.sleep(PAUSE)
    return batch


app = replace(load_app(f"{FASHION}:app"), transform=_paced)
