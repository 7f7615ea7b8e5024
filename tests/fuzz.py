"""Throws bytes at every RPC: `python -m tests.fuzz --inputs 1000000`.

It exits with 1 at the first crash, hang or growth.

The real servicers, guard and error table stand over a real federation; only the socket is left out, which
makes a million inputs a matter of minutes (`--socket` takes them through gRPC, too). More than half of the
inputs are honest messages with a few bytes changed, so that they get past the decoder; the rest are noise.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc

from hansa.common.models.frames import cut
from hansa.common.process.clock import SystemClock
from hansa.common.rpc import codec
from hansa.common.rpc.access import TABLE
from hansa.common.rpc.errors import CUT_SHORT, ErrorStatuses
from hansa.common.rpc.guard import Guard, Limits
from hansa.common.values.ids import PROTOCOL
from hansa.common.values.results import UpdateFacts
from hansa.controller.engine import events as ev
from hansa.controller.federation import Federation
from hansa.controller.fleet.sessions import AppState, Session
from hansa.controller.server import make_server, services
from hansa.controller.storage.backends import opened
from hansa.protos import fleet_pb2, operator_pb2
from tests.support import APP, STATUS, filled, job, sealed, small_spec

CHECK = "/grpc.health.v1.Health/Check"
METHODS = [*(method for method in TABLE if method.startswith("/hansa")), CHECK]
BAD = {"INTERNAL", "UNKNOWN"}
STREAMS = ("Watch", "Events", "Audit")  # that may go on for ever
PATIENCE = 10.0  # seconds after which an input counts as hanging
GROWTH = 256  # MiB by which the process may grow in total
# Inputs after which the federation is created anew: honest jobs and audit records take memory, too.
FRESH = 20_000


class Context:
    """A call's context without a socket."""

    code = "OK"
    text = ""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, text: str, metadata: Any = ()) -> None:
        self.code, self.text = code.name, text
        raise grpc.aio.AbortError(text)


@dataclass
class Target:
    """All RPCs of a controller, called with bytes."""

    federation: Federation
    calls: dict[str, Any] = field(default_factory=dict)
    seeds: dict[str, list[list[bytes]]] = field(default_factory=dict)
    channel: "grpc.aio.Channel | None" = None

    async def call(self, method: str, messages: list[bytes]) -> tuple[str, str]:
        """Call a method with messages; return the status and its text."""
        context = Context()

        async def words() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        if self.channel is not None:
            return await self._send(method, words())
        found = self.calls[method]
        try:
            with suppress(grpc.aio.AbortError):
                async with asyncio.timeout(PATIENCE):
                    if found.response_streaming:
                        answers = found.stream_stream(words(), context)
                        for _ in range(2):
                            if await anext(answers, None) is None or method.endswith(STREAMS):
                                break
                        await answers.aclose()
                    else:
                        await found.stream_unary(words(), context)
        except TimeoutError:
            return "UNKNOWN", f"no answer for {PATIENCE:g} s"
        return context.code, context.text

    async def _send(self, method: str, words: AsyncIterator[bytes]) -> tuple[str, str]:
        """Call a method through gRPC."""
        assert self.channel is not None
        call = self.channel.stream_stream(method)(words, timeout=PATIENCE)
        answers = aiter(call)
        try:
            for _ in range(2):
                if await anext(answers, None) is None or method.endswith(STREAMS):
                    break
        except grpc.aio.AioRpcError as error:
            if str(error.details()).startswith(CUT_SHORT):
                # The call was refused before we had sent everything; this client then loses the status.
                return "CUT_SHORT", ""
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return "UNKNOWN" if late else error.code().name, str(error.details())
        finally:
            call.cancel()
        return "OK", ""

    async def tidy(self) -> None:
        """Undo what an honest message did, so that the next one finds the same federation."""
        for task in list(self.federation.uploads.under_way):
            self.federation.uploads.discard(task)
        self.federation.intake.quarantine.clear()
        for runner in self.federation.jobs.runners[1:]:
            if not runner.machine.ended:
                await runner.post(ev.CancelAsked(at=0))


