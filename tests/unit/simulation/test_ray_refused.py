"""What is refused before a simulation goes to a Ray cluster, and what its nodes must have in common."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.values.errors import HansaError, InvalidData, Unreachable
from hansa.simulation.crew.alike import difference, digests_of, other_data, software
from hansa.simulation.crew.cluster import Cluster, require_ray
from hansa.simulation.sites.data import FileForEach
from tests.golden.fleet import PLAIN
from tests.redis_server import free_port

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_without_ray_the_extra_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    file = {"simulate": "job.yaml", "sweep": "sweep.yaml"}[command]
    words = [command, f"examples/digits/{file}", "--ray", "auto", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(hansa, words)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "hansa: --ray: Ray is not installed: pip install 'hansa[ray]'"


@pytest.mark.parametrize("address", ["", "ray://head:10001", "head", ":6379", "head:", "head:port"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(HansaError, match="write HOST:PORT of the cluster's head"):
        require_ray(address)


def test_an_address_where_nothing_answers_is_refused_at_once() -> None:
    if find_spec("ray") is None:  # importing it would fix settings that other tests need
        pytest.skip("Ray is missing: pip install 'hansa[ray]'")
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=f"--ray {address}: no Ray cluster answers there"):
        Cluster(address, 1)


def test_a_machine_with_other_software_is_told_from_ours() -> None:
    here = software(PLAIN)
    assert difference(here, dict(here)) == ""
    assert difference(here, here | {"PyTorch": "1.0"}) == f"PyTorch is 1.0 there and {here['PyTorch']} here"
    assert difference(here, here | {"the app's source": "0"}).startswith("the app's source is 0 there")


def test_other_data_and_missing_data_are_named(tmp_path: Path) -> None:
    file, folder = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    file.write_text("1")
    (folder / "image").write_text("2")
    data = FileForEach({"a": file, "b": folder}, "validation")
    digests = digests_of(data)
    assert other_data(data, digests) == ""
    (folder / "image").rename(folder / "picture")
    assert other_data(data, digests) == f"{folder} holds other data there than here"
    file.unlink()
    with pytest.raises(InvalidData, match=f"{file} cannot be read: No such file or directory"):
        other_data(data, digests)
