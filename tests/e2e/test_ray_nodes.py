"""A Ray cluster of two nodes, in network namespaces: a head, where the driver runs, and another node."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.e2e.conftest import hansa
from tests.e2e.hosts import Hosts, missing
from tests.e2e.simulated_scene import Scene, alive, kill
from tests.processes import marked, new_mark
from tests.waiting import until

pytestmark = pytest.mark.slow

HEAD, OTHER, PORT = "10.77.1.1", "10.77.1.2", 6379
ADDRESS = f"{HEAD}:{PORT}"
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "only-for-this-test" * 2,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",  # a dead node is noticed soon
    "RAY_health_check_failure_threshold": "3",
}
NO_HANSA = 'raise ImportError("No module named hansa")'


class Cluster:
    """The cluster and its network."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        # Ray has sockets in this folder, whose paths must be short.
        self.folder = tempfile.mkdtemp(prefix="hansa-test-")
        self.marks = {name: new_mark() for name in ("a", "b")}
        self.hosts.add("a")
        self.hosts.add("b")
        self.hosts.link("a", "b", 1)

    def start_head(self) -> None:
        words = ["--head", f"--port={PORT}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
        self._start("a", f"--node-ip-address={HEAD}", *words)

    def start_other(self, before: str = "", **env: str) -> None:
        self._start("b", f"--node-ip-address={OTHER}", f"--address={ADDRESS}", before=before, **env)

    def _start(self, host: str, *words: str, before: str = "", **env: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        command = f'{before or ":"} && exec {ray} start --block --num-cpus=1 "$@"'
        self.hosts.start(host, host, "sh", "-c", command, "sh", *words, **SETTINGS, **self.marks[host], **env)
        log = self.hosts.folder / f"{host}.log"
        until(lambda: "--block" in log.read_text(), 60, log.read_text)
        log.write_text("")

    def kill_head(self) -> None:
        """End the head as a power cut does, except for a driver there."""
        for pid in marked(self.marks["a"]):
            kill(pid)
        self.hosts.processes.pop("a").wait(10)

    def stop_other(self) -> None:
        """End the other node as a power cut does."""
        if "b" in self.hosts.processes:
            for pid in marked(self.marks["b"]):
                kill(pid)
            self.hosts.processes.pop("b").wait(10)

    def simulate(self, scene: Scene, out: str, saving: bool = False) -> "subprocess.Popen[bytes]":
        """Start a driver on the head; its output is in driver.log."""
        (self.hosts.folder / "driver.log").unlink(missing_ok=True)
        words = scene.words(out, "--ray", ADDRESS, saving=saving)
        self.hosts.start("a", "driver", *words, **SETTINGS, HANSA_CONFIG="")
        return self.hosts.processes["driver"]

    @property
    def output(self) -> str:
        return (self.hosts.folder / "driver.log").read_text()

    def close(self) -> None:
        self.hosts.close()
        for mark in self.marks.values():
            for pid in marked(mark):
                kill(pid)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if find_spec("ray") is None:
        pytest.skip("Ray is missing: pip install 'hansa[ray]'")
    if why := missing():
        pytest.skip(why)
    running = Cluster(Hosts(tmp_path_factory.mktemp("hosts")))
    try:
        running.start_head()
        running.start_other()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Scene:
    """A job in the cluster's folder, and the models that it must give."""
    scene = Scene(cluster.hosts.folder)
    done = hansa("simulate", "job.yaml", "--out", "alone", "--json", cwd=scene.folder)
    assert done.returncode == 0, done.stderr
    return scene


def namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def test_a_node_is_used_and_an_actor_that_is_killed_is_replaced(cluster: Cluster, scene: Scene) -> None:
    scene.hold()
    driver = cluster.simulate(scene, "without-actor")
    pids = scene.busy(2)
    assert len(set(map(namespace, pids))) == 2  # both nodes have an actor
    kill(next(pid for pid in pids if namespace(pid) != namespace(driver.pid)))
    scene.go_on()
    assert driver.wait(90) == 0, cluster.output
    assert scene.digests("without-actor") == scene.digests("alone")


def test_actors_end_with_a_driver_that_is_killed_and_the_cluster_stays(
    cluster: Cluster, scene: Scene
) -> None:
    scene.hold()
    driver = cluster.simulate(scene, "killed")
    pids = scene.busy(2)
    driver.kill()
    driver.wait(10)
    until(lambda: not any(map(alive, pids)), 30, "an actor is left")
    scene.go_on()
    assert cluster.simulate(scene, "next").wait(90) == 0, cluster.output
    assert scene.digests("next") == scene.digests("alone")


def test_a_machine_that_is_not_a_node_is_refused(cluster: Cluster, scene: Scene) -> None:
    cluster.hosts.add("c")
    cluster.hosts.link("a", "c", 2)
    words = scene.words("refused", "--ray", f"10.77.2.1:{PORT}")
    done = cluster.hosts.inside("c", *words, check=False, cwd=scene.folder, env=scene.environment(**SETTINGS))
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"hansa: --ray 10.77.2.1:{PORT}: this machine is not a node of the cluster:"
    )
    assert done.stderr.count("\n") == 1


def test_a_node_that_dies_is_done_without(cluster: Cluster, scene: Scene) -> None:
    scene.hold()
    driver = cluster.simulate(scene, "without-node")
    scene.busy(2)
    cluster.stop_other()
    scene.go_on()
    assert driver.wait(90) == 0, cluster.output
    assert scene.digests("without-node") == scene.digests("alone")


@pytest.mark.parametrize(
    ("before", "env", "problem"),
    [
        # Each host has mounts of its own.
        ('mount -t tmpfs none "$FOLDER"', {}, "{folder}/s1 cannot be read: No such file or directory"),
        ("", {"ATEN_CPU_CAPABILITY": "default"}, "the CPU capability is DEFAULT there and {capability} here"),
        ("", {"PYTHONPATH": "{folder}/broken"}, "Hansa cannot be imported there: No module named hansa"),
    ],
    ids=["no data", "other processor", "no package"],
)
def test_a_node_that_differs_is_named_in_one_line(
    cluster: Cluster, scene: Scene, before: str, env: dict[str, str], problem: str
) -> None:
    folder = str(scene.folder)
    (scene.folder / "broken" / "hansa").mkdir(parents=True, exist_ok=True)
    (scene.folder / "broken" / "hansa" / "__init__.py").write_text(NO_HANSA)
    cluster.stop_other()
    settings = {name: text.format(folder=folder) for name, text in env.items()}
    cluster.start_other(before, FOLDER=folder, **settings)
    # The head's actor could do everything before the other one is there, but waits until that was examined.
    driver = cluster.simulate(scene, f"refused-{hash(problem)}")
    assert driver.wait(90) == 1
    text = problem.format(folder=folder, capability=torch.backends.cpu.get_cpu_capability())
    assert cluster.output.strip() == f"hansa: node {OTHER} of the Ray cluster: {text}"


def test_a_simulation_goes_on_after_the_head_has_died(cluster: Cluster, scene: Scene) -> None:
    cluster.stop_other()  # it may be one that differs
    cluster.start_other()
    scene.hold()
    driver = cluster.simulate(scene, "without-head", saving=True)
    pids = scene.busy(1)
    until((scene.folder / "without-head/save/state").exists, 20, "nothing was saved")
    cluster.kill_head()
    assert driver.wait(90) != 0
    until(lambda: not any(map(alive, pids)), 90, "an actor is left")
    scene.go_on()
    done = hansa("simulate", "--resume", "without-head", "--json", cwd=scene.folder)
    assert done.returncode == 0, done.stderr
    assert scene.digests("without-head") == scene.digests("alone")
