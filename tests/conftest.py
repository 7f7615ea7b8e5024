"""Fixtures for all tests."""

import os
from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer

# Read when numpy and torch are imported: the workers share the cores, and threads would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis server for all tests; each uses its own prefix."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), durable=False).start()
    yield server
    server.kill()


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Give all processes a home of their own, so that the state of the person who runs the tests is safe."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        if pytestconfig.cache:  # matplotlib lists the fonts of a new home for seconds
            patch.setenv("MPLCONFIGDIR", str(pytestconfig.cache.mkdir("matplotlib")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread modules that start processes among those that do not.

    Every worker of pytest-xdist begins with neighbouring tests. If all slow ones were neighbours, some cores
    would have nothing to do in the end.
    """
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    quick: list[list[pytest.Item]] = []
    slow: list[list[pytest.Item]] = []
    for name, tests in modules.items():
        (quick if name.startswith("tests/unit/") else slow).append(tests)
    places = [(index / len(group), tests) for group in (slow, quick) for index, tests in enumerate(group)]
    items[:] = [item for _, tests in sorted(places, key=lambda place: place[0]) for item in tests]
