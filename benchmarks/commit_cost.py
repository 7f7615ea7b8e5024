"""Shows what one asynchronous commit costs: one learner's update replaced, among 10, 100 and 1000 learners.

A commit is what the controller does for it: open the models, draft, arithmetic, digests, publish. Per float32
parameter it must read the new update (4 bytes), the old one (4), the sum (8), and write the sum (8) and the
result (4): 28 bytes moved. memcpy of n bytes moves 2·n (it reads and writes them), so the yardstick copies 14
bytes per parameter, on one core. For comparison there is the full recomputation over all members from
scratch, in two forms: a plain one, model by model in numpy, and ours. Ours reads each
member once, a commit reads two models, and both write one: if every model costs the same, full / commit / N
stays below 0.5.

The members of a case share a few stored models under different names, so that 1000 of them fit on this
machine. With few parameters these models may stay in the processor's caches, which those of 1000 learners
would not.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from controller_process import redis_server
from harness import end_in_order, machine, print_table, save, verdict
from light_sites import light_payload, light_spec

from hansa.common.models.frames import Layout, Sealer, cut
from hansa.common.models.model import ModelSpec
from hansa.common.process.memory import keep_freed_memory
from hansa.common.values.ids import ModelKey, SiteName, TaskId
from hansa.controller.community import accumulator as tier
from hansa.controller.community import kernels
from hansa.controller.community.accumulator import Accumulator
from hansa.controller.community.grid import Grid
from hansa.controller.storage.backends import opened
from hansa.controller.storage.stores import Store, StoredModel
from hansa.controller.values.members import Change, Member

FLAT, LINEAR, SHARE = 1.1, 0.8, 0.5  # the promises
MOVED = 28  # bytes per parameter that a commit must read and write
CURRENT = ModelKey("bench/current")
STORES = ("memory", "disk", "redis")


class Community:
    """The members of one job and their sums; the store may change between commits, the sums stay."""

    def __init__(self, spec: ModelSpec, learners: int, distinct: int) -> None:
        self._spec, self._distinct = spec, distinct
        self._members = [self._member(site, 0) for site in range(learners)]
        self._tasks = [0] * learners
        self._next = 0
        self._accumulator = Accumulator(spec, kept=True)
        self._draft = 0

    def _member(self, site: int, task: int) -> Member:
        key = ModelKey(f"bench/u{(site + 3 * task) % self._distinct}-{site}-{task}")
        return Member(SiteName(f"s{site}"), TaskId(f"t{site}-{task}"), key, 100.0 + site % 28)

    def build(self, store: Store, pool: Executor) -> bytes:
        """Build the sums from all members."""
        members = tuple(self._members)
        return self._run(self._accumulator, Change(members, (), members, members), store, pool)

    def recompute(self, store: Store, pool: Executor) -> bytes:
        """Compute the mean of all members from scratch; return its digest."""
        members = tuple(self._members)
        return self._run(
            Accumulator(self._spec, kept=False), Change(members, (), members, members), store, pool
        )

    def recompute_plainly(self, store: Store) -> None:
        """Compute the same mean in plain numpy: the models one after the other, float64 sums, one thread."""
        layout = Layout(self._spec)
        total = [np.zeros(layout.frame_size(index) // 4) for index in range(layout.frames)]
        for member in self._members:
            with _open(store, member.model) as model:
                for index in range(layout.frames):
                    total[index] += member.weight * np.frombuffer(model.read(index), np.float32).astype(
                        np.float64
                    )
        weight, sealer = sum(member.weight for member in self._members), Sealer(self._spec)
        draft = store.draft(ModelKey("bench/plain"), self._spec)
        for index, frame in enumerate(total):
            made = (frame / weight).astype(np.float32).view(np.uint8)
            sealer.feed(made)
            draft.write(index, made)
        draft.publish(sealer.manifest(), sealer.peaks)
        store.delete(ModelKey("bench/plain"))

    def commit(self, store: Store, pool: Executor) -> bytes:
        """Replace the next site's last update by a new one; return the digest of the mean."""
        site = self._next = (self._next + 7) % len(self._members)
        old = self._members[site]
        self._tasks[site] += 1
        new = self._members[site] = self._member(site, self._tasks[site])
        return self._run(self._accumulator, Change((new,), (old,), tuple(self._members), (new,)), store, pool)

    def _run(self, accumulator: Accumulator, change: Change, store: Store, pool: Executor) -> bytes:
        """Do what the controller does with a merge plan."""
        self._draft += 1
        target = ModelKey(f"bench/v{self._draft}")
        with store.open(CURRENT) as current:
            draft = store.draft(target, self._spec)
            manifest, peaks = accumulator.commit(change, lambda key: _open(store, key), current, draft, pool)
            draft.publish(manifest, peaks)
        store.delete(target)
        return manifest.digest


