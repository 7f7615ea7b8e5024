"""deploy/README.md's containers, followed to the letter, and what they must withstand: `make containers`.

This is not collected by `make test`: it needs Docker or Podman, and minutes.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.containers.engine import PROJECT, Engine, found, image
from tests.redis_server import free_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SITES = ("a", "b", "c")
DAEMONS = {f"{role}-{site}" for role in ("learner", "evaluator") for site in SITES}
REACH = """
import socket, sys
host, port = sys.argv[1:]
try:
    socket.create_connection((host, int(port)), 3)
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
pytestmark = pytest.mark.timeout(900)


def blocks() -> list[str]:
    """Return the commands of the README's section on containers, block by block."""
    text = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## Containers") : text.index("### GPUs")]
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


BUILD, UP, JOB, DOWN, UP_TLS, JOB_TLS, DOWN_TLS = blocks()


def say(text: str) -> None:
    """Tell whoever runs `make containers` what was seen."""
    print(f"\n    {text}", flush=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    usable = found(ROOT)
    if isinstance(usable, str):
        pytest.exit(f"containers cannot be tried here: {usable}", returncode=1)
    usable.prepare(tmp_path_factory.mktemp("engine") / "bin", free_port())
    assert not usable.remains(), f"an earlier run has left {usable.remains()}: remove it first"
    try:
        yield usable
    finally:
        if usable.remains():
            both = "-f deploy/compose.yaml -f deploy/compose.tls.yaml"
            usable.follow(f"docker compose {both} down -v", ROOT, 200)


@pytest.fixture(scope="module")
def clone(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree without what git ignores, so that nothing stays in the developer's own."""
    folder = tmp_path_factory.mktemp("clone")
    copy = "git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -C {} -xf -"
    subprocess.run(["bash", "-euo", "pipefail", "-c", copy.format(folder)], cwd=ROOT, check=True)
    return folder


def become_healthy(engine: Engine, seconds: float = 120) -> None:
    """Wait until every health check passes."""
    started, names = time.monotonic(), engine.containers
    assert set(names) == DAEMONS | {"controller", "redis"}
    for service, name in names.items():
        until(
            partial(engine.healthy, name), seconds, f"{service} is not healthy; `{engine.name} logs {name}`"
        )
    say(f"{len(names)} health checks pass after {time.monotonic() - started:.0f} s")


def jobs(engine: Engine) -> dict[str, Any]:
    """Return what `job list` says by name, or nothing while the controller is away."""
    done = engine.execute("controller", "hansa", "job", "list", "--json")
    return {job["name"]: job for job in json.loads(done.stdout)} if done.returncode == 0 else {}


def addresses(engine: Engine, service: str) -> list[str]:
    networks = engine.inspect(engine.containers[service])["NetworkSettings"]["Networks"]
    return [network["IPAddress"] for network in networks.values()]


def restarted(engine: Engine, service: str, old: int) -> bool:
    """Whether a container runs again, after its process `old` was killed."""
    state = engine.inspect(engine.containers[service])["State"]
    return bool(state["Running"] and state["Pid"] not in (0, old))


def test_both_images_are_built(engine: Engine, clone: Path) -> None:
    started = time.monotonic()
    engine.follow(BUILD, clone, 900)
    say(f"{engine.name} built both images in {time.monotonic() - started:.0f} s")


@pytest.mark.parametrize(("name", "torch"), [("hansa", True), ("hansa-controller", False)])
def test_an_image_says_what_is_in_it(name: str, torch: bool, engine: Engine) -> None:
    about = engine.inspect(image(name))
    labels = about["Config"]["Labels"]
    prefix = "org.opencontainers.image."
    assert labels[prefix + "title"] == "Hansa"
    assert labels[prefix + "licenses"] == "Apache-2.0"
    assert labels[prefix + "version"] in engine.ask("run", "--rm", image(name), "--version")
    assert labels[prefix + "base.name"] in (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert about["Config"]["User"] == "10001:10001"
    packages = json.loads(
        engine.ask("run", "--rm", "--entrypoint", "cat", image(name), "/opt/hansa/packages.json")
    )
    versions = {package["name"].lower().replace("-", "_"): package["version"] for package in packages}
    assert ("torch" in versions) == torch
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pinned = {pin.lower().replace("-", "_"): version for pin, version in pins.items()}
    for package, version in versions.items():
        assert version.partition("+")[0] == pinned.get(package, version.partition("+")[0]), package
    say(f"{name}: {about['Size'] / 1e6:.0f} MB, {len(versions)} Python packages, PyTorch: {torch}")


def test_a_trial_comes_up_and_runs_its_job(engine: Engine, clone: Path) -> None:
    engine.follow(UP, clone, 200)
    become_healthy(engine)
    output = engine.follow(JOB, clone, 300)
    assert "all 150 updates are merged" in output
    assert "bit for bit" in output
    say(output.strip().splitlines()[-1])


def test_sites_reach_the_controller_and_nothing_else(engine: Engine) -> None:
    def reaches(service: str, host: str, port: int) -> bool:
        return engine.execute(service, "python", "-c", REACH, host, str(port)).returncode == 0

    tried = 0
    for service in ("learner-a", "evaluator-b"):
        assert reaches(service, "controller", 7300)
        site = service[-1]
        others = [each for each in DAEMONS if not each.endswith(site)]
        places = [(address, 7300) for each in others for address in addresses(engine, each)]
        places += [(address, 6379) for address in addresses(engine, "redis")]
        places += [("redis", 6379), ("learner-c", 7300), ("192.0.2.1", 443), ("1.1.1.1", 443)]
        for host, port in places:
            assert not reaches(service, host, port), f"{service} reaches {host}:{port}"
        tried += len(places)
    for address in addresses(engine, "controller"):  # the store's port is not the controller's
        assert not reaches("learner-a", address, 6379)
    say(f"a site reaches the controller, and none of {tried} other places")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may kill processes of other users")
def test_what_is_killed_comes_back_and_the_job_goes_on(engine: Engine) -> None:
    submit = ("hansa", "job", "submit", "/tmp/job.yaml", "--set", "name=kills", "--set", "pace.updates=1000")
    assert engine.execute("controller", *submit).returncode == 0

    def merged(more: int) -> bool:
        return bool(jobs(engine).get("kills", {}).get("rounds", 0) >= more)

    until(lambda: merged(20), 120)
    for service in ("controller", "learner-b", "redis"):
        before = jobs(engine)["kills"]
        assert before["status"] == "running", "the job must outlast the kills"
        started, old = time.monotonic(), engine.kill(service)

        until(partial(restarted, engine, service, old), 60, f"{service} was not restarted")
        until(partial(engine.healthy, engine.containers[service]), 120)
        again = time.monotonic() - started
        until(partial(merged, before["rounds"] + 50), 120)
        say(f"kill -9 {service}: healthy after {again:.1f} s, the job goes on from round {before['rounds']}")
    until(lambda: jobs(engine)["kills"]["status"] != "running", 300)
    assert jobs(engine)["kills"]["status"] == "completed"
    verified = engine.execute("controller", "hansa", "job", "verify", "kills")
    assert verified.returncode == 0, verified.stderr
    say(" ".join(verified.stdout.split()))


def test_down_leaves_nothing(engine: Engine, clone: Path) -> None:
    assert engine.remains()
    engine.follow(DOWN, clone, 200)
    assert engine.remains() == []
    say(f"no container, volume or network of {PROJECT} is left")


def test_the_same_with_certificates(engine: Engine, clone: Path) -> None:
    engine.follow(UP_TLS, clone, 200)
    become_healthy(engine)
    output = engine.follow(JOB_TLS, clone, 300)
    assert len(re.findall(r"^site-[abc] +(?:learner|evaluator) +attending", output, re.MULTILINE)) == 6
    assert (clone / "deploy" / "trial.safetensors").stat().st_size > 10_000
    port = engine.environment["HANSA_PORT"]
    stranger = subprocess.run(
        ["hansa", "site", "list", "--controller", f"localhost:{port}"],
        env=engine.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert stranger.returncode == 3, stranger.stderr
    say(output.strip().splitlines()[-1])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may kill processes of other users")
def test_with_certificates_a_killed_controller_comes_back(engine: Engine, clone: Path) -> None:
    until(partial(restarted, engine, "controller", engine.kill("controller")), 60)
    become_healthy(engine)
    alice, _, _ = JOB_TLS.partition("hansa ")  # who asks for her jobs; a controller's certificate may not
    assert "(trial): completed" in engine.follow(f"{alice}hansa job show trial", clone, 60)


def test_down_leaves_nothing_of_that_either(engine: Engine, clone: Path) -> None:
    engine.follow(DOWN_TLS, clone, 200)
    assert engine.remains() == []
