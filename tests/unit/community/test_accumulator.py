"""The accumulator: incremental sums always equal full recomputation, bit for bit."""

import errno
import math
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.common.models.frames import Sealer, cut, pack, views
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.values.errors import HansaError, StoreFailed
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.scale import Scale
from hansa.controller.storage.stores.base import StoredModel
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.values.members import Change, Member
from tests.unit.samples import payload_of

SPEC = ModelSpec(
    (
        TensorInfo("w", "float32", (7, 3), Role.PARAM),
        TensorInfo("v", "float64", (5,), Role.PARAM),
        TensorInfo("s", "float32", (4,), Role.STAT),
        TensorInfo("n", "int64", (), Role.COUNT),
    )
)
POOL = ThreadPoolExecutor(2)


class Community:
    """A store, an accumulator and the members of the sums: what a job's runner has."""

    def __init__(self, kept: bool = True) -> None:
        self.store = MemoryStore()
        self.kept = kept
        self.accumulator = Accumulator(SPEC, kept)
        self.members: dict[str, list[Member]] = {}
        self.version = 0
        self.put(ModelKey("c/0"), {i.name: np.zeros(i.shape, i.dtype) for i in SPEC.tensors})
        self.made = 0

    def put(self, key: ModelKey, arrays: dict[str, np.ndarray]) -> ModelKey:
        spec = SPEC.subset(arrays)
        draft, sealer = self.store.draft(key, spec), Sealer(spec)
        for index, frame in enumerate(cut(pack(spec, arrays))):
            sealer.feed(frame)
            draft.write(index, frame)
        draft.publish(sealer.manifest(), sealer.peaks)
        return key

    def update(self, site: str, arrays: dict[str, np.ndarray], weight: float, part: bool = False) -> Member:
        self.made += 1
        key = self.put(ModelKey(f"u/{self.made}"), arrays)
        return Member(
            SiteName(site), TaskId(f"t-{self.made}"), key, weight, frozenset(arrays) if part else None
        )

    def commit(self, added: list[Member], removed: list[Member]) -> bytes:
        """Commit and return the digest of the new community model."""
        members = tuple(m for site in sorted(self.members) for m in self.members[site])
        return self.run(
            self.accumulator, Change(tuple(added), tuple(removed), members, tuple(added)), advance=True
        )

    def recomputed(self) -> bytes:
        """Return the digest that a full recomputation from the store gives."""
        members = tuple(m for site in sorted(self.members) for m in self.members[site])
        return self.run(Accumulator(SPEC, kept=False), Change(members, (), members, members), advance=False)

    def run(self, accumulator: Accumulator, change: Change, advance: bool) -> bytes:
        current = self.open(f"c/{self.version}")
        target = ModelKey(f"c/{self.version + 1}" if advance else "c/again")
        draft = self.store.draft(target, SPEC)
        manifest, peaks = accumulator.commit(change, self.store.open, current, draft, POOL)
        draft.publish(manifest, peaks)
        self.version += advance
        averaged = [
            d for i, d in zip(SPEC.tensors, manifest.digests, strict=True) if i.role is not Role.COUNT
        ]
        return b"".join(averaged)

    def open(self, key: str) -> StoredModel:
        return self.store.open(ModelKey(key))

    def counter(self) -> int:
        with self.open(f"c/{self.version}") as model:
            return int(np.frombuffer(model.read(0), np.int64, 1, offset=model.layout.offsets[3])[0])

    def replace(self, site: str, member: Member | None) -> tuple[list[Member], list[Member]]:
        """Replace a site's last update by a complete one; return the added and removed members."""
        removed = self.members.pop(site, [])
        if member:
            self.members[site] = [member]
        return ([member] if member else []), removed


def arrays_of(rng: np.random.Generator, scale: float = 1.0) -> dict[str, np.ndarray]:
    return {
        "w": (scale * rng.normal(size=(7, 3))).astype(np.float32),
        "v": scale * rng.normal(size=5),
        "s": (scale * rng.random(4)).astype(np.float32),
        "n": np.asarray(rng.integers(100)),
    }


