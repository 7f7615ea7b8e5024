"""Manifests: which are refused, how specs differ, what a digest depends on."""

from dataclasses import replace

import pytest

from hansa.common.models.model import (
    DTYPES,
    FLOATS,
    MAX_BYTES,
    MAX_TENSORS,
    Manifest,
    ModelSpec,
    Role,
    TensorInfo,
    check_manifest,
    difference,
    require_fit,
)
from hansa.common.values.errors import Rejected

A = TensorInfo("a", "float32", (2, 3), Role.PARAM, 0)
B = TensorInfo("b", "float32", (3,), Role.STAT, 0)
C = TensorInfo("c", "int64", (), Role.COUNT, 1)
SPEC = ModelSpec((A, B, C), ("first", "second"))


def _manifest(*tensors: TensorInfo) -> Manifest:
    return Manifest(ModelSpec(tensors), tuple(bytes([i % 256]) * 32 for i in range(len(tensors))))


def test_sizes_are_counted_in_numbers_and_in_bytes() -> None:
    assert (A.elements, A.nbytes) == (6, 24)
    assert (C.elements, C.nbytes) == (1, 8)
    assert SPEC.nbytes == 24 + 12 + 8
    assert SPEC.index == {"a": 0, "b": 1, "c": 2}
    assert SPEC.names == ("a", "b", "c")


def test_a_subset_keeps_the_models_order_and_its_layers() -> None:
    subset = SPEC.subset(["c", "a"])
    assert subset.names == ("a", "c")
    assert subset.layers == SPEC.layers


def test_a_sound_manifest_passes() -> None:
    check_manifest(_manifest(A, B, C))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_has_a_role_that_passes(dtype: str) -> None:
    roles = (Role.PARAM, Role.STAT) if dtype in FLOATS else (Role.COUNT,)
    for role in roles:
        check_manifest(_manifest(replace(A, dtype=dtype, role=role)))


@pytest.mark.parametrize(
    ("dtype", "role"),
    [("float32", Role.COUNT), ("bfloat16", Role.COUNT), ("int64", Role.PARAM), ("bool", Role.STAT)],
)
def test_a_role_that_does_not_suit_the_dtype_is_refused(dtype: str, role: Role) -> None:
    with pytest.raises(Rejected, match=f"a: a {dtype} tensor cannot have role {role.name}"):
        check_manifest(_manifest(replace(A, dtype=dtype, role=role)))


def test_a_manifest_without_tensors_is_refused() -> None:
    with pytest.raises(Rejected, match="names no tensors"):
        check_manifest(_manifest())


def test_too_many_tensors_are_refused() -> None:
    tensors = tuple(replace(C, name=str(i)) for i in range(MAX_TENSORS + 1))
    with pytest.raises(Rejected, match=f"{MAX_TENSORS + 1} tensors; at most {MAX_TENSORS}"):
        check_manifest(Manifest(ModelSpec(tensors), (bytes(32),) * len(tensors)))


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(Rejected, match="same name"):
        check_manifest(_manifest(A, replace(B, name="a")))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "x" * 1025,
            "../../w",
            "a/../b",
            "a/./b",
            "/etc/w",
            "a//b",
            "a/",
            ".hidden",
            "a b",
            "größe",
            "a\nb",
        ),
        *("\x1b]0;x\x07", "a\x7f", "a\x9b", "a\u202eb", "a\u200bb", "a\ud800", "w\n"),
    ],
)
def test_a_name_that_is_more_than_a_name_is_refused(name: str) -> None:
    with pytest.raises(
        Rejected, match="cannot be the name of a tensor or layer: use up to 1024 letters"
    ) as refusal:
        check_manifest(_manifest(replace(A, name=name)))
    assert str(refusal.value).isprintable()
    with pytest.raises(Rejected, match="cannot be the name"):
        check_manifest(Manifest(ModelSpec((A,), (name,)), (bytes(32),)))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "w",
            "0.weight",
            "encoder.layers.0.self_attn.in_proj_weight",
            "_orig_mod.fc.bias",
            "dense_1/kernel:0",
        ),
        *("parametrizations.weight.original0", "lora_A.default.weight", "a-b", "block+1", "x@2", "x" * 1024),
    ],
)
def test_names_that_frameworks_give_are_taken(name: str) -> None:
    check_manifest(_manifest(replace(A, name=name)))