def _open(store: Store, key: ModelKey) -> StoredModel:
    """Open the stored model that a member's key stands for."""
    return store.open(ModelKey(key.split("-")[0]))


def fill(store: Store, spec: ModelSpec, distinct: int) -> None:
    """Put the models that members share, and a current one, into a store."""
    for key, seed in [(CURRENT, 0), *((ModelKey(f"bench/u{n}"), n + 1) for n in range(distinct))]:
        draft, sealer = store.draft(key, spec), Sealer(spec)
        for index, frame in enumerate(cut(light_payload(spec, seed))):
            sealer.feed(frame)
            draft.write(index, frame)
        draft.publish(sealer.manifest(), sealer.peaks)


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that work takes, and the processor seconds of all threads, which are steadier."""
    burnt = time.process_time()
    seconds = timed(work)
    return seconds, time.process_time() - burnt


class Copier:
    """memcpy of half the bytes that a commit moves: that many are read, that many written."""

    def __init__(self, parameters: int) -> None:
        self._source = np.random.default_rng(1).integers(0, 255, MOVED // 2 * parameters, dtype=np.uint8)
        self._target = np.empty_like(self._source)
        self.copy()

    def copy(self) -> None:
        """Copy on one core."""
        np.copyto(self._target, self._source)

    def copy_together(self, pool: Executor) -> None:
        """Copy on all cores."""
        parts = os.cpu_count() or 1
        pairs = zip(np.array_split(self._target, parts), np.array_split(self._source, parts), strict=True)
        list(pool.map(lambda pair: np.copyto(*pair), pairs))


@contextmanager
def stopwatches() -> Iterator[dict[str, float]]:
    """Time the parts of commits during the block; seconds of worker threads may overlap with others."""
    seconds = dict.fromkeys(("terms and mean (workers)", "frames (workers)", "digests (in order)"), 0.0)
    held = (Grid.add_and_mean, tier._Step.frame, Sealer.feed)

    def watched(name: str, work: Any) -> Any:
        def run(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                seconds[name] += time.perf_counter() - started

        return run

    names = list(seconds)
    Grid.add_and_mean, tier._Step.frame, Sealer.feed = (  # type: ignore[method-assign]
        watched(name, work) for name, work in zip(names, held, strict=True)
    )
    try:
        yield seconds
    finally:
        Grid.add_and_mean, tier._Step.frame, Sealer.feed = held  # type: ignore[method-assign]


def parts(community: Community, store: Store, pool: Executor, repeats: int) -> dict[str, float]:
    """Return the milliseconds of a commit's parts, measured in separate commits."""
    with stopwatches() as seconds:
        whole = timed(lambda: [community.commit(store, pool) for _ in range(repeats)])
    return {
        name: round(1000 * value / repeats, 2) for name, value in {"whole commit": whole, **seconds}.items()
    }


def recomputation(community: Community, store: Store, pool: Executor, repeats: int) -> float:
    """Return the seconds of a full recomputation, which must equal the newest commit, bit for bit."""
    digests = [community.commit(store, pool)]
    times = [timed(lambda: digests.append(community.recompute(store, pool))) for _ in range(repeats)]
    assert len(set(digests)) == 1, "the incremental model is not the recomputed one"
    return statistics.median(times)