def test_ten_thousand_random_commits_equal_full_recomputation_bit_for_bit() -> None:
    rng, chance = np.random.default_rng(3), random.Random(3)
    community = Community()
    sites = [f"s{i}" for i in range(12)]
    for step in range(10_000):
        site = chance.choice(sites)
        action = chance.random()
        if action < 0.12 and site in community.members:
            added, removed = community.replace(site, None)
        else:
            weight = 0.0 if action < 0.2 else 10 ** chance.uniform(-3, 6)
            scale = 2.0 ** chance.choice([0, 0, 0, 0, -12, 9])  # now and then the grid must change
            added, removed = community.replace(site, community.update(site, arrays_of(rng, scale), weight))
        digest = community.commit(added, removed)
        for member in removed:
            community.store.delete(member.model)
        community.store.delete(ModelKey(f"c/{community.version - 1}"))
        if step % 97 == 0 and any(m.weight for held in community.members.values() for m in held):
            assert digest == community.recomputed(), f"after {step} commits"


def test_partial_updates_count_tensor_by_tensor() -> None:
    rng, chance = np.random.default_rng(5), random.Random(5)
    community = Community()
    for step in range(600):
        site = chance.choice("abcd")
        whole = arrays_of(rng)
        part = {name: whole[name] for name in chance.choice([("w",), ("v", "s"), ("w", "v", "s", "n")])}
        new = community.update(site, part, chance.uniform(0.1, 50), part=True)
        assert new.tensors is not None
        kept: list[Member] = []
        removed: list[Member] = []
        for member in community.members.get(site, []):
            assert member.tensors is not None
            for names, group in (
                (member.tensors - new.tensors, kept),
                (member.tensors & new.tensors, removed),
            ):
                if names:
                    group.append(Member(member.site, member.task, member.model, member.weight, names))
        community.members[site] = [*kept, new]
        digest = community.commit([new], removed)
        if step % 20 == 0:
            assert digest == community.recomputed()


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(range(6)), seed=st.integers(0, 1000))
def test_the_order_of_commits_does_not_matter(order: list[int], seed: int) -> None:
    digests = set()
    for sequence in (list(range(6)), order):
        rng = np.random.default_rng(seed)
        updates = [(arrays_of(rng, 10.0 ** rng.uniform(-4, 4)), 10 ** rng.uniform(-3, 6)) for _ in range(6)]
        community = Community()
        digest = b""
        for number in sequence:
            member = community.update(f"s{number}", *updates[number])
            digest = community.commit(*community.replace(f"s{number}", member))
        digests.add(digest)
    assert len(digests) == 1


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_commit_then_remove_restores_the_model_bit_for_bit(scale: float) -> None:
    rng = np.random.default_rng(0)
    community = Community()
    before = b""
    for site in "abc":
        before = community.commit(*community.replace(site, community.update(site, arrays_of(rng), 3.7)))
    community.commit(*community.replace("x", community.update("x", arrays_of(rng, scale), 1e5)))
    assert community.commit(*community.replace("x", None)) == before


def test_the_first_commit_is_a_copy_and_the_last_removal_keeps_the_model() -> None:
    rng = np.random.default_rng(0)
    community = Community()
    arrays = arrays_of(rng)
    member = community.update("a", arrays, 0.3)
    copied = community.commit(*community.replace("a", member))
    digests = community.open(member.model).manifest.digests
    assert copied == b"".join(digests[:3])
    assert community.commit(*community.replace("a", None)) == copied
    again = community.update("b", arrays_of(rng), 2.0)
    started = community.commit(*community.replace("b", again))
    assert started == b"".join(community.open(again.model).manifest.digests[:3])


def test_many_models_are_merged_in_groups_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    community = Community(kept=False)
    for number in range(9):
        community.members[f"s{number}"] = [community.update(f"s{number}", arrays_of(rng), number + 0.5)]
    whole = community.recomputed()
    monkeypatch.setattr("hansa.controller.community.accumulator.GROUP", 2)
    assert community.recomputed() == whole


def test_a_tensor_that_only_the_last_group_carries_starts_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    community = Community()
    for site in "ab":  # they leave large numbers in the sums, which are kept
        community.commit(*community.replace(site, community.update(site, arrays_of(rng, 1e6), 1.0)))
    removed = [member for site in "ab" for member in community.members.pop(site)]
    for number in range(6):
        names = ("w",) if number < 4 else ("v", "s")
        whole = arrays_of(rng)
        part = community.update(f"s{number}", {name: whole[name] for name in names}, number + 1.0, part=True)
        community.members[f"s{number}"] = [part]
    once = community.recomputed()
    monkeypatch.setattr("hansa.controller.community.accumulator.GROUP", 2)
    assert community.commit([part for (part,) in community.members.values()], removed) == once


