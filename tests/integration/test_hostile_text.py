"""Control characters that sites, operators and controllers write into any field print clean."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from hansa.common.models.frames import cut
from hansa.common.rpc import codec, task_codec
from hansa.common.rpc.channel import CLIENT
from hansa.common.rpc.methods import Stub, handler
from hansa.common.values.errors import InvalidInput
from hansa.common.values.history import Hop, Score, SiteEvaluation, Update, VersionView
from hansa.common.values.ids import PROTOCOL
from hansa.common.values.results import UpdateFacts
from hansa.common.values.settings.keep import BestSpec, KeepSpec
from hansa.common.values.tasks import Evaluate, Init, Task, Train
from hansa.common.values.views import (
    AuditView,
    DaemonView,
    EventView,
    JobView,
    SiteProgress,
    StatusView,
    SurveyView,
)
from hansa.common.values.wording.words import WITHIN_LINES
from hansa.protos import fleet_pb2, operator_pb2
from tests.e2e.conftest import hansa
from tests.hostile_text import (
    NASTY,
    name_of,
    on_a_terminal,
    require_clean,
    require_own_sequences,
    string_fields,
    with_text,
)
from tests.integration.attacker import CODE, status
from tests.support import LightSite, Served, filled, fleet_stub, job, nothing, sealed, serving, small_spec

OPERATOR = operator_pb2.DESCRIPTOR.services_by_name["Operator"]
JOB = {
    "name": "nasty",
    "app": "tests/app.py:app",
    "rule": "fedavg",
    "pace": {"kind": "sync", "rounds": 2},
    "sites": {"min": 1, "names": ["a"]},
    "train": {"optimizer": {"kind": "sgd"}, "until": {"kind": "adaptive", "groups": {"g": {"sites": ["a"]}}}},
    "init": "x",
    "operator": "somebody",
    "data": {"source": "digits"},
}


async def first_models(site: LightSite, task: Task) -> None:
    """Build version 0 and leave everything else to the test."""
    if isinstance(task.work, Init):
        await site.do(task)


async def nothing_at_all(site: LightSite, task: Task) -> None:
    """Leave everything to the test."""


async def open_task(served: Served, kind: type, **more: Any) -> Task:
    """Submit a job; return its first task of a kind."""
    runner = await served.submit(job(**more), None, nothing())
    async with asyncio.timeout(20):
        while not (
            found := [task for task in runner.machine.state.tasks.values() if isinstance(task.work, kind)]
        ):
            await runner.next_change().wait()
    return found[0]


async def offer(stub: Any, task: Task, path: Any) -> str:
    """Offer an update with a hostile text in one field; send its frames if the offer is accepted."""
    manifest, payload = sealed(small_spec(), filled(small_spec(), 1.0))
    facts = UpdateFacts(n_train=1, n_used=1, steps=1, epochs=1, seconds=0)
    base = fleet_pb2.OfferRequest(
        site="a", task=task.id, manifest=codec.manifest_to_wire(manifest), facts=codec.facts_to_wire(facts)
    )
    code, why = await status(stub.Offer(with_text(base, path, NASTY)))
    if code is CODE.OK:

        async def frames() -> AsyncIterator[bytes]:
            yield fleet_pb2.UploadHeader(site="a", task=task.id).SerializeToString()
            for frame in cut(payload):
                yield frame.tobytes()

        await status(stub.Upload(frames()))
    return why


async def attend_with_every_field(served: Served, stub: Any, stack: AsyncExitStack) -> None:
    """Enrol daemons, each with a hostile text in one field; those that are let in stay."""
    for number, path in enumerate(string_fields(fleet_pb2.FromSite.DESCRIPTOR)):
        enrol = fleet_pb2.Enrol(
            protocol=PROTOCOL, site=f"s{number}", role=fleet_pb2.LEARNER, instance=f"i{number}", version="1"
        )
        enrol.apps.add(ref="app.py:app", examples=1)
        first = fleet_pb2.FromSite(enrol=enrol)
        hostile = with_text(first, path, NASTY)
        said = [hostile] if hostile.HasField("enrol") else [first, hostile]

        async def words(said: list[Any] = said) -> AsyncIterator[Any]:
            for message in said:
                yield message
            await asyncio.Event().wait()

        call = stub.Attend(words())
        stack.callback(call.cancel)
        await status(call.read())
    old = fleet_pb2.Enrol(protocol=99, site=NASTY, role=fleet_pb2.LEARNER, version=NASTY)
    await status(anext(aiter(stub.Attend(iter([fleet_pb2.FromSite(enrol=old)])))))


async def submit(stub: Any, header: Any) -> None:
    async def words() -> AsyncIterator[bytes]:
        yield header.SerializeToString()

    await status(stub.Submit(words()))


def spoiled(document: Any) -> Any:
    """Yield copies of a document, each with a hostile text in one place: a value or a key."""
    if isinstance(document, str):
        yield NASTY
        yield f"{NASTY}:app"  # a reference of an app ends so
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from (document | {name: bad} for bad in spoiled(value))
            yield document | {NASTY: value}
    elif isinstance(document, list):
        for at, value in enumerate(document):
            yield from ([*document[:at], bad, *document[at + 1 :]] for bad in spoiled(value))


async def attack(served: Served, learner: LightSite, stub: Any, operators: Any) -> None:
    """Put the text into every field of every message that sites and operators send."""
    for path in string_fields(fleet_pb2.OfferRequest.DESCRIPTOR):
        learner.answer = first_models
        await offer(stub, await open_task(served, Train, name="offer"), path)
        learner.answer = nothing_at_all  # version 0 tells of the model's anatomy
        split = {"kind": "divide", "split": 1}
        await offer(stub, await open_task(served, Init, name="first", rule="divide", layers=split), path)
    for path in string_fields(fleet_pb2.TaskReport.DESCRIPTOR):
        for kind in (Train, Evaluate):
            learner.answer = first_models if kind is Train else LightSite.do
            for final in (False, True):
                task = await open_task(served, kind, name="report")
                base = fleet_pb2.TaskReport(site="a", task=task.id)
                if path[0].name == "failure":
                    base.failure.final = final
                else:
                    base.evaluation.n = 1
                await status(stub.Report(with_text(base, path, NASTY)))
    learner.answer = first_models
    for path in string_fields(fleet_pb2.FetchRequest.DESCRIPTOR):
        task = await open_task(served, Train, name="fetch")
        base_fetch = fleet_pb2.FetchRequest(site="a", model=task.models[0])
        await status(anext(aiter(stub.Fetch(with_text(base_fetch, path, NASTY)))))
    for path in string_fields(fleet_pb2.UploadHeader.DESCRIPTOR):
        header = with_text(fleet_pb2.UploadHeader(site="a", task="j1-1"), path, NASTY)

        async def start(header: Any = header) -> AsyncIterator[bytes]:
            yield header.SerializeToString()

        await status(stub.Upload(start()))
    for path in string_fields(operator_pb2.SubmitHeader.DESCRIPTOR):
        head = operator_pb2.SubmitHeader(job_json=json.dumps({"name": "sub", "app": "a.py:app"}))
        await submit(operators, with_text(head, path, NASTY))
    for document in spoiled(JOB):
        await submit(operators, operator_pb2.SubmitHeader(job_json=json.dumps(document)))
    requests = {
        "Model": operator_pb2.ModelRequest,
        "Events": operator_pb2.EventsRequest,
        "Logs": operator_pb2.LogsRequest,
    }
    for method in ("Show", "Cancel", "Delete", "Watch", "Model", "Events", "Logs"):
        asked: Any = requests.get(method, operator_pb2.JobRequest)
        for path in string_fields(asked.DESCRIPTOR):
            request = with_text(asked(), path, NASTY)
            call = getattr(operators, method)(request)
            once = method in ("Show", "Cancel", "Delete", "Logs")
            await status(call if once else anext(aiter(call)))


async def run(*arguments: str, cwd: Path, **env: Any) -> tuple[str, str]:
    done = await asyncio.to_thread(lambda: hansa(*arguments, cwd=cwd, **env))
    where = f"hansa {' '.join(arguments)}"
    require_clean(done.stdout, where)
    require_clean(done.stderr, where)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout, done.stderr


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_what_sites_and_operators_write_into_any_field_prints_clean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from hansa.common.process.logs import JsonFormatter, TextFormatter

    state = tmp_path / "state"
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(state))
        learner, evaluator = (LightSite(served.address, "a", role) for role in ("learner", "evaluator"))
        learner.answer, evaluator.answer = first_models, nothing_at_all
        learner.read_log = lambda _, __: [NASTY, NASTY]
        for site in (learner, evaluator):
            await stack.enter_async_context(site.attending())
        channel, stub = fleet_stub(served.address)
        stack.push_async_callback(channel.close)
        await attack(served, learner, stub, Stub(channel, OPERATOR))
        await attend_with_every_field(served, stub, stack)
        jobs = [runner.id for runner in served.jobs.newest_first]
        assert len(jobs) > 20
        there = {"HANSA_CONTROLLER": served.address, "HANSA_STATE": str(state)}
        listed, _ = await run("job", "list", cwd=tmp_path, **there)
        assert listed.count("\n") == len(jobs) + 1
        failed = [runner for runner in served.jobs.newest_first if runner.machine.ended]
        assert failed
        told = [
            runner.id for runner in served.jobs.newest_first if "owned" in runner.view().model_dump_json()
        ]
        assert told  # otherwise nothing hostile came so far, and nothing is shown
        for shown in told:
            await run("job", "show", shown, cwd=tmp_path, **there)
            await run("job", "events", shown, cwd=tmp_path, **there)
        for name in ("a", "s1"):
            await run("site", "logs", name, cwd=tmp_path, **there)
        await run("job", "watch", failed[0].id, cwd=tmp_path, **there)
        await run("job", "compare", told[0], told[-1], cwd=tmp_path, **there)
        await run("job", "verify", failed[0].id, cwd=tmp_path, **there)
        await run("job", "cancel", NASTY.replace("\0", ""), cwd=tmp_path, **there)
        await run("site", "list", cwd=tmp_path, **there)
        await run("controller", "status", cwd=tmp_path, **there)
        audited, _ = await run("audit", "show", cwd=tmp_path, **there)
        assert "owned" in audited
        await run("audit", "verify", cwd=tmp_path, **there)
        said, _ = await run("audit", "show", "--controller", served.address, cwd=tmp_path)
        assert "owned" in said
        for words in (("job", "list"), ("job", "show", told[0]), ("site", "list"), ("audit", "show")):
            said, _ = await run(*words, "--json", cwd=tmp_path, **there)
            json.loads(said)
        for words in (
            ("job", "list"),
            ("job", "show", told[0]),
            ("job", "watch", failed[0].id),
            ("site", "list"),
        ):
            seen = await asyncio.to_thread(on_a_terminal, *words, **there)
            require_own_sequences(seen, f"hansa {' '.join(words)} on a terminal")
    for record in caplog.records:
        require_clean(TextFormatter().format(record), "a line of a log")
        require_clean(JsonFormatter().format(record), "a line of a log")


class HostileController:
    """Answers operators with views in which every string is hostile."""

    async def Submit(self, messages: Any, context: Any) -> Any:  # noqa: N802
        await context.abort(CODE.INVALID_ARGUMENT, f"no: {NASTY}")

    async def Show(self, request: Any, context: Any) -> Any:  # noqa: N802
        return operator_pb2.JobReply(view_json=hostile(JOB_VIEW))

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        return operator_pb2.ListReply(views_json=[hostile(JOB_VIEW)] * 2)

    async def History(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield operator_pb2.HistoryReply(versions_json=[hostile(version) for version in JOB_VIEW.history])

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        for state in ("waiting", "running", "completed"):
            yield operator_pb2.JobReply(view_json=hostile(JOB_VIEW, status=state))

    async def Events(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        event = EventView(sequence=1, time="x", kind="joined", text="x", site="a", version=1)
        yield operator_pb2.EventsReply(events_json=[hostile(event)] * 2)

    async def Cancel(self, request: Any, context: Any) -> Any:  # noqa: N802
        await context.abort(CODE.NOT_FOUND, NASTY)

    async def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        return operator_pb2.DeleteReply(job=NASTY)

    async def Audit(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        record = AuditView(sequence=1, at=1.0, who="x", what="x", about="x", why="x", previous="x")
        yield operator_pb2.AuditReply(records_json=[hostile(record)] * 2)

    async def Logs(self, request: Any, context: Any) -> Any:  # noqa: N802
        return operator_pb2.LogsReply(role=NASTY, lines=[NASTY] * 2)

    async def Model(self, request: Any, context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        manifest, payload = sealed(small_spec(), filled(small_spec(), 1.0))
        header = fleet_pb2.FetchHeader(manifest=codec.manifest_to_wire(manifest))
        header.manifest.tensors[0].name = NASTY
        yield header.SerializeToString()
        yield payload.tobytes()

    async def Sites(self, request: Any, context: Any) -> Any:  # noqa: N802
        view = DaemonView(
            site="a", role="learner", state="attending", since="", doing=("t",), apps={"a": "b"}
        )
        return operator_pb2.SitesReply(views_json=[hostile(view)] * 2)

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        view = StatusView(
            controller="", version="", pid=1, address="", store="", state="", since="", sites=0,
            jobs={"x": 1}, peak_memory_mib=0,
        )  # fmt: skip
        return operator_pb2.StatusReply(view_json=hostile(view))


JOB_VIEW = JobView(
    job="j1",
    name="x",
    status="running",
    warnings=("x",),
    metrics={"accuracy": 0.5},
    examples=3,
    version=1,
    sites=(SiteProgress(site="a", state="training"),),
    survey=SurveyView(examples={"a": 1}, classes={"a": (1, 2)}),
    history=(
        VersionView(
            version=1,
            round=1,
            seconds=1,
            metrics={"accuracy": 0.5},
            examples=3,
            evaluated=True,
            unevaluated={"b": "x"},
            updates=[Update(site="a", weight=1.0, steps=1, metrics={"loss": 0.5})],
            scores={"a": Score(basis="x", coverage=1.0, missing={"b": "x"})},
            lost={"b": "x"},
            evaluations={"a": SiteEvaluation(examples=3, metrics={"loss": 0.5})},
            hops=(
                Hop(hop=1, seconds=1, trained=1, sites=("a",), skipped=0, divergence=0.5, lost={"a": "x"}),
            ),
            note="x",
            diagnostics={
                "weigh": {
                    "warning": "x",
                    "allocation": {"a": [1.0]},
                    "shares": [1.0],
                    "weights": {"a": 1.0},
                    "why": "x",
                }
            },
        ),
    ),
)
FIXED = (
    "allocation",
    "shares",
    "weights",
    "why",
    "warning",
    "weigh",
    "accuracy",
)  # words that make the rest be shown


def hostile(view: Any, **fixed: Any) -> str:
    """Return a view with hostile text in all its strings, and in the keys of its mappings."""
    fields = {name for kind in type(view).__mro__ for name in getattr(kind, "model_fields", {})}
    fields |= {
        *VersionView.model_fields,
        *Hop.model_fields,
        *Score.model_fields,
        *SiteEvaluation.model_fields,
        *KeepSpec.model_fields,
        *BestSpec.model_fields,
        *Update.model_fields,
        *SurveyView.model_fields,
    }
    fields |= {*SiteProgress.model_fields, *FIXED}

    def spoil(value: Any) -> Any:
        if isinstance(value, str):
            return NASTY
        if isinstance(value, dict):
            return {name if name in fields else NASTY: spoil(each) for name, each in value.items()}
        return [spoil(each) for each in value] if isinstance(value, list) else value

    return json.dumps(spoil(view.model_dump(mode="json")) | fixed)


@pytest.mark.timeout(300)
async def test_what_a_hostile_controller_answers_prints_clean(tmp_path: Path) -> None:
    server = grpc.aio.server(options=CLIENT)
    server.add_generic_rpc_handlers((handler(OPERATOR, HostileController()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    (tmp_path / "job.yaml").write_text("app: app.py:app\n")
    there = {"HANSA_CONTROLLER": f"127.0.0.1:{port}"}
    try:
        for words in (
            ("job", "submit", "job.yaml"),
            ("job", "list"),
            ("job", "show", "j1"),
            ("job", "watch", "j1"),
            ("job", "events", "j1"),
            ("job", "cancel", "j1"),
            ("job", "delete", "--yes", "j1"),
            ("audit", "show", "--controller", f"127.0.0.1:{port}"),
            ("site", "logs", "a"),
            ("job", "model", "j1", "-o", "m.safetensors"),
            ("job", "compare", "j1", "j2", "--concordance"),
            ("job", "compare", "j1", "j2", "--html", "both.html"),
            ("job", "report", "j1"),
            ("site", "list"),
            ("controller", "status"),
        ):
            said, complaint = await run(*words, cwd=tmp_path, **there)
            assert said or complaint
            if words[:2] in (("job", "list"), ("job", "show"), ("site", "list"), ("job", "watch")):
                assert "owned" in said
                as_json, _ = await run(*words, "--json", cwd=tmp_path, **there)
                json.loads(as_json)
                seen = await asyncio.to_thread(on_a_terminal, *words, **there)
                require_own_sequences(seen, f"hansa {' '.join(words)} on a terminal")
                assert "owned" in seen
    finally:
        await server.stop(None)
    for page in ("j1.html", "both.html"):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert "owned" in text
        assert not WITHIN_LINES.search(text), f"control characters in {page}"


@pytest.mark.parametrize(
    "work",
    [
        {"train": fleet_pb2.TrainWork(model="j1/v0", epochs=1, batch_size=1, accumulate=1)},
        {"evaluate": fleet_pb2.EvaluateWork(model="j1/v0")},
    ],
)
def test_a_site_refuses_tasks_with_names_that_no_controller_gives(work: dict[str, Any]) -> None:
    free = (
        "app",
        "terms.operator",
    )  # what they may be, the site's owner says: they are compared, never used as names
    base = fleet_pb2.Task(id="j1-1", job="j1", site="a", app="app.py:app", **work)
    if "train" in work:
        base.train.optimizer.MergeFrom(fleet_pb2.Optimizer(kind="sgd", lr=0.1))
        base.train.plugins.add(name="proximal", args="{}")
        base.train.source.MergeFrom(fleet_pb2.LocalPlugin(name="x", args="{}"))
    task_codec.task_from_wire(base)
    for path in string_fields(fleet_pb2.Task.DESCRIPTOR):
        if name_of(path) in free:
            continue
        with pytest.raises((InvalidInput, ValueError)):
            task_codec.task_from_wire(with_text(base, path, NASTY))
