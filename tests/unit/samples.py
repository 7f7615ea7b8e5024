"""Small models for the tests: specs, values, and stored copies of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.models.frames import FRAME, Layout, Sealer, cut, pack
from hansa.common.models.model import DTYPES, FLOATS, ModelSpec, Role, TensorInfo
from hansa.common.values.ids import ModelKey
from hansa.controller.community.grid import Grid, size
from hansa.controller.storage.stores import Store, StoredModel

Kind = tuple[str, tuple[int, ...]]  # dtype and shape


def spec_of(kinds: Mapping[str, Kind], roles: Mapping[str, Role] | None = None) -> ModelSpec:
    """Describe tensors by name; floats are parameters and the rest counters unless said otherwise."""
    return ModelSpec(
        tuple(
            TensorInfo(
                name, dtype, shape, (roles or {}).get(name, Role.PARAM if dtype in FLOATS else Role.COUNT)
            )
            for name, (dtype, shape) in kinds.items()
        )
    )


# Tensors of every kind that a merge treats in its own way; some are longer than a frame, one is empty.
MIXED = spec_of(
    {
        "small": ("float32", (5,)),
        "empty": ("float32", (0, 3)),
        "var": ("float32", (4,)),
        "long": ("float32", (FRAME // 4 + 100,)),
        "half": ("bfloat16", (7,)),
        "count": ("int64", ()),
        "double": ("float64", (FRAME // 16,)),
    },
    {"var": Role.STAT},
)


def values(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw finite values for every tensor."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for info in spec.tensors:
        kind = DTYPES[info.dtype]
        if info.is_float:
            found[info.name] = rng.standard_normal(info.shape).astype(kind)
        else:
            found[info.name] = rng.integers(0, 2 if info.dtype == "bool" else 100, info.shape).astype(kind)
    return found


def keep(store: Store, key: str, spec: ModelSpec, arrays: Mapping[str, np.ndarray]) -> StoredModel:
    """Publish a model and open it."""
    payload = pack(spec, arrays)
    sealer, draft = Sealer(spec), store.draft(ModelKey(key), spec)
    for index, frame in enumerate(cut(payload)):
        sealer.feed(frame)
        draft.write(index, frame)
    draft.publish(sealer.manifest(), sealer.peaks)
    return store.open(ModelKey(key))


def payload_of(model: StoredModel) -> np.ndarray:
    """Read all frames of a model into one array."""
    frames = b"".join(bytes(model.read(i)) for i in range(model.layout.frames))
    assert len(frames) == Layout(model.manifest.spec).size
    return np.frombuffer(frames, dtype=np.uint8)


_SIZES = (1, 2, 7, 16, 17, 63, 64, 65, 1000, 131_071, 131_072, 131_073, 262_145, 600_001)
SHAPES: st.SearchStrategy[tuple[int, ...]] = st.one_of(
    st.just(()),
    st.sampled_from([(0,), (3, 0, 2), (0, 5)]),
    st.tuples(st.sampled_from(_SIZES)),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
KINDS: st.SearchStrategy[Kind] = st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES)


@st.composite
def specs(draw: st.DrawFn, most: int = 6) -> ModelSpec:
    """Draw a spec: any dtypes, empty tensors and scalars anywhere, some tensors over several frames."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=most))
    return spec_of({f"t{i}": kind for i, kind in enumerate(kinds)})


def grid_of(weights: Sequence[float], peaks: Sequence[float]) -> Grid:
    """Return the grid that the accumulator chooses for these weights and largest magnitudes."""
    return Grid.over(max(map(size, weights, peaks)), len(weights))


def loaded(app: App, path: Path, split: str) -> Examples:
    """Return what an app loads into memory."""
    examples = app.load(path, split)
    assert isinstance(examples, Examples)
    return examples
