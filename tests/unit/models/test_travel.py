"""Which tensors travel, which are the same everywhere, and which are each site's own (personal-models §1)."""

from typing import Any

import numpy as np
import pytest

from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.models.travel import TensorSets, digest_of, mismatches, tensor_sets
from hansa.common.values.errors import InvalidApp
from hansa.common.values.settings.training import Travel


def _tensor(name: str, layer: int, role: Role = Role.PARAM, norm: float | None = None) -> TensorInfo:
    return TensorInfo(name, "int64" if role is Role.COUNT else "float32", (2,), role, layer, norm)


SPEC = ModelSpec(
    (
        _tensor("base.weight", 0),
        _tensor("bn.weight", 0, norm=1e-5),
        _tensor("bn.mean", 0, Role.STAT, 1e-5),
        _tensor("bn.count", 0, Role.COUNT, 1e-5),
        _tensor("lora.a", 1),
        _tensor("lora.b", 1),
        _tensor("free.mean", 1, Role.STAT, 1e-5),  # of a normalisation without parameters
        _tensor("head.weight", 2),
        _tensor("head.bias", 2),
        _tensor("head.seen", 2, Role.COUNT),
    ),
    ("base", "lora", "head"),
)
TRAINED = {"lora.a", "lora.b", "head.weight", "head.bias"}
BASE = ("base.weight", "bn.weight", "bn.mean", "bn.count")
LORA = ("lora.a", "lora.b", "free.mean")
HEAD = ("head.weight", "head.bias", "head.seen")


def sets(trainable: set[str] | None = None, **words: Any) -> TensorSets:
    return tensor_sets(SPEC, Travel.model_validate(words), TRAINED if trainable is None else trainable)


def test_without_a_word_everything_travels() -> None:
    assert sets() == TensorSets(SPEC.names)


def test_only_what_is_trained_travels_and_statistics_go_with_their_module_or_layer() -> None:
    assert sets(kind="trainable") == TensorSets((*LORA, *HEAD), BASE)


def test_patterns_say_what_travels_instead() -> None:
    assert sets(kind="trainable", match=["lora.*"]) == TensorSets(LORA, (*BASE, *HEAD))
    assert sets(kind="trainable", match=["lora.b", "bn.mean"]).travelling == (
        "bn.mean",
        "lora.b",
        "free.mean",
    )


def test_adapters_travel_and_the_head_stays() -> None:
    assert sets(kind="trainable", personal=["head.*"]) == TensorSets(LORA, BASE, HEAD)


def test_statistics_of_a_norm_whose_parameters_travel_in_part_travel() -> None:
    assert "bn.mean" in sets({"bn.weight", "lora.a"}, kind="trainable").travelling


@pytest.mark.parametrize(
    ("words", "personal"),
    [
        ({"norm": True}, ("bn.weight", "bn.mean", "bn.count", "free.mean")),
        ({"last": 1}, HEAD),
        ({"last": 2}, (*LORA, *HEAD)),
        ({"match": ["head.?eight"]}, ("head.weight",)),
        ({"match": ["head.bias", "head.weight"]}, HEAD),  # the counter goes with its module
        ({"match": ["*.mean"]}, ("bn.mean", "free.mean")),
        ({"match": ["lora.a"], "last": 1, "norm": True}, (*BASE[1:], "lora.a", "free.mean", *HEAD)),
    ],
)
def test_what_is_personal_stays_and_everything_else_travels(
    words: dict[str, Any], personal: tuple[str, ...]
) -> None:
    others = tuple(name for name in SPEC.names if name not in personal)
    assert sets(kind="personal", **words) == TensorSets(others, (), personal)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"kind": "personal", "match": ["haed.*"]},
            r"layers.match: no tensor of the model matches 'haed\.\*'",
        ),
        ({"kind": "trainable", "match": ["lora"]}, "layers.match: no tensor of the model matches 'lora'"),
        ({"kind": "trainable", "personal": ["Head.*"]}, "layers.personal: no tensor of the model matches"),
        ({"kind": "personal", "match": ["[a-z]*"]}, "no parameter of the model would travel"),
        ({"kind": "personal", "last": 3}, "no parameter of the model would travel"),
        ({"kind": "trainable", "match": ["*.mean"]}, "no parameter of the model would travel"),
        ({"kind": "trainable", "match": ["lora.*"], "personal": ["l*"]}, "no parameter of the model would"),
    ],
)
def test_a_division_that_cannot_be_meant_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidApp, match=message):
        sets(**words)


def test_a_model_without_norms_has_none_to_keep() -> None:
    plain = ModelSpec((_tensor("a.weight", 0), _tensor("b.weight", 1)), ("a", "b"))
    problems = list(mismatches(plain, Travel(kind="personal", norm=True)))
    assert problems == ["layers.norm: the model has no normalisation layers"]
    assert not list(mismatches(ModelSpec((_tensor("bytes", 0, Role.COUNT),)), Travel()))


def test_an_app_that_trains_nothing_has_nothing_to_send() -> None:
    with pytest.raises(InvalidApp, match="the app trains none of the tensors that would travel"):
        sets(set(), kind="trainable")


def test_a_digest_depends_on_names_types_shapes_and_bytes_and_not_on_their_order() -> None:
    one, two = np.arange(6, dtype=np.float32), np.ones((2, 2))
    digest = digest_of({"a": one, "b": two})
    assert digest == digest_of({"b": two, "a": one})
    assert digest_of({}) == ""
    changed: list[dict[str, np.ndarray]] = [
        {"a": one, "c": two},
        {"a": one.view(np.int32), "b": two},
        {"a": one.reshape(2, 3), "b": two},
        {"a": one, "b": two + 1e-15},
        {"a": one},
    ]
    assert len({digest, *map(digest_of, changed)}) == 6


def test_the_digest_is_that_of_the_numbers_whatever_their_layout_in_memory() -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    assert digest_of({"a": matrix}) == digest_of({"a": np.asfortranarray(matrix)})