def test_sums_that_are_larger_than_the_budget_are_mapped_from_a_file_with_the_same_result() -> None:
    rng = np.random.default_rng(4)
    held, mapped = Community(), Community()
    mapped.accumulator = Accumulator(SPEC, kept=True, memory=0)
    for site in "abcab":
        arrays = arrays_of(rng)
        digests = {c.commit(*c.replace(site, c.update(site, arrays, 2.5))) for c in (held, mapped)}
        assert len(digests) == 1


def test_sums_that_do_not_fit_on_the_disk_raise_an_error_that_may_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mapped file that cannot be filled would kill the process without a message."""

    def full(handle: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreFailed, match=r"no room for sums of .* MiB in .*: No space left"):
        Accumulator(SPEC, kept=True, memory=8)
    Accumulator(SPEC, kept=True)


def test_counters_come_from_the_committing_site() -> None:
    rng = np.random.default_rng(2)
    community = Community()
    for value, site in ((5, "a"), (9, "b")):
        arrays = arrays_of(rng) | {"n": np.asarray(value)}
        community.commit(*community.replace(site, community.update(site, arrays, 1.0)))
        assert community.counter() == value


def test_counters_come_from_the_committing_site_also_when_the_sums_are_rebuilt() -> None:
    """A restarted controller computes the same model, including counters."""
    rng = np.random.default_rng(2)
    community = Community()
    for value, site, weight in ((5, "a", 100.0), (9, "b", 1.0)):
        community.accumulator = Accumulator(SPEC, kept=True)
        member = community.update(site, arrays_of(rng) | {"n": np.asarray(value)}, weight)
        community.replace(site, member)
        members = tuple(m for held in community.members.values() for m in held)
        community.run(community.accumulator, Change(members, (), members, (member,)), advance=True)
        assert community.counter() == value
    community.accumulator = Accumulator(SPEC, kept=True)
    members = tuple(community.members["a"])  # b has left
    community.run(community.accumulator, Change(members, (), members, ()), advance=True)
    assert community.counter() == 9


@pytest.mark.parametrize("seed", range(3))
def test_once_every_site_has_committed_the_incremental_model_is_the_synchronous_mean(seed: int) -> None:
    """metis-dvw §9.4, bit for bit and in whatever order the updates came."""
    rng = np.random.default_rng(seed)
    community = Community()
    sites = [(f"s{i}", arrays_of(rng), float(rng.integers(1, 3000))) for i in range(8)]
    for at in rng.permutation(len(sites)):
        site, arrays, weight = sites[at]
        digest = community.commit(*community.replace(site, community.update(site, arrays, weight)))
    together = Community(kept=False)
    added = [together.update(site, arrays, weight) for site, arrays, weight in sites]
    together.members = {member.site: [member] for member in added}
    assert digest == together.commit(added, [])


@pytest.mark.parametrize("scale", [1.0, 10.0, 1e5])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.7, 0.7, 0.7), (1e-6, 0.3, 5e4)])
def test_the_mean_of_identical_models_is_that_model_bit_for_bit(
    weights: Sequence[float], scale: float
) -> None:
    """metis-dvw §9.5 and baselines §8.1; the sums are kept all the same, for what comes next."""
    rng = np.random.default_rng(1)
    arrays, other = arrays_of(rng, scale), arrays_of(rng)
    community = Community()
    for site, weight in zip("abc", weights, strict=True):
        member = community.update(site, arrays, weight)
        digest = community.commit(*community.replace(site, member))
        assert digest == b"".join(community.open(member.model).manifest.digests[:3])
    mixed = community.commit(*community.replace("d", community.update("d", other | {"w": arrays["w"]}, 2.0)))
    assert mixed[:32] == digest[:32], "the one tensor that is still the same everywhere"
    assert mixed[32:] != digest[32:]
    assert mixed == community.recomputed()
    assert community.commit(*community.replace("d", None)) == digest


def test_weights_that_add_up_to_no_number_are_refused_in_our_words() -> None:
    """Where the terms are gigantic, too, weights are scaled, and there is nothing to refuse."""
    small, large = ({i.name: np.full(i.shape, value, i.dtype) for i in SPEC.tensors} for value in (0.0, 1.0))
    community = Community()
    added = [community.update(site, small, weight) for site, weight in (("a", 1e308), ("b", 1.1e308))]
    community.members = {member.site: [member] for member in added}
    with pytest.raises(HansaError, match="tensor w: the weights of its 2 updates are too large"):
        community.commit(added, [])
    community = Community()
    added = [community.update(site, large, 1e308) for site in "abc"]
    community.members = {member.site: [member] for member in added}
    community.commit(added, [])
    made = views(community.open("c/1").layout, payload_of(community.open("c/1")))
    np.testing.assert_allclose(made["v"], 1.0, rtol=1e-12)


# Weights in the same ratios.


def mean_of(arrays: Sequence[dict[str, np.ndarray]], weights: Sequence[float], kept: bool = False) -> bytes:
    """Return the digest of a weighted mean: of all members at once, or added one after another."""
    community = Community(kept)
    digest = b""
    for number, (each, weight) in enumerate(zip(arrays, weights, strict=True)):
        site = f"s{number}"
        added, removed = community.replace(site, community.update(site, each, weight))
        if kept:
            digest = community.commit(added, removed)
    return digest if kept else community.recomputed()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    st.integers(1, 100_000) | st.sampled_from([0.1, 1 / 3, 3e-7, 5e12, 2.0**-300, 6e200]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_weights_with_a_common_factor_give_the_same_bits(
    ratios: list[int], factor: float, kept: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [arrays_of(rng) for _ in ratios]
    weights = [ratio * factor for ratio in ratios]
    if any(
        Fraction(weight) != ratio * Fraction(factor) for weight, ratio in zip(weights, ratios, strict=True)
    ):
        ratios, weights = (
            [1] * len(ratios),
            [float(factor)] * len(ratios),
        )  # the product was rounded: other ratios
    assert mean_of(arrays, weights, kept) == mean_of(arrays, [float(ratio) for ratio in ratios])


def test_sites_of_equal_size_count_as_equal_weights_do() -> None:
    """By examples and by equal weights, a federation of equally large sites has the same model."""
    rng = np.random.default_rng(0)
    arrays = [arrays_of(rng) for _ in range(7)]
    wanted = mean_of(arrays, [1.0] * 7)
    for size in range(1, 700):
        assert mean_of(arrays, [float(size)] * 7) == wanted


def test_sums_are_kept_while_the_common_factor_stays_and_are_right_when_it_changes() -> None:
    rng, chance = np.random.default_rng(7), random.Random(7)
    community = Community()
    sizes = [600, 600, 1200, 75, 601, 17, 34, 0.1, 0.2, 0.3]
    for step in range(400):
        site = chance.choice("abcde")
        member = (
            community.update(site, arrays_of(rng), chance.choice(sizes)) if chance.random() < 0.85 else None
        )
        digest = community.commit(*community.replace(site, member))
        if community.members:
            assert digest == community.recomputed(), f"after {step} commits"


def test_removing_a_member_restores_the_mean_even_if_it_changed_the_common_factor() -> None:
    rng = np.random.default_rng(9)
    community = Community()
    for site in "abc":
        before = community.commit(*community.replace(site, community.update(site, arrays_of(rng), 600.0)))
    community.commit(*community.replace("d", community.update("d", arrays_of(rng), 601.0)))
    assert community.commit(*community.replace("d", None)) == before


def test_a_commit_among_many_does_not_look_at_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    scale, chance = Scale(), random.Random(1)
    members = [
        Member(SiteName(f"s{i}"), TaskId(""), ModelKey(""), chance.uniform(0.5, 1)) for i in range(1000)
    ]
    scale.change(members, 1)
    assert not scale.settle()
    divisors, gcd = 0, math.gcd

    def counted(*numbers: int) -> int:
        nonlocal divisors
        divisors += 1
        return gcd(*numbers)

    monkeypatch.setattr(math, "gcd", counted)
    for _ in range(100):
        gone = chance.randrange(1000)
        scale.change([members[gone]], -1)
        members[gone] = replace(members[gone], weight=chance.uniform(0.5, 1))
        scale.change([members[gone]], 1)
        assert not scale.settle()
    assert 200 <= divisors < 1100  # one for each new weight, and a few for each commit
