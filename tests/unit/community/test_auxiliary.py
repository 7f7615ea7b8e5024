"""The merge of auxiliary tensors: means and sums of their own, beside a model that they do not change."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from hansa.common.models.auxiliary import with_auxiliary
from hansa.common.models.frames import FRAME, views
from hansa.common.models.model import ModelSpec, Role
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.auxiliary import Beside, reframed
from hansa.controller.community.excerpts import Excerpt, own_part
from hansa.controller.community.merge import Made, make
from hansa.controller.community.reading import Means
from hansa.controller.plugin.arithmetic import Aggregator, MergeInfo, ServerUpdate
from hansa.controller.plugin.auxiliary import Auxiliary
from hansa.controller.rules.baselines.fedavg import Mean, Plain
from hansa.controller.rules.baselines.fedopt import Adam
from hansa.controller.rules.baselines.robust import Krum, Median
from hansa.controller.storage.stores import StoredModel
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.values.members import Change, Member
from tests.unit.samples import keep, payload_of, spec_of, values

SPEC = spec_of(
    {
        "small": ("float32", (5,)),
        "var": ("float32", (4,)),
        "long": ("float32", (FRAME // 4 + 100,)),
        "half": ("bfloat16", (7,)),
        "count": ("int64", ()),
    },
    {"var": Role.STAT},
)
BOTH = (Auxiliary(name="m"), Auxiliary(name="s", merge="add"))
WHOLE = with_auxiliary(SPEC, ["m", "s"])
PARAMETERS = ("small", "long", "half")


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


class Community:
    """A store with a community model and updates."""

    def __init__(self, pool: Executor, first: ModelSpec = SPEC) -> None:
        self.store, self.pool = MemoryStore(), pool
        self.current: StoredModel = keep(self.store, "j/v0", first, values(first, 99))

    def update(self, number: int, weight: float = 1.0, spec: ModelSpec = WHOLE) -> Member:
        keep(self.store, f"j/u{number}", spec, values(spec, number))
        tensors = None if spec.own == SPEC else frozenset(spec.names)
        key = ModelKey(f"j/u{number}")
        return Member(SiteName(f"s{number}"), TaskId(f"j-{number}"), key, weight, tensors)

    def merge(
        self,
        members: Sequence[Member],
        sites: int = 4,
        resets: Sequence[str] = (),
        still: bool = False,
        aggregator: Aggregator | None = None,
        server: ServerUpdate | None = None,
        memory: int = 1 << 28,
        declared: Sequence[Auxiliary] = BOTH,
    ) -> tuple[Made, dict[str, np.ndarray]]:
        whole = Change(tuple(members), (), list(members), tuple(members), still)
        sums = Accumulator(self.current.manifest.spec.own, kept=False)
        means = Means(self.store.open, self.pool, memory)
        made = make(
            aggregator or Mean(),
            server or Plain(),
            sums,
            whole,
            self.current,
            {},
            MergeInfo(1, 0, 1),
            means,
            lambda name, spec: self.store.draft(ModelKey(f"j/v1{name}"), spec),
            Beside(declared, sites, resets),
        )
        made.publish()
        model = self.store.open(ModelKey("j/v1"))
        return made, views(model.layout, payload_of(model))


def test_the_mean_has_the_weights_of_the_merge_and_the_sum_is_divided_by_all_sites(pool: Executor) -> None:
    community = Community(pool, WHOLE)
    before = values(WHOLE, 99)
    members = [community.update(number, float(number)) for number in (1, 2, 3)]
    made, arrays = community.merge(members, sites=5)
    sent = [values(WHOLE, number) for number in (1, 2, 3)]
    for name in PARAMETERS:
        mean = (
            sum(n * each[f"m/{name}"].astype(np.float64) for n, each in zip((1, 2, 3), sent, strict=True)) / 6
        )
        np.testing.assert_allclose(arrays[f"m/{name}"], mean, rtol=1e-6)
        total = sum(each[f"s/{name}"].astype(np.float64) for each in sent)
        wanted = (before[f"s/{name}"] + total / 5).astype(np.float32)
        assert arrays[f"s/{name}"].tobytes() == wanted.tobytes()
    assert made.manifest.spec == WHOLE


def test_a_model_without_them_stands_for_zeros(pool: Executor) -> None:
    community = Community(pool)
    members = [community.update(number) for number in (1, 2)]
    _, arrays = community.merge(members, sites=2)
    one, two = values(WHOLE, 1), values(WHOLE, 2)
    for name in PARAMETERS:
        half = (one[f"s/{name}"].astype(np.float64) + two[f"s/{name}"]) / 2
        assert arrays[f"s/{name}"].tobytes() == half.astype(np.float32).tobytes()


def test_the_model_is_the_same_with_and_without_tensors_beside_it(pool: Executor) -> None:
    plain, community = Community(pool), Community(pool)
    with_beside, _ = community.merge([community.update(n, float(n)) for n in (1, 2, 3)])
    without, _ = plain.merge([plain.update(n, float(n), SPEC) for n in (1, 2, 3)], declared=())
    assert [values(SPEC, 1)[name].tobytes() for name in SPEC.names] == [
        values(WHOLE, 1)[name].tobytes() for name in SPEC.names
    ], "the updates are the same"
    assert with_beside.manifest.model_digest == without.manifest.digest
    assert without.manifest.auxiliary_digest == b""


@pytest.mark.parametrize(
    ("aggregator", "server"),
    [(Median(), Plain()), (Krum(attackers=0, chosen=2), Plain()), (Mean(bn="pooled"), Adam())],
    ids=["median", "krum", "adam"],
)
def test_aggregators_and_server_updates_see_only_the_model(
    pool: Executor, aggregator: Aggregator, server: ServerUpdate
) -> None:
    plain, community = Community(pool), Community(pool, WHOLE)
    parts = {"aggregator": aggregator, "server": server}
    with_beside, _ = community.merge([community.update(n) for n in (1, 2, 3, 4)], **parts)  # type: ignore[arg-type]
    without, _ = plain.merge([plain.update(n, spec=SPEC) for n in (1, 2, 3, 4)], declared=(), **parts)  # type: ignore[arg-type]
    assert with_beside.manifest.model_digest == without.manifest.digest
    assert with_beside.moments == without.moments
    assert with_beside.note == without.note


def test_neither_order_nor_memory_nor_updates_that_do_not_count_matter(pool: Executor) -> None:
    digests = set()
    for order in ((1, 2, 3), (3, 1, 2)):
        for memory in (1 << 28, 1 << 10):
            community = Community(pool, WHOLE)
            members = [community.update(number) for number in order]
            ignored = community.update(9, weight=0.0)
            made, _ = community.merge([*members, ignored], memory=memory)
            digests.add(made.manifest.auxiliary_digest)
    assert len(digests) == 1


def test_a_reset_lets_a_sum_start_from_zero_again(pool: Executor) -> None:
    community = Community(pool, WHOLE)
    _, arrays = community.merge([community.update(1)], sites=2, resets=["s"])
    for name in PARAMETERS:
        assert arrays[f"s/{name}"].tobytes() == (values(WHOLE, 1)[f"s/{name}"] / np.float32(2)).tobytes()


@pytest.mark.parametrize("still", [True, False])
def test_without_updates_they_stay_unless_they_are_reset(pool: Executor, still: bool) -> None:
    community = Community(pool, WHOLE)
    members = [community.update(1, 1.0 if still else 0.0)]
    made, _ = community.merge(members, still=still)
    assert made.manifest == community.current.manifest
    _, arrays = community.merge(members, still=still, resets=["s"])
    assert not any(arrays[f"s/{name}"].any() for name in PARAMETERS)
    assert arrays["m/small"].tobytes() == values(WHOLE, 99)["m/small"].tobytes()


def test_tensors_that_a_partial_update_does_not_carry_stay(pool: Executor) -> None:
    community = Community(pool, WHOLE)
    part = with_auxiliary(SPEC.subset(["small"]), ["m", "s"])
    _, arrays = community.merge([community.update(1, spec=part)], sites=1)
    before, sent = values(WHOLE, 99), values(part, 1)
    assert arrays["m/small"].tobytes() == sent["m/small"].tobytes()
    assert arrays["s/small"].tobytes() == (before["s/small"] + sent["s/small"]).tobytes()
    for name in ("m/long", "s/long", "m/half", "s/half"):
        assert arrays[name].tobytes() == before[name].tobytes()


def test_those_that_sites_do_not_return_stay(pool: Executor) -> None:
    community = Community(pool, WHOLE)
    member = community.update(1, spec=with_auxiliary(SPEC, ["m"]))
    _, arrays = community.merge(
        [replace(member, tensors=None)], declared=(BOTH[0], Auxiliary(name="s", up=False))
    )
    assert arrays["s/long"].tobytes() == values(WHOLE, 99)["s/long"].tobytes()


def test_a_sum_that_overflows_fails_the_merge_and_names_the_tensor(pool: Executor) -> None:
    community = Community(pool)
    spec = with_auxiliary(SPEC, ["m", "s"])
    arrays = values(spec, 1) | {"s/small": np.full(5, 3e38, dtype=np.float32)}
    for number in (1, 2):
        keep(community.store, f"j/u{number}", spec, arrays)
    keys = [ModelKey("j/u1"), ModelKey("j/u2")]
    members = [Member(SiteName(key), TaskId(key), key, 1.0) for key in keys]
    with pytest.raises(HansaError, match="auxiliary tensor s/small became infinite"):
        community.merge(members, sites=1)


def test_a_part_of_a_stored_model_reads_as_a_model_of_its_own(pool: Executor) -> None:
    community = Community(pool, WHOLE)
    arrays = values(WHOLE, 99)
    for names in (SPEC.names, ("var", "s/long"), ("m/small", "m/long", "m/half")):
        part = Excerpt(community.current, names)
        read = views(part.layout, payload_of(part))
        assert set(read) == set(names)
        assert all(read[name].tobytes() == arrays[name].tobytes() for name in names)
    plain = Community(pool).current
    assert own_part(plain) is plain
    assert own_part(community.current).manifest == keep(MemoryStore(), "x", SPEC, arrays).manifest


@pytest.mark.parametrize("sizes", [[FRAME, FRAME, 64], [FRAME, 64, FRAME, FRAME, 128], [64] * 3, []])
def test_pieces_of_any_size_become_frames(sizes: list[int]) -> None:
    payload = np.arange(sum(sizes), dtype=np.uint8)
    pieces = np.split(payload, np.cumsum(sizes)[:-1]) if sizes else []
    frames = list(reframed(pieces))
    assert [len(frame) for frame in frames[:-1]] == [FRAME] * (len(frames) - 1)
    assert b"".join(frame.tobytes() for frame in frames) == payload.tobytes()
