"""Log files: rotated, and complete even if native code writes to standard error."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_log_files_are_rotated_and_take_standard_error_along(tmp_path: Path) -> None:
    code = (
        "import logging, os\nfrom hansa.common.process import logs\nlogs.set_up()\n"
        "for i in range(300): logging.info('line %d %s', i, 'x' * 50)\nos.write(2, b'native words\\n')\n"
    )
    log = tmp_path / "learner.log"
    env = os.environ | {"HANSA_LOG_FILE": str(log), "HANSA_LOG_SIZE": "4000", "HANSA_LOG_FORMAT": "json"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["learner.log", *(f"learner.log.{n}" for n in range(1, 6))]
    assert all(path.stat().st_size <= 4500 for path in tmp_path.iterdir())
    assert log.stat().st_mode & 0o777 == 0o600
    *lines, last = log.read_text().splitlines()
    assert last == "native words"
    assert json.loads(lines[-1])["message"].startswith("line 299")
