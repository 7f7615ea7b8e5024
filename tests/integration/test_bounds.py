"""Numbers and texts that do not fit a message cost a job, never a session; others can be read again."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from hansa.common.plugins.registry import register
from hansa.common.rpc.access import TABLE
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.methods import RAW, Stub
from hansa.common.site import attendance
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Probe, Task, Train
from hansa.controller.pacers.rounds import RoundState
from hansa.controller.pacers.sync import Sync
from hansa.controller.plugin.actions import Action, Ask
from hansa.controller.plugin.parts import Nothing, Sampler
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View
from hansa.controller.transfers.sending import LARGEST
from hansa.protos import fleet_pb2, operator_pb2
from tests.integration.attacker import CODE, attend, enrolment, status
from tests.support import APP, LightSite, Served, ended, fleet_stub, job, nothing, serving
from tests.waiting import eventually

CHANGES: dict[str, dict[str, Any]] = {
    "batch_size": {"batch_size": 1 << 32},
    "epochs": {"epochs": 1 << 40},
    "steps": {"steps": 1 << 64},
    "batches": {"batches": -1},
    "committed": {"committed": 1 << 64},
    "version": {"version": "newest"},
    "after": {"after": "\ud800"},
    "tensors.0": {"tensors": ("\udfff",)},
    "optimizer.lr": {"optimizer": OptimizerSpec.model_construct(lr=float("nan"))},
    "plugins.0.args": {"plugins": (LocalPluginSpec.model_construct(name="x", args={"a": {1, 2}}),)},
}


@register("local", "overdone")
class Overdone(Policy):
    """Asks for training that does not fit into a task message."""

    field: str

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Set a field to an extreme value, as a method that computes it might."""
        return work.model_copy(update=CHANGES[self.field])


@register("pace", "countless")
class Countless(Sync):
    """Counts beyond the limit of tasks."""

    def asks(self, state: RoundState, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Ask for a turn that does not fit."""
        return [Ask(site, turn=1 << 32) for site in sites]


@register("sample", "curious")
class Curious(Sampler):
    """Has sites measure the first model, with arguments that change when the package is updated."""

    arguments: ClassVar[dict[str, object]] = {}

    @property
    def probe(self) -> LocalPluginSpec | None:
        """What to measure, unchecked: packages may build it as they like."""
        return LocalPluginSpec.model_construct(name="importance", args=self.arguments)

    def to_probe(self, state: Nothing, view: View) -> Sequence[SiteName]:
        """Everybody, before the first round."""
        return view.sites if view.round == 1 else ()

    def choose(
        self, state: Nothing, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Everybody."""
        return [site for site in view.sites if site not in exclude]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as found:
        yield found


async def patient(site: LightSite, task: Task) -> None:
    """Do what a site does, but never finish a probe."""
    if isinstance(task.work, Probe):
        await asyncio.Event().wait()
    await site.do(task)


async def serves_the_next_job(served: Served, session: Any) -> None:
    """Check that the session is still the same and that an ordinary job completes."""
    done = await ended(await served.submit(job(), None, nothing()))
    assert done.machine.state.status == "completed", done.machine.state.reason
    assert served.federation.fleet.sessions == [session]


@pytest.mark.parametrize("field", sorted(CHANGES))
async def test_a_task_that_a_plugin_makes_too_large_fails_its_job_and_names_the_field(
    served: Served, field: str
) -> None:
    async with asyncio.timeout(30), LightSite(served.address, "a").attending():
        (session,) = served.federation.fleet.sessions
        spec = job(local={"kind": "overdone", "field": field})
        runner = await ended(await served.submit(spec, None, nothing()))
        assert runner.machine.state.status == "failed"
        assert (
            f"local 'overdone': it asks for a task that cannot be sent: {field}: "
            in runner.machine.state.reason
        )
        await serves_the_next_job(served, session)


async def test_a_pacer_that_counts_too_far_fails_its_job(served: Served) -> None:
    async with asyncio.timeout(30), LightSite(served.address, "a").attending():
        (session,) = served.federation.fleet.sessions
        runner = await ended(await served.submit(job(pace={"kind": "countless"}), None, nothing()))
        assert (
            "pace 'countless': it asks for a task that cannot be sent: turn: " in runner.machine.state.reason
        )
        await serves_the_next_job(served, session)


@pytest.mark.parametrize(
    ("argument", "why"),
    [({1, 2}, "work.probe.plugin.args"), ("x" * LARGEST, f"at most {LARGEST} are allowed")],
)
async def test_a_task_that_cannot_be_encoded_fails_its_job_and_not_the_session(
    served: Served, monkeypatch: pytest.MonkeyPatch, argument: object, why: str
) -> None:
    monkeypatch.setattr(Curious, "arguments", {"layers": argument})
    async with asyncio.timeout(30), LightSite(served.address, "a").attending():
        (session,) = served.federation.fleet.sessions
        runner = await ended(await served.submit(job(sample={"kind": "curious"}), None, nothing()))
        assert runner.machine.state.status == "failed"
        assert "a task of site a cannot be sent: " in runner.machine.state.reason
        assert why in runner.machine.state.reason
        await serves_the_next_job(served, session)


async def test_after_a_restart_too_such_a_task_fails_its_job_and_not_the_session(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(tmp_path, store=store) as served,
        LightSite(served.address, "a", answer=patient).attending(),
    ):
        runner = await served.submit(job(sample={"kind": "curious"}), None, nothing())
        while not any(isinstance(task.work, Probe) for task in runner.machine.state.tasks.values()):
            await runner.next_change().wait()
    monkeypatch.setattr(Curious, "arguments", {"layers": {1, 2}})  # the package was updated meanwhile
    async with asyncio.timeout(30), serving(tmp_path, store=store) as served:
        resumed = served.jobs.runner(runner.id)
        assert not resumed.machine.ended
        async with LightSite(served.address, "a").attending():
            (session,) = served.federation.fleet.sessions
            await ended(resumed)
            assert "a task of site a cannot be sent: work.probe.plugin.args" in resumed.machine.state.reason
            await serves_the_next_job(served, session)


# What sites say.


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        (
            {"apps": [fleet_pb2.AppState(ref="app.py:app", examples=1 << 53)]},
            CODE.INVALID_ARGUMENT,
            "examples",
        ),
        ({"instance": "x" * 1001}, CODE.RESOURCE_EXHAUSTED, "at most 1000 characters"),
        ({"tasks": ["x" * 1001]}, CODE.RESOURCE_EXHAUSTED, "at most 1000 characters"),
        ({"apps": [fleet_pb2.AppState(ref="x" * 1001)]}, CODE.RESOURCE_EXHAUSTED, "at most 1000 characters"),
    ],
)
async def test_an_enrolment_beyond_all_bounds_is_refused(
    served: Served, fields: dict[str, Any], code: grpc.StatusCode, why: str
) -> None:
    channel, stub = fleet_stub(served.address)
    found, words = await attend(stub, enrolment(**fields))
    assert (found, why in words) == (code, True), words
    await channel.close()


