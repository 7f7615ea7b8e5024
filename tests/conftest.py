"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that tests share; each uses a prefix of its own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), durable=False).start()
    yield server
    server.kill()
