"""Deployment files: their commands exist, their settings are read, and sites reach only the controller."""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hansa.common.cli import hansa

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OTHERS = {"HANSA_LOG", "HANSA_LOG_FORMAT", "HANSA_LOG_FILE", "HANSA_LOG_SIZE"}


SITE_SETTINGS = next(yaml.safe_load_all((DEPLOY / "k8s" / "base" / "site" / "settings.yaml").read_text()))


def compose(*names: str) -> dict[str, Any]:
    """Merge compose files as compose does, as far as needed here."""
    merged: dict[str, Any] = {}
    for name in names:
        for section, entries in yaml.safe_load((DEPLOY / name).read_text()).items():
            if section not in ("services", "networks"):
                continue
            for key, value in entries.items():
                held = merged.setdefault(section, {}).setdefault(key, {})
                for field, more in (value or {}).items():
                    old = held.get(field)
                    if isinstance(old, dict) and isinstance(more, dict):
                        held[field] = old | more
                    elif isinstance(old, list) and field in ("volumes", "networks", "ports"):
                        held[field] = old + more
                    else:
                        held[field] = more
    return merged


def objects() -> Iterator[dict[str, Any]]:
    for path in sorted((DEPLOY / "k8s").rglob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def commands() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Yield every hansa command line of the files, with the variables it gets."""
    for names in (("compose.yaml",), ("compose.yaml", "compose.tls.yaml")):
        for name, service in compose(*names)["services"].items():
            if name != "redis":
                yield f"{names[-1]}: {name}", service["command"], service["environment"]
                yield f"{names[-1]}: {name} probe", service["healthcheck"]["test"][2:], service["environment"]
    for thing in objects():
        for container in thing.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            env = {entry["name"]: entry["value"] for entry in container.get("env", ())}
            if "envFrom" in container:
                env |= SITE_SETTINGS["data"]
            if "args" in container:  # otherwise it is a patch, or Redis
                yield f"k8s: {container['name']}", container["args"], env
            for probe in ("readinessProbe", "livenessProbe"):
                words = container.get(probe, {}).get("exec", {}).get("command", [])
                if words[:2] == ["sh", "-c"]:
                    words = shlex.split(words[2].partition("|")[0])
                if words[:1] == ["hansa"]:
                    yield f"k8s: {container['name']} {probe}", words[1:], env
    site = {"HANSA_CONTROLLER": "x:1", "HANSA_DATA_PATH": "/d", "HANSA_APP": "a.py:app"}
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        line = re.search(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
        assert line
        words = shlex.split(line[1].replace("%i", "st-mary").replace("%d", "/tmp"))
        given = dict(re.findall(r"^Environment=(\w+)=(.*)$", path.read_text(), re.MULTILINE))
        yield path.name, words[1:], given | ({} if "controller" in path.name else site)


ALL = list(commands())


@pytest.mark.parametrize(("where", "words", "env"), ALL, ids=[where for where, _, _ in ALL])
def test_every_command_can_be_parsed_and_every_variable_is_read(
    where: str, words: list[str], env: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, str(tmp_path) if name == "HANSA_TLS" else str(value))
    context: click.Context = hansa.make_context(
        "hansa", [], allow_interspersed_args=False, resilient_parsing=True
    )
    command: click.Command = hansa
    rest = words
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, f"{where}: there is no {rest[0]}"
        command, rest = found, rest[1:]
    command.make_context(words[0], list(rest))  # raises if an option is unknown, wrong or missing
    group = hansa.get_command(context, words[0])
    assert isinstance(group, click.Group)
    read = {param.envvar for each in group.commands.values() for param in each.params}
    assert set(env) <= read | OTHERS, where


@pytest.mark.parametrize("names", [("compose.yaml",), ("compose.yaml", "compose.tls.yaml")])
def test_sites_see_only_the_controller(names: tuple[str, ...]) -> None:
    held = compose(*names)
    networks = {name: set(service["networks"]) for name, service in held["services"].items()}
    sites = [name for name in networks if name.startswith(("learner", "evaluator"))]
    assert len(sites) == 6
    for one, other in combinations(sites, 2):
        assert bool(networks[one] & networks[other]) == (one[-1] == other[-1])
    for name in sites:
        assert networks[name] & networks["controller"]
        assert not networks[name] & networks["redis"]
        assert all(held["networks"][network]["internal"] for network in networks[name])
    assert [name for name, service in held["services"].items() if "ports" in service] == (
        ["controller"] if len(names) == 2 else []
    )


@pytest.mark.parametrize("names", [("compose.yaml",), ("compose.yaml", "compose.tls.yaml")])
def test_containers_are_confined_watched_and_restarted(names: tuple[str, ...]) -> None:
    for name, service in compose(*names)["services"].items():
        assert service["restart"] == "unless-stopped"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["healthcheck"]["test"]
        assert service["deploy"]["resources"]["limits"]["memory"]
        if name != "redis":
            assert service["read_only"]
            assert not service["user"].startswith("0")
        if len(names) == 2:
            assert "--insecure" not in service["command"]
            assert any(":/etc/hansa/tls:ro" in volume for volume in service["volumes"])


def test_a_sites_unit_can_be_given_other_certificates() -> None:
    for role in ("learner", "evaluator"):
        text = (DEPLOY / "systemd" / f"hansa-{role}@.service").read_text()
        # The environment file takes precedence over it, but not over --tls.
        assert "Environment=HANSA_TLS=%d\n" in text
        assert "--tls" not in text


def stages() -> dict[str, list[str]]:
    """Return the lines of the Dockerfile by stage."""
    parts = re.split(r"^FROM \S+ AS (\w+)\n", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    return {name: lines.strip().splitlines() for name, lines in zip(parts[1::2], parts[2::2], strict=True)}


def test_containers_run_as_the_images_do() -> None:
    user = stages()["daemons"][-1].removeprefix("USER ")
    # Named volumes belong to the image's user; no other user could write to them.
    for name, service in compose("compose.yaml", "compose.tls.yaml")["services"].items():
        assert name == "redis" or service["user"] == user
        assert name == "redis" or ("controller" in service["image"]) == (name == "controller")


@pytest.mark.parametrize("stage", ["controller", "daemons"])
def test_no_image_runs_as_root(stage: str) -> None:
    assert stages()[stage][-1] == "USER 10001:10001"
    assert 'ENTRYPOINT ["hansa"]' in stages()["runtime"]
    assert list(stages())[-1] == "daemons"  # what `docker build` makes without --target


def test_a_build_gets_every_package() -> None:
    """A folder that is missing from the build's context ends the build."""
    allowed = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    config = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in ("hansa", *config["tool"]["setuptools"]["package-dir"].values()):
        assert f"!{folder}" in allowed


def test_compose_accepts_its_files(tmp_path: Path) -> None:
    tool = shutil.which("docker-compose")
    if not tool:
        pytest.skip("docker-compose is not installed")
    for name in ("compose.yaml", "compose.tls.yaml"):
        text = (DEPLOY / name).read_text()
        # Older versions of compose do not know it.
        (tmp_path / name).write_text(re.sub(r"^name:.*$", "", text, flags=re.MULTILINE))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "redis_password").write_text("x")
    for words in (["-f", "compose.yaml"], ["-f", "compose.yaml", "-f", "compose.tls.yaml"]):
        done = subprocess.run(
            [tool, *words, "config", "-q"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_units_are_confined(path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if not tool:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        [tool, "security", "--offline=true", "--threshold=25", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_systemd_understands_every_line_of_its_units(path: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if not tool:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / path.name
    # systemd-analyze checks that the program exists.
    unit.write_text(path.read_text().replace("/opt/hansa/venv/bin/hansa", "/bin/true"))
    done = subprocess.run(
        [tool, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert path.name not in done.stderr, done.stderr  # unknown keys only cause warnings


@pytest.mark.parametrize("site", ["a", "b", "c"])
def test_learner_and_evaluator_of_a_site_share_the_folder_of_personal_tensors(site: str) -> None:
    services = compose("compose.yaml")["services"]
    learner, evaluator = (services[f"{role}-{site}"] for role in ("learner", "evaluator"))
    folder = learner["environment"]["HANSA_PERSONAL"]
    assert evaluator["environment"]["HANSA_PERSONAL"] == folder
    assert f"personal-{site}:{folder}" in learner["volumes"]
    assert f"personal-{site}:{folder}:ro" in evaluator["volumes"]
    assert folder in (DEPLOY / "Dockerfile").read_text()  # which makes it for the user of the daemons