async def test_progress_that_cannot_be_counted_is_refused_with_the_field(served: Served) -> None:
    async def words() -> AsyncIterator[fleet_pb2.FromSite]:
        yield enrolment()
        yield fleet_pb2.FromSite(progress=fleet_pb2.Progress(task="j-1", steps=(1 << 64) - 1))

    async def whole(call: Any) -> None:
        async for _ in call:
            pass

    channel, stub = fleet_stub(served.address)
    code, why = await status(whole(stub.Attend(words())))
    assert (code, "invalid progress: steps: " in why) == (CODE.INVALID_ARGUMENT, True), why
    await channel.close()


async def test_back_off_goes_on_growing_while_sessions_die_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that breaks every session right after its start is not called as often as a new one."""
    rests: list[int] = []

    class Counting(Backoff):
        tries = 0

        def reset(self) -> None:
            self.tries = 0

        async def rest(self, until: asyncio.Event | None = None) -> None:
            self.tries += 1
            rests.append(self.tries)
            await asyncio.sleep(0)

    async def attend(_: Any, context: Any) -> AsyncIterator[bytes]:
        yield fleet_pb2.ToSite(
            enrolled=fleet_pb2.Enrolled(controller="x", heartbeat_seconds=5)
        ).SerializeToString()
        await context.abort(CODE.INTERNAL, "broken")

    monkeypatch.setattr(attendance, "Backoff", Counting)
    server = grpc.aio.server()
    kind = {"Attend": grpc.stream_stream_rpc_method_handler(attend)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hansa.v1.Fleet", kind),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    try:
        async with LightSite(f"127.0.0.1:{port}", "a").attending():
            await eventually(lambda: len(rests) >= 5)
            assert rests[:5] == [1, 2, 3, 4, 5]
            monkeypatch.setattr(attendance, "STEADY", 0.0)  # as if the next ones had lasted long enough
            seen = len(rests)
            await eventually(lambda: len(rests) >= seen + 4)
            assert rests[-1] == 1
    finally:
        await server.stop(None)


# What operators say.


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


async def submitted(address: str, document: object, operator: bytes = b"") -> tuple[grpc.StatusCode, str]:
    """Submit a document as it is, without the checks of our command line."""
    header = operator_pb2.SubmitHeader(job_json=json.dumps(document)).SerializeToString() + operator

    async def messages() -> AsyncIterator[bytes]:
        yield header

    async with grpc.aio.insecure_channel(address) as channel:
        stub = Stub(channel, operator_pb2.DESCRIPTOR.services_by_name["Operator"])
        return await status(stub.Submit(messages()))


def texts() -> Iterator[tuple[str, Any]]:
    """Yield the job with half a surrogate pair in every place that takes text or anything."""
    bad = "\ud800"
    for name in ("name", "app", "rule", "init", "reference", "operator"):
        yield name, {name: bad}
    for point in ("pace", "sample", "local", "layers", "transfer", "weigh", "merge", "server", "evaluate"):
        yield f"{point}.kind", {point: {"kind": bad}}
        yield point, {point: {bad: 1}}
    yield "sites.names.0", {"sites": {"names": [bad]}}
    yield "data.source", {"data": {"source": bad}}
    yield "data.partition.key", {"data": {"source": "x", "partition": {"key": bad}}}
    yield "data.label", {"data": {"source": "x", "label": bad}}
    yield "train.until.groups", {"train": {"until": {"groups": {bad: {"sites": ["a"]}}}}}
    yield "train.until.groups.g.sites.0", {"train": {"until": {"groups": {"g": {"sites": [bad]}}}}}
    yield "train.optimizer.kind", {"train": {"optimizer": {"kind": bad}}}
    yield "sample.layers.0", {"sample": {"kind": "importance", "layers": [bad]}}
    yield "layers.order.0", {"layers": {"kind": "divide", "order": [bad]}}


@pytest.mark.parametrize(("field", "given"), list(texts()))
async def test_half_a_surrogate_pair_is_refused_with_its_field(
    served: Served, field: str, given: Any
) -> None:
    code, why = await submitted(served.address, {"name": "x", "app": APP} | given)
    assert code is CODE.INVALID_ARGUMENT, why
    assert why.startswith(field), why
    assert why.isprintable()


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("data.partition", {"data": {"source": "x", "partition": nested(100)}}),
        ("data.partition", {"data": {"source": "x", "partition": nested(900)}}),
        ("pace", {"pace": nested(100)}),
        ("train.until.groups", {"train": {"until": {"groups": nested(30)}}}),
        ("app", {"app": "x" * 900_000 + ":app"}),
        ("app", {"app": "x" * 5000 + ":app"}),
        ("rule", {"rule": "x" * 5000}),
        ("rule", {"rule": "x" * 500_000}),
        ("data.source", {"data": {"source": "x" * 20_000}}),
        ("data.partition.a", {"data": {"source": "x", "partition": {"a": 10**4000}}}),
        ("data.partition.a", {"data": {"source": "x", "partition": {"a": 1 << 63}}}),
        ("sites.names.0", {"sites": {"names": ["x" * 20_000]}}),
        ("train.batch_size", {"train": {"batch_size": 1 << 32}}),
        ("survey.columns", {"survey": {"standardise": "local", "columns": 1 << 32}}),
        ("pace.lambda", {"rule": "semisync-fedavg", "pace": {"lambda": 1e12}}),
        ("pace.rounds", {"pace": {"rounds": 1 << 40}}),
        ("pace.rounds", {"rule": "radfed", "pace": {"rounds": 1_000_000, "hops": 10_000}}),
        ("pace.updates", {"rule": "async-fedavg", "pace": {"updates": 1 << 40}}),
        ("pace.deadline", {"pace": {"deadline": 1e300}}),
        ("sites.min", {"sites": {"min": 1 << 32}}),
        ("sites.wait", {"sites": {"wait": 1e300}}),
        ("stop.seconds", {"stop": {"seconds": 1e300}}),
        ("train.optimizer.lr", {"train": {"optimizer": {"lr": float("inf")}}}),
        ("validation.fraction", {"validation": {"fraction": float("nan")}}),
    ],
)
async def test_a_value_out_of_bounds_is_refused_in_one_sentence_with_its_field(
    served: Served, field: str, given: Any
) -> None:
    code, why = await submitted(served.address, {"name": "x", "app": APP} | given)
    assert code is CODE.INVALID_ARGUMENT, why
    assert why.startswith(field), why
    assert len(why) < 400
    assert "\n" not in why


async def test_a_job_at_the_edge_of_all_bounds_is_read_again_after_a_restart(
    tmp_path: Path, store: str
) -> None:
    documents: list[dict[str, Any]] = [
        {
            "data": {
                "source": "x" * 10_000,
                "partition": {"a": (1 << 63) - 1, "b": "é" * 10_000, "c": -(1 << 63)},
            }
        },
        {"data": {"source": "x", "partition": nested(17)}},
        {"data": {"source": "x", "partition": {"a": 5e-324, "b": 1e308, "c": float("nan")}}},
        {"app": "x" * 996 + ":app"},
        {"train": {"batch_size": 1 << 31, "epochs": 100_000, "optimizer": {"lr": 5e-324}}},
        {"rule": "semisync-fedavg", "pace": {"lambda": 10_000.0, "deadline": 1e9, "quorum": 1e6}},
        {"sites": {"min": 1_000_000, "together": 1_000_000, "wait": 1e9}, "stop": {"seconds": 1e9}},
        {"seed": (1 << 63) - 1},
    ]
    async with serving(tmp_path, store=store) as served:
        for number, given in enumerate(documents):
            document = {"name": f"x{number}", "app": APP, "sites": {"wait": 1e9}} | given
            code, why = await submitted(served.address, document)
            assert code is CODE.OK, why
        before = {runner.id: runner.machine.spec for runner in served.jobs.newest_first}
    async with serving(tmp_path, store=store) as served:
        for runner in served.jobs.newest_first:
            assert runner.machine.state.status == "waiting", runner.machine.state.reason
            assert runner.machine.spec.model_dump_json() == before[runner.id].model_dump_json()


def places(kind: Descriptor, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield every text field of a kind of message: its path, and a message that has invalid UTF-8 there."""
    for field in kind.fields:
        if field.message_type is None and field.type == FieldDescriptor.TYPE_STRING:
            yield field.name, bytes([*_tag(field.number), 3]) + b"\xed\xa0\x80"
        elif field.message_type is not None and depth < 5:
            for path, inner in places(field.message_type, depth + 1):
                yield f"{field.name}.{path}", bytes([*_tag(field.number), len(inner)]) + inner


