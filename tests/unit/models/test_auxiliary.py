"""Auxiliary tensors in manifests: their names, their digests, and what is refused."""

import re
from typing import Any

import numpy as np
import pytest

from hansa.common.models.auxiliary import accompanied, apart, require_auxiliary, require_first, with_auxiliary
from hansa.common.models.frames import pack, seal
from hansa.common.models.model import MAX_TENSORS, Manifest, ModelSpec, Role, TensorInfo, check_manifest
from hansa.common.values.digests import joined
from hansa.common.values.errors import Rejected
from tests.support import filled, small_spec

SPEC = small_spec()
WHOLE = with_auxiliary(SPEC, ["c", "d"])


def manifest_of(spec: ModelSpec, value: float = 1.0) -> Manifest:
    return seal(spec, pack(spec, filled(spec, value)))


def test_there_is_one_float32_tensor_for_each_parameter_after_the_models_own() -> None:
    half = ModelSpec((TensorInfo("w", "bfloat16", (2, 3), Role.PARAM), *SPEC.tensors))
    whole = with_auxiliary(half, ["c", "d"])
    assert whole.names == (*half.names, "c/w", "c/layer.weight", "d/w", "d/layer.weight")
    assert whole.tensors[4] == TensorInfo("c/w", "float32", (2, 3), Role.AUX)
    assert whole.own == half
    assert with_auxiliary(whole, ["c"]).names == whole.names[:6]
    assert half.own is half


def test_the_model_keeps_its_digest_beside_auxiliary_tensors() -> None:
    plain, whole = manifest_of(SPEC), manifest_of(WHOLE)
    assert whole.model_digest == plain.digest == plain.model_digest
    assert plain.auxiliary_digest == b""
    assert whole.digest.hex() == joined(plain.digest.hex(), whole.auxiliary_digest.hex())
    assert joined(plain.digest.hex(), "") == plain.digest.hex()
    digests = [manifest_of(WHOLE, value).digest for value in (1.0, 2.0)]
    changed = Manifest(WHOLE, (*whole.digests[:-1], bytes(32)))
    assert len({*digests, plain.digest, changed.digest}) == 4


def test_a_manifest_can_be_had_with_some_of_its_auxiliary_tensors() -> None:
    whole = manifest_of(WHOLE)
    assert accompanied(whole, ()) == manifest_of(SPEC)
    assert accompanied(whole, {"d"}).spec.names == (*SPEC.names, "d/layer.weight")
    assert accompanied(whole, {"c", "d", "e"}) == whole
    plain = manifest_of(SPEC)
    assert accompanied(plain, {"c"}) is plain


def first(*infos: TensorInfo) -> Manifest:
    return manifest_of(ModelSpec(infos))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (manifest_of(WHOLE), "the first model has auxiliary tensors, which only a rule adds"),
        (
            first(TensorInfo("c/w", "float32", (), Role.PARAM), TensorInfo("w", "float32", (), Role.PARAM)),
            "tensor c/w must be renamed: names that begin with c/ are those of auxiliary tensors",
        ),
        (first(TensorInfo("w" * 1024, "float32", (), Role.PARAM)), "cannot be the name of a tensor"),
        (Manifest(ModelSpec(()), ()), "the manifest names no tensors"),
    ],
)
def test_a_first_model_without_room_for_auxiliary_tensors_is_refused(
    manifest: Manifest, message: str
) -> None:
    with pytest.raises(Rejected, match=re.escape(message)):
        require_first(manifest, ["c"])


def test_a_first_model_with_too_many_parameters_for_auxiliary_tensors_is_refused() -> None:
    half = MAX_TENSORS // 2 + 1
    spec = ModelSpec(tuple(TensorInfo(f"w{i}", "float32", (), Role.PARAM) for i in range(half)))
    manifest = Manifest(spec, (bytes(32),) * half)
    require_first(manifest, [])
    with pytest.raises(Rejected, match="with the rule's auxiliary ones; at most"):
        require_first(manifest, ["c"])


def test_a_model_that_only_shares_the_prefix_of_a_name_is_accepted() -> None:
    require_first(first(TensorInfo("c/w", "float32", (), Role.PARAM)), ["c"])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int64"])
def test_auxiliary_tensors_of_another_type_are_refused(dtype: str) -> None:
    with pytest.raises(Rejected, match="cannot have role AUX"):
        check_manifest(first(TensorInfo("c/w", dtype, (), Role.AUX)))


def test_sites_get_them_apart_from_the_model_and_zeros_if_the_model_has_none() -> None:
    arrays = filled(with_auxiliary(SPEC, ["c"]), 3)
    beside = apart(arrays, SPEC, ["c", "d"])
    assert list(beside) == ["c", "d"]
    assert beside["c"]["layer.weight"] is arrays["c/layer.weight"]
    assert beside["d"]["layer.weight"].dtype == np.float32
    assert not beside["d"]["layer.weight"].any()
    assert not beside["d"]["layer.weight"].flags.writeable


def test_what_a_site_returns_must_fit_its_update() -> None:
    array = np.ones((3, 4), dtype=np.float32)
    assert list(require_auxiliary(SPEC, "c", {"layer.weight": array})) == ["c/layer.weight"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "missing c/layer.weight"),
        ({"layer.weight": array, "norm.mean": array}, "unexpected c/norm.mean"),
        ({"layer.weight": array.astype(np.float64)}, "c/layer.weight (float64 [3, 4]) should be"),
        ({"layer.weight": array[:2]}, "c/layer.weight (float32 [2, 4]) should be"),
    ]
    for arrays, message in wrong:
        with pytest.raises(Rejected, match=re.escape(message)):
            require_auxiliary(SPEC, "c", arrays)
