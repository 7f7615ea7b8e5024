"""What people type in a shell: completion with the Tab key, and the logs of daemons."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hansa.common.process.state import stop

HANSA = Path(sys.executable).with_name("hansa")


def completions(*words: str) -> list[str]:
    environment = os.environ | {
        "_HANSA_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("hansa", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([HANSA], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_and_options_are_completed() -> None:
    assert completions("le") == ["learner"]
    assert "stop" in completions("learner", "st")
    assert "--follow" in completions("controller", "logs", "--")


def test_names_of_commands_are_completed_without_importing_them() -> None:
    code = (
        "import sys\nfrom hansa.common.cli import hansa\nimport click\n"
        "assert len(hansa.shell_complete(click.Context(hansa), '')) > 10\n"
        "print(sorted({'grpc', 'numpy', 'pydantic', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(shell: str) -> None:
    done = subprocess.run([HANSA, "completion", shell], capture_output=True, text=True, check=True)
    assert f"_HANSA_COMPLETE={shell}_complete" in done.stdout
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"], input=done.stdout, text=True, capture_output=True, check=False
        )
        assert checked.returncode == 0, checked.stderr


def test_bash_completes_with_the_script() -> None:
    script = (
        f'eval "$({HANSA} completion bash)"; COMP_WORDS=(hansa simu); COMP_CWORD=1; '
        f'_hansa_completion {HANSA}; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "simulate\n", done.stderr


def test_logs_shows_the_log_of_a_daemon(tmp_path: Path) -> None:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [HANSA, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    state = tmp_path / "state"
    assert run("controller", "logs", "--state", str(state)).returncode == 1
    listen = ("--listen", "127.0.0.1:0")
    assert run("controller", "start", "--daemon", *listen, "--state", str(state)).returncode == 0
    try:
        address = json.loads((state / "controller.lock").read_text())["address"]
        following = subprocess.Popen(
            [HANSA, "controller", "logs", "-f", "--state", str(state)], stdout=subprocess.PIPE, text=True
        )
        assert following.stdout
        assert f"listens on {address}" in following.stdout.readline()
    finally:
        stop(state, "controller")
    assert "stopping" in following.stdout.readline()
    following.kill()
    following.communicate()
    shown = run("controller", "logs", "-n", "1", "--state", str(state))
    assert shown.stdout.count("\n") == 1
    assert "stopping" in shown.stdout