@asynccontextmanager
async def target(folder: Path, socket: bool = False) -> AsyncIterator[Target]:
    """Return a federation with one job in mid-round, and honest messages for every RPC."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    with opened("memory:", folder) as held:
        async with Federation(held.store, held.journal, SystemClock()) as federation:
            made = Target(federation)
            guard = Guard(limits=Limits(patience=5, silence=5), refused=lambda *_: None)
            server = make_server(guard)
            fleet, health, operators = services(federation, STATUS, submissions=1 << 60)
            server.add_generic_rpc_handlers((fleet, health, operators))
            for service, generic in (
                (fleet_pb2.DESCRIPTOR.services_by_name["Fleet"], fleet),
                (operator_pb2.DESCRIPTOR.services_by_name["Operator"], operators),
            ):
                for method in service.methods:
                    name = f"/{service.full_name}/{method.name}"
                    made.calls[name] = await _wrapped(generic, guard, name)
            made.calls[CHECK] = await _wrapped(health, guard, CHECK)
            await _play(made)
            if not socket:
                yield made
                return
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as made.channel:
                yield made
            await server.stop(None)


async def _wrapped(generic: grpc.GenericRpcHandler, guard: Guard, name: str) -> Any:
    details = SimpleNamespace(method=name, invocation_metadata=())

    async def plain(given: Any) -> Any:
        return generic.service(given)

    async def guarded(given: Any) -> Any:
        return await guard.intercept_service(plain, given)

    return await ErrorStatuses().intercept_service(guarded, details)


async def _play(made: Target) -> None:
    federation, now = made.federation, made.federation.clock.now()
    session = Session("a", "learner", "x", {APP: AppState("", 10)}, set(), now, now)  # type: ignore[arg-type]
    federation.fleet.attend(session)
    manifest, payload = sealed(small_spec(), filled(small_spec(), 0))
    frames = [frame.tobytes() for frame in cut(payload)]

    async def words() -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame

    runner = await federation.admission.submit(job(pace={"kind": "sync", "rounds": 1000}), manifest, words())
    while not runner.machine.state.tasks:
        await runner.next_change().wait()
    task = next(iter(runner.machine.state.tasks.values()))
    facts = codec.facts_to_wire(
        UpdateFacts(n_train=1, n_used=1, steps=1, epochs=1, seconds=0, metrics={"a": 1.0})
    )
    wire = codec.manifest_to_wire(manifest)
    header = operator_pb2.SubmitHeader(
        job_json=json.dumps(job().model_dump(mode="json", exclude={"init", "data", "operator"})),
        manifest=wire,
    )
    other, ones = sealed(small_spec(), filled(small_spec(), 1))
    named = job(reference=other.digest.hex()).model_dump(mode="json", exclude={"init", "data", "operator"})
    measured = operator_pb2.SubmitHeader(
        job_json=json.dumps(named), manifest=wire, reference=codec.manifest_to_wire(other)
    )
    report = fleet_pb2.TaskReport(site="a", task="j00000000-1")
    report.evaluation.MergeFrom(fleet_pb2.Evaluation(n=4, loss_sum=2.0, classes=2, confusion=[2, 1, 0, 1]))
    labelled = fleet_pb2.TaskReport(site="a", task="j00000000-1")
    labelled.evaluation.MergeFrom(fleet_pb2.Evaluation(n=4, loss_sum=2.0, labels=[2, 1, 0, 1, 0, 3]))
    enrol = fleet_pb2.Enrol(
        protocol=PROTOCOL,
        version="0",
        site="b",
        role=fleet_pb2.LEARNER,
        instance="y",
        apps=[fleet_pb2.AppState(ref=APP, examples=3)],
        tasks=[task.id],
    )
    progress = fleet_pb2.FromSite(
        progress=fleet_pb2.Progress(task=task.id, epoch=1, epochs=2, steps=3, loss=0.5)
    )
    jobs = operator_pb2.JobRequest(job=runner.id)
    model = operator_pb2.ModelRequest(job=runner.id)
    fetch = fleet_pb2.FetchRequest(site="a", model=task.work.model, held=list(manifest.digests))  # type: ignore[union-attr]
    fetch.auxiliary.append("control")
    offer = fleet_pb2.OfferRequest(site="a", task=task.id, manifest=wire, facts=facts)
    upload = fleet_pb2.UploadHeader(site="a", task=task.id)

    def seed(*messages: Any) -> list[bytes]:
        return [
            message if isinstance(message, bytes) else message.SerializeToString() for message in messages
        ]

    made.seeds = {
        "Attend": [
            seed(fleet_pb2.FromSite(enrol=enrol), progress, fleet_pb2.FromSite(goodbye=fleet_pb2.Goodbye()))
        ],
        "Fetch": [seed(fetch)],
        "Offer": [seed(offer)],
        "Upload": [seed(upload, *frames)],
        "Report": [seed(report), seed(labelled)],
        "Submit": [
            seed(header, *frames),
            seed(operator_pb2.SubmitHeader(job_json=header.job_json)),
            seed(measured, *frames, *(frame.tobytes() for frame in cut(ones))),
        ],
        "Show": [seed(jobs)],
        "List": [seed(operator_pb2.ListRequest())],
        "History": [seed(operator_pb2.HistoryRequest(job=runner.id, after=0, limit=3, detail=True))],
        "Watch": [seed(operator_pb2.WatchRequest(job=runner.id, after=0, detail=True))],
        "Events": [
            seed(operator_pb2.EventsRequest(job=runner.id, after=1)),
            seed(operator_pb2.EventsRequest(job=runner.id, follow=True)),
        ],
        "Cancel": [seed(operator_pb2.JobRequest(job="jffffffff"))],
        "Delete": [seed(operator_pb2.JobRequest(job="jffffffff"))],
        "Audit": [
            seed(operator_pb2.AuditRequest(after=1)),
            seed(operator_pb2.AuditRequest(after=1, follow=True)),
        ],
        "Logs": [seed(operator_pb2.LogsRequest(site="nowhere", role="evaluator", lines=9))],
        "Model": [seed(model)],
        "Sites": [seed(operator_pb2.SitesRequest())],
        "Status": [seed(operator_pb2.StatusRequest())],
        "Check": [seed(b"\x0a\x0ehansa.v1.Fleet")],
    }


EXTREMES = (b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x00", b"\x7f", b"\xff\xff\xff\xff\x0f", b"\x0a\x00" * 50)


def mutated(chance: random.Random, message: bytes) -> bytes:
    """Change a few bytes of a message."""
    held = bytearray(message)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(held) + 1)
        match chance.randrange(6):
            case 0 if held:
                held[at % len(held)] ^= 1 << chance.randrange(8)
            case 1:
                held[at:at] = chance.randbytes(chance.randint(1, 8))
            case 2:
                del held[at : at + chance.randint(1, 8)]
            case 3:
                held[at:at] = chance.choice(EXTREMES)
            case 4:
                del held[at:]
            case _ if held:
                other = chance.randrange(len(held))
                held[at:at] = held[other : other + 20]
    return bytes(held)


def inputs(chance: random.Random, seeds: dict[str, list[list[bytes]]], method: str) -> list[bytes]:
    """Return the messages of one call."""
    if chance.random() < 0.4:
        return [chance.randbytes(chance.randint(0, 200)) for _ in range(chance.randint(0, 3))]
    honest = list(chance.choice(seeds[method.rpartition("/")[2]]))
    which = chance.randrange(len(honest))
    honest[which] = mutated(chance, honest[which])
    if chance.random() < 0.1:
        honest += honest
    return honest


def resident() -> float:
    """Return the memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


