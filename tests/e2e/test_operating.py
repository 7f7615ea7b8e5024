"""The set-up of a three-site consortium in docs/operating.md, followed to the letter in a clean directory."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hansa.common.process.state import stop
from tests.e2e.conftest import ROOT
from tests.redis_server import free_port

pytestmark = pytest.mark.slow


def _commands() -> str:
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    section = re.search(r"^## A consortium from zero$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert section
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL))


@pytest.mark.timeout(300)
def test_the_consortium_of_the_documentation_works(tmp_path: Path) -> None:
    if not shutil.which("bash"):
        pytest.skip("the documentation is for bash")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, words in (("hansa", "-m hansa"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tools / name).chmod(0o755)
    script = tmp_path / "script"
    text = _commands().replace("PORT=7300", f"PORT={free_port()}")
    last = text.rindex("for site in")  # everything is stopped, whatever went wrong before
    assert "controller stop" in text[last:]
    work = tmp_path / "work"
    work.mkdir()
    script.write_text(
        f"trap 'cd \"$TOP\"\n{text[last:]}' EXIT\nset -e\n{text[:last]}".replace(
            'cd "$(mktemp -d)"\n', 'TOP="$WORK"; cd "$TOP"\n'
        )
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("HANSA_")}
    env |= {"PATH": f"{tools}:{env['PATH']}", "PYTHONPATH": str(ROOT), "HANSA_CONFIG": "", "WORK": str(work)}
    try:
        done = subprocess.run(
            ["bash", str(script)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False
        )
    finally:
        for lock in work.rglob("*.lock"):  # of daemons that are still there if the script was interrupted
            stop(lock.parent, lock.stem)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "completed: all 5 rounds are done" in said
    assert "refuses this job: it asks for 50 epochs" in said
    assert "records are sound" in said
    assert "receipts agree with the journal" in said
    assert re.search(r"operator alice +submitted", said)
    assert said.count("stopped") >= 7
    keys = sorted(path.relative_to(work).as_posix() for path in work.rglob("key.pem"))
    assert len(keys) == 8  # two of each site, the hub's, Alice's
    assert not list((work / "authority").rglob("key.pem"))