def measure_store(
    kind: str, store: Store, communities: dict[int, Community], parameters: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time commits of all communities and copies in turns, then the full recomputations."""
    copier = Copier(parameters)
    commits: dict[int, list[tuple[float, float]]] = {learners: [] for learners in communities}
    copies: list[tuple[float, float]] = []
    together: list[float] = []
    found = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for community in communities.values():
            community.commit(store, pool)  # connections open, caches fill
        for _ in range(options.repeats):
            copies.append(measured(copier.copy))
            together.append(timed(lambda: copier.copy_together(pool)))
            for learners, community in communities.items():
                commits[learners].append(measured(lambda held=community: held.commit(store, pool)))  # type: ignore[misc]
        full: dict[int, float] = {}
        plain: dict[int, float] = {}
        for learners, community in communities.items():
            if learners * parameters <= options.full:
                full[learners] = recomputation(community, store, pool, 3 if learners <= 100 else 1)
                plain[learners] = timed(lambda held=community: held.recompute_plainly(store))  # type: ignore[misc]
        profile = parts(communities[min(communities)], store, pool, options.repeats)
    copy, copy_cpu = (statistics.median(values) for values in zip(*copies, strict=True))
    for learners, pairs in commits.items():
        times, burnt = zip(*pairs, strict=True)
        seconds, cpu = statistics.median(times), statistics.median(burnt)
        scale = 1.0 if learners in full else learners / max(full)
        entire, plainly = (times[min(learners, max(times))] * scale for times in (full, plain))
        found.append(
            {
                "store": kind,
                "parameters": parameters,
                "learners": learners,
                "commit_seconds": round(seconds, 5),
                "commit_quartiles": [round(value, 5) for value in np.percentile(times, [25, 75]).tolist()],
                "commit_cpu_seconds": round(cpu, 5),
                "full_seconds": round(entire, 4),
                "full_is": "measured" if learners in full else f"extrapolated from {max(full)} learners",
                "full_per_commit_and_learner": round(entire / seconds / learners, 3),
                "plain_seconds": round(plainly, 4),
                "plain_per_commit_and_learner": round(plainly / seconds / learners, 3),
                "memcpy_seconds": round(copy, 5),
                "memcpy_cpu_seconds": round(copy_cpu, 5),
                "memcpy_all_cores_seconds": round(statistics.median(together), 5),
                "memcpy_gigabytes_moved_per_second": round(MOVED * parameters / copy / 1e9, 2),
                "commit_gigabytes_moved_per_second": round(MOVED * parameters / seconds / 1e9, 2),
                "share_of_memcpy": round(copy / seconds, 3),
                "share_of_memcpy_cpu": round(copy_cpu / cpu, 3),
                "parts_ms": profile if learners == min(communities) else {},
            }
        )
    return found


def measure(parameters: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Build the sums once, then commit through each store."""
    spec = light_spec(parameters)
    communities = {n: Community(spec, n, options.distinct) for n in options.learners}
    found = []
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="hansa-bench-")))
        pool = leaving.enter_context(ThreadPoolExecutor(os.cpu_count()))
        with opened("memory:", folder) as held:
            fill(held.store, spec, options.distinct)
            for learners, community in communities.items():
                print(f"{parameters:,} parameters: sums of {learners} learners …", flush=True)
                community.build(held.store, pool)
            if "memory" in options.stores:
                found += measure_store("memory", held.store, communities, parameters, options)
        for kind in (kind for kind in options.stores if kind != "memory"):
            with ExitStack() as closing:
                if kind == "redis":
                    url = closing.enter_context(redis_server(folder / f"redis-{parameters}", durable=True))
                else:
                    url = f"disk:{folder / 'store'}"
                held = closing.enter_context(opened(url, folder))
                fill(held.store, spec, options.distinct)
                found += measure_store(kind, held.store, communities, parameters, options)
    return found