async def fuzz(count: int, seed: int, methods: list[str], socket: bool = False) -> Counter[str]:
    """Throw inputs; raise AssertionError at the first that is not answered with a proper status."""
    chance, statuses, began = random.Random(seed), Counter[str](), time.monotonic()
    at, start = 0, 0.0
    while at < count:
        with tempfile.TemporaryDirectory() as scratch:
            async with target(Path(scratch), socket) as made:
                start = start or resident()
                for at in range(at, min(count, at + FRESH)):  # noqa: B020
                    method = chance.choice(methods)
                    messages = inputs(chance, made.seeds, method)
                    code, text = await made.call(method, messages)
                    assert code not in BAD, f"input {at} of seed {seed}: {method} {messages!r}: {code} {text}"
                    statuses[code] += 1
                    if code == "OK" or method.endswith(("Offer", "Upload", "Submit")):
                        await made.tidy()
                at += 1
                grown = resident() - start
                assert grown < GROWTH, (
                    f"seed {seed}: the process has grown by {grown:.0f} MiB after {at} inputs"
                )
        rate = at / (time.monotonic() - began)
        print(
            f"{at} inputs, {rate:.0f} a second, {grown:+.0f} MiB, {dict(statuses)}",
            file=sys.stderr,
            flush=True,
        )
    return statuses


def main() -> None:
    """Read the command line and run."""
    import logging

    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--socket", action="store_true", help="take the inputs through gRPC")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(fuzz(options.inputs, options.seed, METHODS, options.socket))))


if __name__ == "__main__":
    main()