@pytest.mark.parametrize("dtype", ["", "object", "float128", "complex64", "str", ">f4", "O"])
def test_an_unknown_dtype_is_refused_with_the_known_ones(dtype: str) -> None:
    with pytest.raises(Rejected, match=r"a: dtype '.*' is not one of bfloat16, bool, float16"):
        check_manifest(_manifest(replace(A, dtype=dtype)))


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (1,) * 33])
def test_an_impossible_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Rejected, match=r"impossible shape|larger than"):
        check_manifest(_manifest(replace(A, shape=shape)))


@pytest.mark.parametrize("shape", [(0, (1 << 64) - 1), (0, 1 << 41, 1 << 41), (1 << 41, 0, 1 << 41)])
def test_a_shape_that_numpy_cannot_hold_is_refused_even_if_it_is_empty(shape: tuple[int, ...]) -> None:
    with pytest.raises(Rejected, match=r"impossible shape|larger than"):
        check_manifest(_manifest(replace(A, shape=shape)))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_digest_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(Rejected, match=f"a: its digest has {length} bytes, not 32"):
        check_manifest(Manifest(ModelSpec((A,)), (bytes(length),)))


@pytest.mark.parametrize("shape", [(MAX_BYTES // 4 + 1,), (1 << 40, 1 << 40), ((1 << 64) - 1,) * 32])
def test_a_model_too_large_to_be_meant_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Rejected, match="larger than 4 TiB"):
        check_manifest(_manifest(replace(A, shape=shape)))


def test_the_sum_of_tensors_counts_towards_the_limit() -> None:
    half = replace(A, shape=(MAX_BYTES // 8,))
    check_manifest(_manifest(half, replace(half, name="b")))
    with pytest.raises(Rejected, match="larger than 4 TiB"):
        check_manifest(_manifest(half, replace(half, name="b"), replace(half, name="c")))


# Differences.


def test_equal_specs_do_not_differ() -> None:
    assert difference(SPEC, SPEC) is None
    require_fit(SPEC, ModelSpec((A, B, C)))


def test_layers_do_not_count_as_a_difference() -> None:
    assert difference(SPEC, ModelSpec((replace(A, layer=7), B, C), ("other",))) is None


def test_a_missing_and_an_unexpected_tensor_are_named() -> None:
    given = ModelSpec((A, B, replace(C, name="d")))
    assert difference(SPEC, given) == "missing c; unexpected d"
    with pytest.raises(Rejected, match="missing c; unexpected d"):
        require_fit(SPEC, given)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (replace(A, shape=(3, 2)), "a (float32 [3, 2]) should be a (float32 [2, 3])"),
        (replace(A, dtype="float16"), "a (float16 [2, 3]) should be a (float32 [2, 3])"),
    ],
)
def test_a_changed_tensor_is_described_both_ways(changed: TensorInfo, said: str) -> None:
    assert difference(SPEC, ModelSpec((changed, B, C))) == said


def test_a_changed_role_is_a_difference() -> None:
    assert difference(SPEC, ModelSpec((replace(A, role=Role.STAT), B, C))) is not None


def test_another_order_is_a_difference() -> None:
    assert difference(SPEC, ModelSpec((B, A, C))) == "the tensors are not in the model's order"


def test_only_a_few_names_are_given() -> None:
    many = ModelSpec(tuple(replace(A, name=f"t{i}") for i in range(9)))
    assert difference(many, ModelSpec(())) == "missing t0, t1, t2, t3, t4 and 4 more"
    assert difference(many, ModelSpec(()), most=9) == "missing " + ", ".join(many.names)


# The model's digest.


def test_equal_manifests_have_equal_digests() -> None:
    assert _manifest(A, B).digest == _manifest(A, B).digest
    assert len(_manifest(A).digest) == 32


@pytest.mark.parametrize(
    "other",
    [
        _manifest(replace(A, name="z"), B),
        _manifest(replace(A, dtype="float64"), B),
        _manifest(replace(A, shape=(3, 2)), B),
        _manifest(replace(A, shape=(6,)), B),
        _manifest(replace(A, role=Role.STAT), B),
        _manifest(replace(A, layer=1), B),
        _manifest(B, A),
        _manifest(A),
        _manifest(A, B, C),
        Manifest(ModelSpec((A, B)), (bytes(32), bytes(32))),
        Manifest(ModelSpec((A, B)), (b"\1" * 32, b"\0" * 32)),
    ],
    ids=[
        "name",
        "dtype",
        "shape",
        "rank",
        "role",
        "layer",
        "order",
        "fewer",
        "more",
        "digest",
        "swapped digests",
    ],
)
def test_a_models_digest_depends_on_everything_in_its_manifest(other: Manifest) -> None:
    assert other.digest != _manifest(A, B).digest