def report(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Print the figures; return the ratios."""
    columns = (
        "store",
        "parameters",
        "learners",
        "commit ms",
        "cpu ms",
        "plain ms",
        "plain/commit/N",
        "full ms",
        "full/commit/N",
        "memcpy ms",
        "share",
    )
    rows = [
        (
            case["store"],
            f"{case['parameters']:,}",
            str(case["learners"]),
            f"{1000 * case['commit_seconds']:.1f}",
            f"{1000 * case['commit_cpu_seconds']:.1f}",
            f"{1000 * case['plain_seconds']:.0f}{'' if case['full_is'] == 'measured' else ' *'}",
            f"{case['plain_per_commit_and_learner']:.2f}",
            f"{1000 * case['full_seconds']:.0f}{'' if case['full_is'] == 'measured' else ' *'}",
            f"{case['full_per_commit_and_learner']:.2f}",
            f"{1000 * case['memcpy_seconds']:.1f}",
            f"{100 * case['share_of_memcpy']:.0f} %",
        )
        for case in found
    ]
    print_table(columns, rows)
    print("* extrapolated in proportion to the learners")
    ratios = {}
    for kind, parameters in dict.fromkeys((case["store"], case["parameters"]) for case in found):
        cases = {
            case["learners"]: case
            for case in found
            if (case["store"], case["parameters"]) == (kind, parameters)
        }
        fewest, most = min(cases), max(cases)
        flat = cases[most]["commit_seconds"] / cases[fewest]["commit_seconds"]
        flat_cpu = cases[most]["commit_cpu_seconds"] / cases[fewest]["commit_cpu_seconds"]
        said = {"commit_most_over_fewest": round(flat, 3), "commit_most_over_fewest_cpu": round(flat_cpu, 3)}
        line = (
            f"{kind}, {parameters:,}: commit at {most} / {fewest} learners {flat:.3f} ({verdict(flat, FLAT)};"
        )
        line += f" processor time {flat_cpu:.3f})"
        if 100 in cases:
            linear, share = cases[100]["full_per_commit_and_learner"], cases[100]["share_of_memcpy"]
            cpu = cases[100]["share_of_memcpy_cpu"]
            plain = cases[100]["plain_per_commit_and_learner"]
            said |= {"plain_over_commit_over_100": plain, "full_over_commit_over_100": linear}
            said |= {"share_of_memcpy": share, "share_of_memcpy_cpu": cpu}
            line += f"; plain recomputation / commit / 100 {plain:.2f} ({at_least(plain, LINEAR)})"
            line += f"; ours / commit / 100 {linear:.2f} ({at_least(linear, LINEAR)})"
            line += f"; share of memcpy {share:.2f} ({at_least(share, SHARE)}; processor time {cpu:.2f})"
        ratios[f"{kind} {parameters}"] = said
        print(line)
    for case in found:
        if case["parts_ms"]:
            told = ", ".join(f"{name} {value:.1f} ms" for name, value in case["parts_ms"].items())
            print(f"parts, {case['store']}, {case['parameters']:,}: {told}")
    return ratios


def at_least(value: float, promise: float) -> str:
    """Say whether a figure keeps a promise that sets a floor."""
    return f"promised ≥ {promise:g}: {'kept' if value >= promise else 'NOT KEPT'}"


def main() -> None:
    """Measure every size and store and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--learners", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--distinct", type=int, default=10, help="stored models that the members share")
    parser.add_argument("--repeats", type=int, default=15, help="commits of each kind")
    parser.add_argument(
        "--full", type=float, default=1e9, help="largest learners × parameters to recompute, not extrapolate"
    )
    parser.add_argument("--name", default="commit_cost", help="the results' file name below results/")
    options = parser.parse_args()
    end_in_order()
    keep_freed_memory()  # as the controller does
    kernels.load()  # a controller does this a few seconds after its first large model
    described = machine()
    found = [case for parameters in options.parameters for case in measure(parameters, options)]
    ratios = report(found)
    promises = {"commit_1000_over_10": FLAT, "full_over_commit_over_100": LINEAR, "share_of_memcpy": SHARE}
    save(options.name, {"machine": described, "promises": promises, "ratios": ratios, "cases": found})


if __name__ == "__main__":
    main()
