"""Addresses: which of them only this machine can reach, and where a controller may listen."""

from pathlib import Path

import pytest

from hansa.common.rpc.channel import is_loopback
from hansa.common.values.errors import InvalidInput
from hansa.controller.server import ControllerOptions, serve


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.5.5.5:1", "localhost:1", "[::1]:1"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:1",
        "[::]:1",
        "10.0.0.1:1",
        "127.evil.example:1",
        "localhost.evil.example:1",
        "hub:1",
        "127.1:1",
    ],
)
async def test_everything_else_needs_certificates_or_an_explicit_word(address: str, tmp_path: Path) -> None:
    assert not is_loopback(address)
    with pytest.raises(InvalidInput, match="give --tls"):
        await serve(ControllerOptions(address, tmp_path, "memory:"), lambda _: None)


async def test_certificates_and_insecure_contradict_each_other(tmp_path: Path) -> None:
    options = ControllerOptions("127.0.0.1:0", tmp_path, "memory:", insecure=True, tls=tmp_path)
    with pytest.raises(InvalidInput, match="contradict"):
        await serve(options, lambda _: None)


async def test_a_controller_with_the_wrong_certificates_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"ca\.pem"):
        await serve(ControllerOptions("127.0.0.1:0", tmp_path, "memory:", tls=tmp_path), lambda _: None)