def _tag(number: int) -> list[int]:
    tag = number << 3 | 2
    return [tag] if tag < 128 else [tag & 127 | 128, tag >> 7]


def broken_texts() -> Iterator[tuple[str, str, bytes]]:
    headers = {"Submit": operator_pb2.SubmitHeader.DESCRIPTOR, "Upload": fleet_pb2.UploadHeader.DESCRIPTOR}
    for method in sorted(TABLE):
        service, name = method.rpartition(".")[2].split("/") if method.startswith("/hansa") else ("", "")
        if service:
            protos: Any = fleet_pb2 if service == "Fleet" else operator_pb2
            kind = protos.DESCRIPTOR.services_by_name[service].methods_by_name[name].input_type
            kind = headers[name] if kind.full_name == RAW else kind
            yield from ((method, path, message) for path, message in places(kind))


@pytest.mark.parametrize(("method", "field", "message"), list(broken_texts()))
async def test_text_that_is_not_utf8_is_refused_with_its_field_by_every_rpc(
    served: Served, method: str, field: str, message: bytes
) -> None:
    async def messages() -> AsyncIterator[bytes]:
        yield message

    async def first(call: Any) -> None:
        async for _ in call:
            return

    async with grpc.aio.insecure_channel(served.address) as channel:
        code, why = await status(first(channel.stream_stream(method)(messages())))
    assert (code, why) == (CODE.INVALID_ARGUMENT, f"{field}: the text is not UTF-8")


def test_the_messages_with_broken_text_are_what_they_should_be() -> None:
    found = list(broken_texts())
    assert len({(method, field) for method, field, _ in found}) == len(found) > 30
    kind: Any = GetMessageClass(operator_pb2.JobRequest.DESCRIPTOR)
    (message,) = [message for method, _, message in found if method.endswith("/Show")]
    assert kind.FromString(message.replace(b"\xed\xa0\x80", b"abc")).job == "abc"
