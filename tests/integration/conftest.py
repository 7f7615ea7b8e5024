"""Fixtures for integration tests."""

import pytest

from tests.redis_server import RedisServer


@pytest.fixture(params=["disk", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """Return a store's URL, empty for the disk."""
    if request.param == "disk":
        return ""
    server: RedisServer = request.getfixturevalue("redis")
    return f"{server.url}?prefix={request.node.name.encode().hex()[-40:]}"
