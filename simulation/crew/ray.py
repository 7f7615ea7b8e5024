"""Actors on a Ray cluster. Ray places them, carries models and outcomes, and notices when they die."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hansa import __version__
from hansa.common.values.errors import HansaError, one_line
from hansa.common.values.ids import ModelKey, TaskId
from hansa.simulation.batched.agreement import wanted
from hansa.simulation.crew.actor import Opening, reunited
from hansa.simulation.crew.alike import digests_of, software
from hansa.simulation.crew.base import Assignment, Outcome, Update
from hansa.simulation.crew.block_crew import BlockCrew, Worker
from hansa.simulation.crew.blocks import Block, placed, sent, whole_payload
from hansa.simulation.crew.cluster import Cluster
from hansa.simulation.sites.data import VirtualData
from hansa.simulation.storage.store import SharedStore

PATIENCE = 120  # seconds until the first actor must be ready
LOW_MEMORY = "running low on memory"  # Ray's words


def ray_crew(
    address: str, count: int, ref: str, data: VirtualData, store: SharedStore, batched: bool = True
) -> "RayCrew":
    """Return a crew of actors on the cluster at an address, or on a cluster of our own ("auto")."""
    cluster = Cluster(address, count or len(os.sched_getaffinity(0)))
    try:
        return RayCrew(cluster, count, ref, data, store, batched)
    except BaseException:
        cluster.close()
        raise


@dataclass(eq=False, kw_only=True)
class _Actor(Worker):
    """An actor, and its calls that are under way."""

    handle: Any
    calls: dict[Any, int] = field(default_factory=dict)  # what Ray promised, by the number of the block
    node: str = ""
    address: str = ""


class RayCrew(BlockCrew[_Actor]):
    """Gives blocks of tasks to actors, one for each CPU of the cluster, or as many as are asked for."""

    noun = "actors"

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        ref: str,
        data: VirtualData,
        store: SharedStore,
        batched: bool = True,
    ) -> None:
        super().__init__(store, wanted(batched, len(data.names)))
        self._cluster, self._ray = cluster, cluster.ray
        opening = Opening(ref, data, batched, str(Path.cwd()), software(ref), digests_of(data))
        self._opening = self._ray.put(sent(opening))
        self._class = self._ray.remote(_actor_class())
        self._models: dict[ModelKey, Any] = {}
        room = cluster.free_cpus
        self.workers = [self.start() for _ in range(count or cluster.cpus)]
        if not self.workers:
            raise HansaError("the Ray cluster has no CPUs: --workers says how many actors to start")
        self._unexamined = min(len(self.workers), room)

    def close(self) -> None:
        """End all actors."""
        with contextlib.suppress(Exception):  # the connection may be lost, which ends them, too
            for worker in self.workers:
                self._ray.kill(worker.handle)
        self.workers = []
        self._models.clear()
        self._cluster.close()

    def start(self) -> _Actor:
        """Ask Ray for an actor; it begins when a node has a CPU for it."""
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        handle = self._class.options(**options).remote()
        return _Actor(handle=handle, calls={handle.begin.remote(__version__, self._opening): 0})

    def outcome(self, task: TaskId) -> Outcome:
        """Wait for the outcome of a task; before the first one, for the examination of the nodes."""
        while self._unexamined > sum(worker.ready for worker in self.workers):
            if not self._collect(PATIENCE):
                break  # some nodes have no room any more
        self._unexamined = 0
        return super().outcome(task)

    # Handing out.

    def pack(self, number: int, assignments: tuple[Assignment, ...], over: tuple[TaskId, ...]) -> Block:
        """Return a block; its models are in Ray's store."""
        return Block(number, assignments, {}, (None,) * len(assignments), over)

    def give(self, worker: _Actor, block: Block) -> None:
        """Call an actor."""
        keys = {key for assignment in block.assignments for key in assignment.task.models}
        call = worker.handle.do.remote(sent(block), {key: self._put(key) for key in keys})
        worker.calls[call] = block.number

    def _put(self, key: ModelKey) -> Any:
        """Put a model into Ray's store, once; those that the job no longer has are given up."""
        if key not in self._models:
            for old in [each for each in self._models if not self.store.has(each)]:
                del self._models[old]
            with self.store.open(key) as model:
                payload = np.frombuffer(whole_payload(model), np.uint8)
                self._models[key] = self._ray.put((sent(model.manifest), payload))
        return self._models[key]

    # Collecting.

    def collect(self) -> None:
        """Wait until an actor is ready, has done a block or has died."""
        if not self._collect(None if any(worker.ready for worker in self.workers) else PATIENCE):
            raise HansaError(
                f"no actor was ready within {PATIENCE} seconds: the Ray cluster has {self._cluster.cpus}"
                f" CPUs, of which {self._cluster.free_cpus} are free"
            )

    def _collect(self, patience: float | None) -> bool:
        """Wait for one of those; return whether it came in time."""
        calls = {call: worker for worker in self.workers for call in worker.calls}
        done, _ = self._ray.wait(list(calls), timeout=patience)
        if not done:
            return False
        worker, number = calls[done[0]], calls[done[0]].calls.pop(done[0])
        try:
            answer = self._ray.get(done[0])
        except self._ray.exceptions.RayTaskError as error:
            raise HansaError(f"an actor on node {worker.address} failed: {one_line(error.cause)}") from error
        except self._ray.exceptions.RayError as error:
            self._mourn(worker, error)
        else:
            if number:
                self.enter(worker, number, self._kept(reunited(answer)))
            else:
                self._greet(worker, *answer)
        return True

    def _greet(self, worker: _Actor, node: str, address: str, problem: str) -> None:
        worker.node, worker.address = node, address
        if problem:
            raise HansaError(f"node {address} of the Ray cluster: {problem}")
        self.welcome(worker)

    def _kept(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return outcomes whose updates are in our own memory: Ray's is for what is under way."""
        slab, ours = self.store.slab, []
        for outcome in outcomes:
            update = outcome.result
            if not isinstance(update, Update):
                ours.append(outcome)
            elif self.store.full:
                ours.append(replace(outcome, result=replace(update, payload=np.array(update.payload))))
            else:
                ours.append(placed(outcome, slab.take(update.nbytes), slab))
        return ours

    def _mourn(self, worker: _Actor, error: Exception) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(worker.handle)  # it may only be out of reach
        if not worker.ready:
            self.bury(worker, f"as Ray says: {one_line(error)}", blamed=False)
        elif self._cluster.is_alive(worker.node):
            memory = LOW_MEMORY in str(error)
            why = "which ran low on memory" if memory else "and Ray does not say by which signal"
            self.bury(worker, f"on node {worker.address}, {why}")
        else:
            self.bury(worker, f"with node {worker.address}", blamed=False)


def _actor_class() -> type:
    """Return the class of actors.

    It travels with its code, which must not need our package, not even for annotations: a node without the
    package says so.
    """

    class HansaActor:
        def begin(self, version: str, opening: bytes) -> tuple[str, str, str]:
            """Return the node, its address, and what is wrong with it."""
            import ray

            node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
            try:
                import hansa

                if hansa.__version__ != version:
                    return node, address, f"Hansa is {hansa.__version__} there and {version} here"
                from hansa.simulation.crew.actor import Performer

                self._performer = Performer(opening, ray.get)
            except ImportError as error:
                return node, address, f"Hansa cannot be imported there: {error}"
            except Exception as error:
                return node, address, str(error)
            return node, address, ""

        def do(self, block: bytes, models: Any) -> list[Any]:
            """Do a block of tasks."""
            return self._performer.do(block, models)

    return HansaActor
