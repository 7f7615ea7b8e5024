"""The container engine of this machine, and commands written for Docker that run on it.

The commands come from deploy/README.md. A stand-in for `docker` passes them on under other names, so that
images and containers of a real deployment on this machine are safe.
"""

import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = "hansa-tried"
LABEL = f"label=com.docker.compose.project={PROJECT}"  # by which compose marks what is a project's
NAMES = ("hansa", "hansa-controller")  # the images, as deploy/README.md calls them
BASE = re.compile(r"^ARG BASE=(.*)$", re.MULTILINE)
STAND_IN = """#!/bin/sh
exec {python} -m tests.containers.engine {engine} "$@"
"""
AS_ROOT = """#!/bin/sh
exec "$@"
"""


def image(name: str) -> str:
    """Return what an image of deploy/README.md is called while it is tried."""
    return f"localhost/{name}-tried:latest"


def found(root: Path) -> "Engine | str":
    """Return an engine that can be used, or why there is none."""
    dockerfile = (root / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    base = BASE.search(dockerfile)
    assert base, "deploy/Dockerfile names its base image"
    reasons = []
    for name in ("docker", "podman"):
        if not shutil.which(name):
            reasons.append(f"{name} is not installed")
        elif (info := _run(name, "info")).returncode:
            reasons.append(f"{name} cannot be used: {info.stderr.strip().splitlines()[-1]}")
        elif _run(name, "image", "inspect", base[1]).returncode and _run(name, "pull", base[1]).returncode:
            reasons.append(f"{name} is installed, but {base[1]} is neither here nor can be pulled")
        else:
            return Engine(name)
    return "; ".join(reasons)


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    # Without root, Podman keeps its images at home, and tests have a home of their own.
    environment = os.environ | {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=600, env=environment)


@dataclass(frozen=True)
class Engine:
    """Docker or Podman."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)  # of the commands of deploy/README.md

    def prepare(self, folder: Path, port: int) -> None:
        """Write the stand-ins for `docker` and `sudo` into a folder that commands find first."""
        folder.mkdir()
        scripts = {"docker": STAND_IN.format(python=sys.executable, engine=self.name)}
        if os.geteuid() == 0:
            scripts["sudo"] = AS_ROOT
        for name, text in scripts.items():
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)
        path = (str(folder), str(Path(sys.executable).parent), os.environ["PATH"])
        self.environment.update(os.environ)
        self.environment.update(
            PATH=os.pathsep.join(path),
            HOME=pwd.getpwuid(os.getuid()).pw_dir,
            PYTHONPATH=str(Path(__file__).resolve().parents[2]),
            HANSA_PORT=str(port),
            HANSA_IMAGE=image("hansa"),
            HANSA_CONTROLLER_IMAGE=image("hansa-controller"),
        )

    def follow(self, block: str, clone: Path, patience: float) -> str:
        """Run commands of deploy/README.md in a clone and return their output; fail if one fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=clone,
            env=self.environment | {"PYTHONPATH": str(clone)},  # the Hansa that the images are built from
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-4000:]}"
        return done.stdout

    def ask(self, *words: str) -> str:
        """Return the output of a command of the engine; fail if it fails."""
        done = _run(self.name, *words)
        assert done.returncode == 0, f"{self.name} {shlex.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def execute(self, service: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the container of a service."""
        return _run(self.name, "exec", self.containers[service], *words)

    @property
    def containers(self) -> Mapping[str, str]:
        """The names of the project's containers by service."""
        names = self.ask("ps", "-a", "--filter", LABEL, "--format", "{{.Names}}").split()
        return {re.sub(r"[-_]1$", "", name.removeprefix(PROJECT)[1:]): name for name in names}

    def remains(self) -> list[str]:
        """Return the containers, volumes and networks of the project."""
        lists = (("ps", "-a", "--format", "{{.Names}}"), ("volume", "ls", "-q"))
        networks = ("network", "ls", "--format", "{{.Name}}")
        return [name for words in (*lists, networks) for name in self.ask(*words).split() if PROJECT in name]

    def inspect(self, name: str) -> dict[str, Any]:
        """Return everything about a container or an image."""
        documents: list[dict[str, Any]] = json.loads(self.ask("inspect", name))
        return documents[0]

    def healthy(self, name: str) -> bool:
        """Whether the health check of a container passes; without systemd, Podman does not repeat it."""
        if self.name == "podman":
            return _run("podman", "healthcheck", "run", name).returncode == 0
        return bool(self.inspect(name)["State"]["Health"]["Status"] == "healthy")

    def kill(self, service: str) -> int:
        """Kill the daemon in a container with -9 from outside, as no engine would; return its pid."""
        pid = int(self.inspect(self.containers[service])["State"]["Pid"])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        daemon = int(children[0]) if children else pid  # `init: true`: the first process only reaps others
        os.kill(daemon, signal.SIGKILL)
        return pid


def stand_in(engine: str, words: list[str]) -> list[str]:
    """Return what is run for a `docker` command."""
    if words[0] == "build":
        words = [image(word) if word in NAMES else word for word in words]
        return [engine, *words[:1], *(_pip() if engine == "podman" else []), *words[1:]]
    if words[0] == "compose":
        compose = [sys.executable, "-m", "podman_compose"] if engine == "podman" else [engine, "compose"]
        return [*compose, "-p", PROJECT, *words[1:]]
    return [engine, *words]


def _pip() -> list[str]:
    """Return options that let a build use pip as this machine does: its indexes, local folders and CA."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    options = ["--network=host", "--isolation=chroot"]
    for key in ("index-url", "extra-index-url", "find-links", "cert"):
        setting = re.search(rf"^(?:global|install|:env:)\.{key}='(.*)'$", listed, re.MULTILINE)
        if not setting:
            continue
        options += ["--env", f"PIP_{key.upper().replace('-', '_')}={setting[1]}"]
        for place in map(Path, re.findall(r"(?:file://)?(/\S+)", re.sub(r"https?://\S+", "", setting[1]))):
            shared = place.parent if place.name == "simple" else place  # an index links to files beside it
            options += ["--volume", f"{shared}:{shared}:ro"]
    return options


if __name__ == "__main__":
    if not sys.argv[1:]:  # .ci/run asks whether there is an engine
        usable = found(Path(__file__).resolve().parents[2])
        sys.exit(f"{usable}" if isinstance(usable, str) else 0)
    command = stand_in(sys.argv[1], sys.argv[2:])
    os.execvp(command[0], command)
