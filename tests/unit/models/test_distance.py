"""The distance of a model from a reference (radfed §5): the formula, what counts, which references fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng

from hansa.common.models.distance import distance, misfit
from hansa.common.models.frames import FRAME, Layout, cut, pack, views
from hansa.common.models.model import DTYPES, ModelSpec, Role, TensorInfo
from hansa.common.ui.job.concordance import distance as distance_of_models
from tests.support import filled, sealed, small_spec

LARGE = ModelSpec(
    (
        TensorInfo("head", "float64", (3,), Role.PARAM),
        TensorInfo("body", "float32", (7, 100_003), Role.PARAM),  # over several frames
        TensorInfo("mean", "float32", (50,), Role.STAT),
        TensorInfo("half", "bfloat16", (1001,), Role.PARAM),
        TensorInfo("seen", "int64", (), Role.COUNT),
        TensorInfo("none", "float32", (0, 4), Role.PARAM),
        TensorInfo("tail", "float16", (5, 5), Role.PARAM),
    )
)
PARAMS = ("head", "body", "half", "none", "tail")


def drawn(spec: ModelSpec, seed: int) -> dict[str, np.ndarray]:
    chance = default_rng(seed)
    return {
        info.name: (3 * chance.normal(size=info.shape)).astype(DTYPES[info.dtype]) for info in spec.tensors
    }


def between(spec: ModelSpec, model: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> float:
    return distance(Layout(spec), cut(pack(spec, model)), lambda name, a, b: reference[name].reshape(-1)[a:b])


def flat(arrays: dict[str, np.ndarray], names: tuple[str, ...] = PARAMS) -> np.ndarray:
    return np.concatenate([arrays[name].astype(np.float64).reshape(-1) for name in names])


def test_it_is_the_length_of_the_difference_by_that_of_the_reference_over_all_parameters() -> None:
    model, reference = drawn(LARGE, 1), drawn(LARGE, 2)
    assert Layout(LARGE).size > 2 * FRAME
    norm = np.linalg.norm
    wanted = norm(flat(model) - flat(reference)) / norm(flat(reference))
    assert between(LARGE, model, reference) == pytest.approx(float(wanted), rel=1e-12)
    assert between(LARGE, model, model) == 0


def test_statistics_and_counters_do_not_count() -> None:
    model, reference = drawn(LARGE, 1), drawn(LARGE, 2)
    other = model | {"mean": np.full(50, 1e30, np.float32), "seen": np.array(10**9)}
    assert between(LARGE, other, reference) == between(LARGE, model, reference)


def test_parameters_that_no_update_changes_count_as_the_others_do() -> None:
    spec = small_spec()
    reference = filled(spec, 2)
    assert between(spec, filled(spec, 2), reference) == 0
    half = {"layer.weight": np.full((3, 4), 2, np.float32)} | {
        n: filled(spec, 0)[n] for n in ("norm.mean", "norm.count")
    }
    half["layer.weight"][0] = 0  # a third is as at the start
    assert between(spec, half, reference) == pytest.approx(math.sqrt(1 / 3), rel=1e-15)


def test_models_are_compared_to_the_same_bit_from_files_and_frame_by_frame() -> None:
    model, reference = sealed(LARGE, drawn(LARGE, 1)), sealed(LARGE, drawn(LARGE, 2))
    there = views(Layout(LARGE), reference[1])
    streamed = distance(Layout(LARGE), cut(model[1]), lambda name, a, b: there[name].reshape(-1)[a:b])
    assert distance_of_models(model, reference) == streamed
    turned = ModelSpec(LARGE.tensors[::-1])
    # The order of the tensors does not matter.
    assert distance_of_models(model, sealed(turned, drawn(LARGE, 2))) == streamed


def test_models_of_zeros_and_huge_numbers_give_no_error() -> None:
    spec = ModelSpec((TensorInfo("w", "float64", (2,), Role.PARAM),))
    zero, one, huge = ({"w": np.full(2, value)} for value in (0.0, 1.0, 1e300))
    assert between(spec, zero, zero) == 0
    assert between(spec, one, zero) == math.inf
    assert between(spec, huge, one) == math.inf
    assert between(spec, zero, one) == 1


def test_a_reference_fits_by_names_shapes_and_types() -> None:
    spec = small_spec()
    assert misfit(spec, spec) is None
    plain = ModelSpec(tuple(replace(i, role=Role.PARAM) if i.is_float else i for i in spec.tensors[::-1]))
    assert misfit(spec, plain) is None  # as in a file without roles and order
    assert (
        misfit(spec, small_spec(5)) == "layer.weight (float32 [5, 4]) should be layer.weight (float32 [3, 4])"
    )
    assert misfit(spec, ModelSpec(spec.tensors[1:])) == "missing layer.weight"
    more = TensorInfo("bias", "float32", (3,), Role.PARAM)
    assert misfit(spec, ModelSpec((more, *spec.tensors))) == "unexpected bias"
    double = ModelSpec((replace(spec.tensors[0], dtype="float64"), *spec.tensors[1:]))
    assert "layer.weight (float64 [3, 4]) should be" in str(misfit(spec, double))
