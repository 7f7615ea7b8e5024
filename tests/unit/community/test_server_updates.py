"""Server updates: their formulas, carried out over stored models frame by frame (baselines §4 to §6, §8)."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

from hansa.common.models.frames import FrameCheck, views
from hansa.common.models.model import ModelSpec
from hansa.common.plugins.registry import fill, rules
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.merge import NOBODY, Made, make
from hansa.controller.community.reading import Means
from hansa.controller.plugin.arithmetic import Aggregator, MergeInfo, ServerUpdate
from hansa.controller.rules.baselines.fedasync import Mix
from hansa.controller.rules.baselines.fedavg import Mean, Plain
from hansa.controller.rules.baselines.fedopt import Adagrad, Adam, Momentum, Optimizer, Yogi
from hansa.controller.storage.stores import Draft, StoredModel
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.values.members import Change, Member
from tests.unit.samples import MIXED, keep, payload_of, spec_of, values

Arrays = Mapping[str, np.ndarray]
SPEC = MIXED
TRAINED = ("small", "long", "half", "double")


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made


class Course:
    """A community model and its merges."""

    def __init__(
        self, pool: Executor, server: ServerUpdate, first: Arrays | None = None, spec: ModelSpec = SPEC
    ) -> None:
        self.store, self.pool, self.server, self.spec = MemoryStore(), pool, server, spec
        self.version, self.updates = 0, 0
        self.current = keep(self.store, "j/v0", spec, values(spec, 99) if first is None else first)
        self.moments: dict[str, StoredModel] = {}
        self.made: Made | None = None

    def merge(
        self,
        parts: Sequence[tuple[Arrays, float]],
        staleness: int = 0,
        aggregator: Aggregator | None = None,
        tensors: frozenset[str] | None = None,
        memory: int = 1 << 28,
    ) -> dict[str, np.ndarray]:
        self.version += 1
        members = []
        for arrays, weight in parts:
            self.updates += 1
            spec = self.spec.subset(tensors) if tensors else self.spec
            keep(self.store, f"j/u{self.updates}", spec, arrays)
            key = ModelKey(f"j/u{self.updates}")
            members.append(
                Member(SiteName(f"s{self.updates}"), TaskId(f"j-{self.updates}"), key, weight, tensors)
            )
        whole = Change(tuple(members), (), members, tuple(members))

        def draft(name: str, spec: ModelSpec) -> Draft:
            return self.store.draft(ModelKey(f"j/v{self.version}.{name}"), spec)

        info = MergeInfo(self.version, staleness, len(parts))
        means = Means(self.store.open, self.pool, memory)
        sums = Accumulator(self.spec, kept=False)
        made = make(
            aggregator or Mean(), self.server, sums, whole, self.current, self.moments, info, means, draft
        )
        made.publish()
        self.current = self.store.open(ModelKey(f"j/v{self.version}."))
        self.moments = {name: self.store.open(ModelKey(f"j/v{self.version}.{name}")) for name in made.moments}
        self.made = made
        return arrays_of(self.current)


def arrays_of(model: StoredModel) -> dict[str, np.ndarray]:
    return views(model.layout, payload_of(model))


def exactly(a: Arrays, b: Arrays) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


# FedAsync.


@pytest.mark.parametrize(
    ("how", "staleness", "share"),
    [
        ("constant", 7, 1.0),
        ("polynomial", 0, 1.0),
        ("polynomial", 3, 0.5),
        ("polynomial", 8, 1 / 3),
        ("hinge", 0, 1.0),
        ("hinge", 3, 1.0),
        ("hinge", 4, 1.0),
        ("hinge", 5, 1 / 11),
        ("hinge", 6, 1 / 21),
    ],
)
def test_the_share_of_an_update_falls_with_its_staleness(how: str, staleness: int, share: float) -> None:
    assert Mix.model_validate({"alpha": 1.0, "staleness": how}).share(staleness) == pytest.approx(
        share, rel=1e-15
    )
    assert Mix.model_validate({"staleness": how}).share(staleness) == pytest.approx(0.6 * share, rel=1e-15)


def test_the_share_falls_as_fast_as_the_job_says() -> None:
    assert Mix(alpha=0.8, staleness="polynomial", a=1.0).share(3) == pytest.approx(0.2)
    assert Mix(alpha=0.8, staleness="polynomial", a=0.0).share(3) == 0.8
    assert Mix(alpha=0.9, staleness="hinge", a=1.0, b=2).share(4) == pytest.approx(0.3)


def test_a_stale_update_does_not_make_the_next_one_count_less(pool: Executor) -> None:
    spec = spec_of({"w": ("float64", ())})
    course = Course(pool, Mix(alpha=0.5, staleness="polynomial"), {"w": np.array(0.0)}, spec)
    assert course.merge([({"w": np.array(8.0)}, 1.0)], staleness=3)["w"] == 2.0  # a quarter
    assert course.merge([({"w": np.array(8.0)}, 1.0)], staleness=0)["w"] == 5.0  # half


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_mixing_all_or_nothing_is_a_copy_bit_for_bit(pool: Executor, alpha: float) -> None:
    mixed, plain = Course(pool, Mix(alpha=alpha)), Course(pool, Plain())
    before = arrays_of(mixed.current)
    parts = [(values(SPEC, i) | {"small": np.full(5, -0.0, np.float32)}, i + 1.0) for i in range(2)]
    got, mean = mixed.merge(parts), plain.merge(parts)
    assert exactly(got, mean if alpha else before | {"count": mean["count"]})


def test_mixing_keeps_variances_positive(pool: Executor) -> None:
    course = Course(pool, Mix(alpha=0.3), values(SPEC, 1) | {"var": np.array([0, 1e-30, 2, 3], np.float32)})
    got = course.merge([(values(SPEC, 2) | {"var": np.array([0, 4, 1e-38, 5], np.float32)}, 1.0)])
    assert (got["var"] >= 0).all()
    np.testing.assert_allclose(got["var"][1:2], [1.2], rtol=1e-6)


def test_an_update_that_is_too_stale_is_refused_with_the_limit() -> None:
    server = Mix(max_staleness=3)
    assert server.refuses(3) == ""
    assert server.refuses(4) == "4 versions stale, which is more than max_staleness 3"
    assert Mix().refuses(10_000) == ""


# Server optimizers.


def by_hand(server: ServerUpdate, start: np.ndarray, proposals: Sequence[np.ndarray]) -> np.ndarray:
    """Follow the formulas of baselines §5 one by one."""
    w = start.astype(np.float64)
    m = np.zeros(w.shape)
    v = np.full(w.shape, 0.0 if isinstance(server, Momentum) else server.moments["v"])
    for proposal in proposals:
        delta = proposal.astype(np.float64) - w
        if isinstance(server, Momentum):
            v = server.beta * v + delta
            w = w + server.lr * v
        else:
            assert isinstance(server, Adam | Yogi | Adagrad)
            m = server.beta1 * m + (1 - server.beta1) * delta
            if isinstance(server, Adam):
                v = server.beta2 * v + (1 - server.beta2) * delta**2
            elif isinstance(server, Yogi):
                v = v - (1 - server.beta2) * delta**2 * np.sign(v - delta**2)
            else:
                v = v + delta**2
            w = w + server.lr * m / (np.sqrt(v) + server.tau)
        w = w.astype(start.dtype).astype(np.float64)  # as the community model keeps it
    return w.astype(start.dtype)


OPTIMIZERS = [
    Adam(),
    Adam(lr=0.01, beta1=0.5, beta2=0.9, tau=1e-8, v0=0.0),
    Yogi(),
    Yogi(v0=1e-1, tau=1e-4),
    Adagrad(),
    Adagrad(beta1=0.0),
    Momentum(),
    Momentum(lr=0.5, beta=0.0),
]


@pytest.mark.parametrize("server", OPTIMIZERS, ids=str)
def test_a_server_optimizer_does_what_its_formulas_say_over_many_frames(
    pool: Executor, server: ServerUpdate
) -> None:
    course = Course(pool, server)
    start = arrays_of(course.current)
    updates = [values(SPEC, seed) for seed in (1, 2, 3)]
    for update in updates:
        got = course.merge([(update, 4.0)])
    for name in TRAINED:
        wanted = by_hand(server, start[name], [update[name] for update in updates])
        assert got[name].tobytes() == wanted.tobytes(), name
    assert got["var"].tobytes() == updates[-1]["var"].tobytes()  # statistics are the proposal's
    assert got["count"].tobytes() == updates[-1]["count"].tobytes()


def test_yogi_stays_where_it_has_arrived() -> None:
    squared = np.array([4.0, 4.0, 4.0])
    assert Yogi(beta2=0.75).square(np.array([1.0, 4.0, 9.0]), squared).tolist() == [2.0, 4.0, 8.0]


def test_moments_are_models_of_the_trained_tensors_in_float64(pool: Executor) -> None:
    course = Course(pool, Adam())
    for seed in (1, 2):
        course.merge([(values(SPEC, seed), 1.0)])
    for moment in course.moments.values():
        assert moment.manifest.spec.names == ("small", "empty", "long", "half", "double")
        assert {info.dtype for info in moment.manifest.spec.tensors} == {"float64"}
        check = FrameCheck(moment.manifest)
        for index in range(moment.layout.frames):
            check.feed(moment.read(index))
        assert check.complete
        assert tuple(check.sealer.peaks) == moment.peaks
    assert course.made is not None
    assert {name: held.manifest for name, held in course.moments.items()} == course.made.moments


def test_adagrad_with_a_large_tau_is_the_plain_rule(pool: Executor) -> None:
    course, plain = Course(pool, Adagrad(beta1=0.0, v0=0.0, lr=1e6, tau=1e6)), Course(pool, Plain())
    update = values(SPEC, 5)
    start = arrays_of(course.current)
    got, wanted = course.merge([(update, 1.0)]), plain.merge([(update, 1.0)])
    for name in ("small", "long", "double"):
        step = np.abs(wanted[name] - start[name])
        assert (np.abs(got[name] - wanted[name]) <= 1e-5 * step + 1e-6).all()


@pytest.mark.parametrize("server", [Adam(), Momentum(), Mix(alpha=0.5)], ids=str)
@pytest.mark.parametrize("weights", [[], [0.0, 0.0]])
def test_when_no_update_counts_model_and_moments_stay_bit_for_bit(
    pool: Executor, server: ServerUpdate, weights: list[float]
) -> None:
    course = Course(pool, server)
    before = course.merge([(values(SPEC, 1), 1.0)])
    moments = {name: held.manifest.digest for name, held in course.moments.items()}
    after = course.merge([(values(SPEC, 7), weight) for weight in weights])
    assert exactly(after, before)
    assert {name: held.manifest.digest for name, held in course.moments.items()} == moments
    assert course.made is not None
    assert course.made.note == NOBODY


def test_tensors_that_no_site_trained_keep_their_moments(pool: Executor) -> None:
    course = Course(pool, Adam())
    before = course.merge([(values(SPEC, 1), 1.0)])
    held = {name: arrays_of(moment) for name, moment in course.moments.items()}
    after = course.merge([(values(SPEC, 2), 1.0)], tensors=frozenset({"long", "half"}))
    for name in ("small", "double", "var"):
        assert after[name].tobytes() == before[name].tobytes()
    for moment, arrays in course.moments.items():
        for name, array in arrays_of(arrays).items():
            assert (array.tobytes() == held[moment][name].tobytes()) is (name in ("small", "empty", "double"))


def test_a_step_that_leads_out_of_the_numbers_fails_and_names_plugin_and_tensor(pool: Executor) -> None:
    course = Course(pool, Momentum(lr=1e39))
    with pytest.raises(
        HansaError, match="server 'momentum': it produced NaN or infinite numbers in tensor small"
    ):
        course.merge([(values(SPEC, 1), 1.0)])


def test_one_update_is_taken_exactly_and_weights_are_shares() -> None:
    with ThreadPoolExecutor(1) as pool:
        spec = spec_of({"w": ("float32", ())})
        course = Course(pool, Plain(), {"w": np.array(9, np.float32)}, spec)
        models = [({"w": np.array(0, np.float32)}, 1.0), ({"w": np.array(4, np.float32)}, 3.0)]
        assert course.merge(models)["w"] == 3.0
        assert course.merge([(arrays, 1.0) for arrays, _ in models])["w"] == 2.0


@pytest.mark.parametrize("rule", ["fedadam", "fedyogi", "fedadagrad", "fedavgm", "server-mix", "fedasync"])
def test_the_rules_start_from_the_specified_values(rule: str) -> None:
    server = fill("server", rules()[rule], None)
    assert isinstance(server, ServerUpdate)
    if isinstance(server, Adam | Yogi):
        assert server.beta2 == 0.99
    if isinstance(server, Optimizer):
        assert (server.lr, server.beta1, server.tau) == (0.1, 0.9, 1e-3)
        assert server.moments == {"m": 0.0, "v": 1e-6}
    if isinstance(server, Momentum):
        assert (server.lr, server.beta) == (1.0, 0.9)
    if isinstance(server, Mix):
        assert server.alpha == 0.6
