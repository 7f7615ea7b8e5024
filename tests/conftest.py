"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis server for all tests; each uses its own prefix."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), durable=False).start()
    yield server
    server.kill()
