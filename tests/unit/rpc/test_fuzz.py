"""Any bytes on any RPC get a status. `python -m tests.fuzz` does the same for much longer."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hansa.common.models.model import check_manifest
from hansa.common.rpc import codec
from hansa.common.values.errors import HansaError
from hansa.protos import model_pb2
from tests.fuzz import BAD, METHODS, Target, inputs, target


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Target]:
    async with target(tmp_path) as found:
        yield found


@pytest.mark.parametrize("method", METHODS)
async def test_any_bytes_get_a_status(made: Target, method: str) -> None:
    for seed in range(150):
        messages = inputs(random.Random(seed), made.seeds, method)
        code, text = await made.call(method, messages)
        assert code not in BAD, f"{messages!r}: {text}"
        await made.tidy()


async def test_honest_messages_are_answered(made: Target) -> None:
    """Otherwise the test above would prove nothing."""
    found = {}
    for method in METHODS:
        name = method.rpartition("/")[2]
        found[name], _ = await made.call(method, made.seeds[name][0])
        for further in made.seeds[name][1:]:
            assert (await made.call(method, further))[0] == found[name]
    assert found == dict.fromkeys(found, "OK") | dict.fromkeys(
        ("Cancel", "Delete", "Logs", "Report"), "NOT_FOUND"
    )


TENSOR = st.builds(
    model_pb2.Tensor,
    name=st.text(max_size=5),
    dtype=st.sampled_from(["float32", "int64", "bool", "", "object"]),
    shape=st.lists(st.integers(0, (1 << 64) - 1), max_size=40),
    role=st.integers(0, 5),
    layer=st.integers(0, (1 << 32) - 1),
    digest=st.binary(max_size=40),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TENSOR, max_size=5), st.lists(st.text(max_size=3), max_size=3))
def test_any_manifest_is_sound_or_refused(tensors: list[model_pb2.Tensor], layers: list[str]) -> None:
    try:
        manifest = codec.manifest_from_wire(model_pb2.Manifest(tensors=tensors, layers=layers))
        check_manifest(manifest)
    except HansaError:
        return
    assert all(info.nbytes >= 0 for info in manifest.spec.tensors)
    assert codec.manifest_from_wire(codec.manifest_to_wire(manifest)) == manifest
