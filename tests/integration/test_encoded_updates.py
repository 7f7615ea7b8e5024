"""Encoded updates over real gRPC: models computed again from what was sent, bytes, hostile sites."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.encodings import encoding_of
from hansa.common.encodings.int8 import Int8
from hansa.common.models.frames import FRAME, Layout, cut, pack, seal, views
from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.rpc import codec
from hansa.common.site.transfer import hand_in
from hansa.common.values.errors import Rejected, Stale
from hansa.common.values.history import Version
from hansa.common.values.ids import ModelKey, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Init, Task, Train
from hansa.controller.engine.events import CancelAsked
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import Finding, verify
from hansa.learner.training.encoding import encode
from hansa.protos import fleet_pb2
from tests.integration.attacker import CODE, only_init, status, training
from tests.support import LightSite, Served, ended, filled, job, model_of, nothing, serving
from tests.waiting import eventually

SPEC = ModelSpec(
    (
        TensorInfo("weight", "float32", (200, 300), Role.PARAM),
        TensorInfo("bias", "float32", (1,), Role.PARAM),
        TensorInfo("running_var", "float32", (30,), Role.STAT),
        TensorInfo("batches", "int64", (), Role.COUNT),
    )
)
SITES = {"a": 10, "b": 20, "c": 30}
KINDS: dict[str, dict[str, Any]] = {
    "float16": {"kind": "float16"},
    "int8": {"kind": "int8"},
    "topk": {"kind": "topk", "share": 0.05},
}
SHARES = {"float16": 1 / 2, "int8": 1 / 4, "topk": 2 * 0.05}
FACTS = UpdateFacts(n_train=10, n_used=10, steps=1, epochs=1, seconds=0)
Arrays = dict[str, np.ndarray]


@dataclass
class Log:
    """What sites were sent, what they trained, and what went over the wire."""

    models: dict[int, Arrays] = field(default_factory=dict)
    sent: dict[str, tuple[int, Arrays]] = field(default_factory=dict)  # by task
    digests: dict[str, str] = field(default_factory=dict)  # of what was sent
    predicted: dict[str, str] = field(
        default_factory=dict
    )  # of what the site expects the controller to decode
    trained: dict[str, np.ndarray] = field(default_factory=dict)  # by site: the sum of all differences
    received: dict[str, np.ndarray] = field(default_factory=dict)
    memory: dict[str, Arrays] = field(default_factory=dict)

    async def answer(self, site: LightSite, task: Task) -> None:
        """Train and encode as a learner does, and remember everything."""
        if isinstance(task.work, Init):
            await site.send(task, filled(SPEC, 1))
            return
        assert isinstance(task.work, Train)
        model = self.models[task.work.version] = await site.fetch(task.work.model)
        rng = np.random.default_rng([ord(site.name), task.round])
        moved = rng.standard_normal((200, 300)).astype(np.float32) / 10
        update: Arrays = {
            "weight": model["weight"] + moved,
            "bias": model["bias"] + np.float32(0.125),
            "running_var": rng.random(30).astype(np.float32),
            "batches": model["batches"] + 1,
        }
        none = np.zeros((200, 300))
        self.trained[site.name] = self.trained.get(site.name, none) + (update["weight"] - model["weight"])
        assert task.work.encoding is not None
        memory = self.memory.setdefault(site.name, {})
        manifest, payload = encode(encoding_of(task.work.encoding), SPEC, model, update, memory)
        self.sent[task.id] = task.work.version, views(Layout(manifest.spec), payload)
        self.digests[task.id] = manifest.digest.hex()
        self.predicted[task.id] = packed(SPEC, update)[0].digest.hex()
        facts = FACTS.model_copy(update={"n_train": site.examples})
        receipt = await hand_in(site.attendance, task.id, manifest, payload, facts)
        assert receipt.digest == self.digests[task.id], "the receipt is for what was sent"
        assert receipt.decoded == self.predicted[task.id], "and for what it stands for"


def decoded(sent: Arrays, model: Arrays) -> Arrays:
    """Decode what was sent by the book, without Hansa's code."""
    base = model["weight"].astype(np.float64)
    if "weight@float16" in sent:
        moved = sent["weight@float16"].astype(np.float64)
    elif "weight@int8" in sent:
        moved = sent["weight@int8"].astype(np.float64) * sent["weight@scale"].astype(np.float64)[:, None]
    else:
        moved = np.zeros(base.size)
        for index, value in zip(sent["weight@indices"], sent["weight@values"], strict=True):
            moved[int(index)] = float(value)
        moved = moved.reshape(base.shape)
    if "bias@float16" in sent:
        bias = model["bias"].astype(np.float64) + sent["bias@float16"].astype(np.float64)
    else:  # it would not have become smaller
        bias = sent["bias"].astype(np.float64)
    return {"weight": base + moved, "bias": bias, "running_var": sent["running_var"].astype(np.float64)}


def recompute(history: Sequence[Version], log: Log, last: Arrays) -> int:
    """Compute every version again from the payloads; return how many were compared."""
    models = log.models | {len(history) - 1: last}
    for record in history[1:]:
        sums: Arrays = {}
        for update in record.updates:
            version, sent = log.sent[update.task]
            assert version == record.version - 1
            for name, array in decoded(sent, models[version]).items():
                sums[name] = sums.get(name, np.zeros_like(array)) + SITES[update.site] * array
        for name, array in sums.items():
            difference = np.abs(array / sum(SITES.values()) - models[record.version][name]).max()
            assert difference <= 1e-6, f"version {record.version}, {name}: {difference}"
        assert int(models[record.version]["batches"]) == record.version + 1
    return len(history) - 1


async def attend(served: Served, stack: AsyncExitStack, log: Log) -> None:
    for name, examples in SITES.items():
        site = LightSite(served.address, name, spec=SPEC, examples=examples, answer=log.answer)
        await stack.enter_async_context(site.attending())


def findings(folder: Path) -> list[Finding]:
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        return [finding for record in backends.journal.jobs() for finding in verify(backends, record)[2]]


def stored(folder: Path) -> list[ModelKey]:
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        return backends.store.keys()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_community_model_follows_from_what_was_sent_also_after_a_restart(
    tmp_path: Path, kind: str
) -> None:
    log = Log()
    spec = job(transfer=KINDS[kind], pace={"rounds": 6}, sites={"min": 3, "wait": 60})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        runner = await served.submit(spec, None, nothing())
        while runner.machine.state.version < 2:
            await runner.next_change().wait()
    assert not runner.machine.ended
    assert findings(tmp_path) == [], "it can be checked in mid-job, too"
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        # A site that was cut off in a task starts the task again from what it remembered before.
        await attend(served, sites, log)
        again = await ended(served.jobs.runner(runner.id))
        assert again.view().status == "completed", again.view().reason
        last = model_of(served, again)
    history = again.machine.state.history
    assert recompute(history, log, last) == 6
    assert findings(tmp_path) == []
    assert len(stored(tmp_path)) == 4  # the last model and the three updates that it is made of


def on_the_wire(sent: Arrays) -> int:
    """Return the bytes of an update; every tensor is padded."""
    return sum(-(-array.nbytes // 64) * 64 for array in sent.values())


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_in_the_history_are_those_on_the_wire(tmp_path: Path, kind: str) -> None:
    log, plain = Log(), 200 * 300 * 4
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        spec = job(transfer=KINDS[kind], pace={"rounds": 4}, sites={"min": 3})
        runner = await ended(await served.submit(spec, None, nothing()))
        history = runner.machine.state.history
        for record in history[2:]:  # with version 1 came version 0
            sizes = [on_the_wire(log.sent[update.task][1]) for update in record.updates]
            assert [update.bytes_up for update in record.updates] == sizes
            assert record.bytes_up == sum(sizes)
            assert math.isclose(record.bytes_up, 3 * plain * SHARES[kind], rel_tol=0.03)
        metrics = runner.view().bytes_up
        assert metrics == sum(record.bytes_up for record in history)
    for name, memory in log.memory.items():
        total = log.trained[name] - memory["transfer/weight"]
        moved = sum(
            decoded(sent, log.models[version])["weight"] - log.models[version]["weight"]
            for task, (version, sent) in log.sent.items()
            if any(u.task == task and u.site == name for record in history for u in record.updates)
        )
        np.testing.assert_allclose(moved, total, atol=1e-5, err_msg="feedback loses nothing")


async def test_receipts_have_both_digests_and_a_changed_model_is_found(tmp_path: Path) -> None:
    log = Log()
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        spec = job(transfer={"kind": "int8"}, pace={"rounds": 2}, sites={"min": 3})
        runner = await ended(await served.submit(spec, None, nothing()))
        texts = [entry.receipt for entry in served.journal.entries(runner.id) if entry.receipt]
    receipts = {receipt.task: receipt for receipt in map(Receipt.model_validate_json, texts)}
    for task, digest in log.digests.items():
        receipt = receipts[TaskId(task)]
        assert receipt.digest == digest
        assert receipt.decoded == log.predicted[task], "the site knows what its update is decoded to"
        assert receipt.sealed() == receipt
        forged = receipt.model_copy(update={"decoded": digest})
        assert forged.sealed().hash != receipt.hash, "the hash covers both digests"
    key = next(iter(runner.machine.state.members.values()))[0].model
    path = tmp_path / "store" / "models" / str(key)
    whole = path.read_bytes()
    path.write_bytes(whole[:99] + bytes([whole[99] ^ 1]) + whole[100:])
    assert [finding.where for finding in findings(tmp_path)] == [f"model {key}"]


async def test_without_encoding_models_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    digests = []
    for number, more in enumerate(({}, {"transfer": {"kind": "none"}})):
        async with serving(tmp_path / str(number)) as served, AsyncExitStack() as sites:
            for name, examples in SITES.items():
                await sites.enter_async_context(
                    LightSite(served.address, name, examples=examples, value=examples / 7).attending()
                )
            runner = await ended(await served.submit(job(**more, sites={"min": 3}), None, nothing()))
            digests.append([entry.digest for entry in runner.view().history])
    assert digests[0] == digests[1]


# Sites that send something else.


def packed(spec: ModelSpec, arrays: Arrays) -> tuple[Manifest, np.ndarray]:
    payload = pack(spec, arrays)
    return seal(spec, payload), payload


def offer(task: Task, manifest: Manifest) -> fleet_pb2.OfferRequest:
    wire, facts = codec.manifest_to_wire(manifest), codec.facts_to_wire(FACTS)
    return fleet_pb2.OfferRequest(site="a", task=task.id, manifest=wire, facts=facts)


async def asked(served: Served, kind: str) -> tuple[Any, Task, Manifest, Arrays]:
    """Return a job, its only site's task, and an honest update for it as it is sent."""
    runner, task = await training(served, transfer=KINDS[kind], pace={"rounds": 2})
    assert isinstance(task.work, Train)
    assert task.work.encoding is not None
    start, update = filled(SPEC, 1), filled(SPEC, 1)
    update["weight"] = update["weight"] + np.linspace(-1, 1, 60000, dtype=np.float32).reshape(200, 300)
    manifest, payload = encode(encoding_of(task.work.encoding), SPEC, start, update, {})
    return runner, task, manifest, views(Layout(manifest.spec), payload)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as controller:
        yield controller


@pytest.mark.parametrize("kind", KINDS)
async def test_an_update_that_is_not_in_the_encoding_is_refused_before_a_byte_is_sent(
    served: Served, kind: str
) -> None:
    async with LightSite(served.address, "a", spec=SPEC, answer=only_init).attending() as site:
        runner, task, _, _ = await asked(served, kind)
        code, text = await status(site.attendance.stub.Offer(offer(task, packed(SPEC, filled(SPEC, 1))[0])))
        assert (code, "missing weight@" in text, "unexpected weight" in text) == (CODE.DATA_LOSS, True, True)
        assert served.federation.store.keys(f"{runner.id}/") == [runner.machine.state.current]


def wrong(manifest: Manifest, arrays: Arrays) -> dict[str, tuple[ModelSpec, Arrays]]:
    """Return manifests that no encoder would send, by what the refusal says."""
    tensors = manifest.spec.tensors
    longer = TensorInfo("weight@indices", "uint32", (3001,), Role.COUNT)
    wider = TensorInfo("weight@indices", "uint64", (3000,), Role.COUNT)
    return {
        "weight@indices (uint32 [3001]) should be": (
            ModelSpec((longer, *tensors[1:])),
            arrays | {"weight@indices": np.arange(3001, dtype=np.uint32)},
        ),
        "weight@indices (uint64 [3000]) should be": (
            ModelSpec((wider, *tensors[1:])),
            arrays | {"weight@indices": np.arange(3000, dtype=np.uint64)},
        ),
        "missing weight@values": (ModelSpec((tensors[0], *tensors[2:])), arrays),
        "not in the model's order": (ModelSpec((tensors[1], tensors[0], *tensors[2:])), arrays),
    }


@pytest.mark.parametrize("number", range(4))
async def test_pieces_of_wrong_names_shapes_or_types_are_refused_before_a_byte_is_sent(
    served: Served, number: int
) -> None:
    async with LightSite(served.address, "a", spec=SPEC, answer=only_init).attending() as site:
        _, task, manifest, arrays = await asked(served, "topk")
        why, (spec, changed) = list(wrong(manifest, arrays).items())[number]
        code, text = await status(site.attendance.stub.Offer(offer(task, packed(spec, changed)[0])))
        assert (code, why in text) == (CODE.DATA_LOSS, True), text


def repeated(arrays: Arrays) -> Arrays:
    indices = arrays["weight@indices"].copy()
    indices[5] = indices[4]
    return {"weight@indices": indices}


def outside(arrays: Arrays) -> Arrays:
    indices = arrays["weight@indices"].copy()
    indices[-1] = 60000
    return {"weight@indices": indices}


def changed(name: str, value: float) -> Any:
    def change(arrays: Arrays) -> Arrays:
        array = arrays[name].copy()
        array.flat[7] = value
        return {name: array}

    return change


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("topk", repeated, "tensor weight: indices are repeated or not in ascending order"),
        ("topk", outside, "tensor weight: index 60000 is out of range: there are 60000 numbers"),
        ("topk", changed("weight@values", math.nan), "tensor weight@values holds NaN or infinite values"),
        ("int8", changed("weight@scale", math.inf), "tensor weight@scale holds NaN or infinite values"),
        ("int8", changed("weight@scale", -1.0), "tensor weight: a scale is negative or not finite"),
        ("int8", changed("weight@scale", 3.4e38), "tensor weight holds NaN or infinite values once it is"),
        ("float16", changed("weight@float16", math.inf), "weight@float16 holds NaN or infinite values"),
    ],
)
async def test_a_hostile_encoding_is_quarantined_and_the_others_go_on(
    tmp_path: Path, kind: str, change: Any, why: str
) -> None:
    log, reasons = Log(), []

    async def lie(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Init):
            await site.send(task, filled(SPEC, 1))
            return
        assert isinstance(task.work, Train)
        assert task.work.encoding is not None
        model = await site.fetch(task.work.model)
        update = {name: array + np.asarray(0.5, array.dtype) for name, array in model.items()}
        manifest, payload = encode(encoding_of(task.work.encoding), SPEC, model, update, {})
        arrays = views(Layout(manifest.spec), payload)
        hostile = packed(manifest.spec, arrays | change(arrays))
        try:
            await hand_in(site.attendance, task.id, *hostile, FACTS)
        except Rejected as error:
            reasons.append(str(error))

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        await sites.enter_async_context(LightSite(served.address, "x", spec=SPEC, answer=lie).attending())
        spec = job(transfer=KINDS[kind], pace={"rounds": 2}, sites={"min": 4})
        runner = await ended(await served.submit(spec, None, nothing()))
        assert runner.view().status == "completed", runner.view().reason
        last = model_of(served, runner)
        await eventually(lambda: len(reasons) == 2)  # the job may end before the site has its answer
    history = runner.machine.state.history
    assert recompute(history, log, last) == 2
    assert {why in record.lost["x"] for record in history[1:]} == {True}, history[1].lost
    assert len(stored(tmp_path)) == 4, "nothing of it is left"
    assert findings(tmp_path) == []


async def test_an_encoded_upload_is_resumed_where_it_broke_off(tmp_path: Path) -> None:
    large = ModelSpec((TensorInfo("weight", "float32", (5, FRAME), Role.PARAM),))
    async with serving(tmp_path) as served:
        async with LightSite(served.address, "a", spec=large, answer=only_init).attending() as site:
            runner, task = await training(served, transfer={"kind": "int8"}, pace={"rounds": 1})
            assert isinstance(task.work, Train)
            assert task.work.encoding is not None
            start, chance = filled(large, 0), np.random.default_rng(1)
            update = {"weight": chance.standard_normal((5, FRAME)).astype(np.float32)}
            manifest, payload = encode(encoding_of(task.work.encoding), large, start, update, {})
            frames = [frame.tobytes() for frame in cut(payload)]
            assert len(frames) == 6  # instead of 20
            stub = site.attendance.stub
            assert (await stub.Offer(offer(task, manifest))).start == 0

            async def some() -> AsyncIterator[bytes]:
                yield fleet_pb2.UploadHeader(site="a", task=task.id).SerializeToString()
                for frame in frames[:3]:
                    yield frame

            assert (await status(stub.Upload(some())))[0] is not CODE.OK
            assert (await stub.Offer(offer(task, manifest))).start == 3
            await hand_in(site.attendance, task.id, manifest, payload, FACTS)
            async with asyncio.timeout(30):
                await ended(runner)
        assert model_of(served, runner)["weight"].tobytes() == update["weight"].tobytes()


async def test_an_encoding_that_fails_at_the_controller_ends_the_job_and_is_named(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LightSite(served.address, "a", spec=SPEC, answer=only_init).attending() as site:
        runner, task, manifest, arrays = await asked(served, "int8")
        monkeypatch.setattr(Int8, "decode", lambda *_: 1 / 0)
        assert (await status(site.attendance.stub.Offer(offer(task, manifest))))[0] is CODE.OK

        async def whole() -> AsyncIterator[bytes]:
            yield fleet_pb2.UploadHeader(site="a", task=task.id).SerializeToString()
            for frame in cut(pack(manifest.spec, arrays)):
                yield frame.tobytes()

        assert (await status(site.attendance.stub.Upload(whole())))[0] is CODE.UNKNOWN
        await ended(runner)
        assert runner.view().reason == "encoding 'int8': ZeroDivisionError: division by zero"


async def test_an_update_whose_task_ends_while_it_is_decoded_is_not_needed_any_more(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that it started from may be gone by then, which is nothing to end a job for."""
    async with LightSite(served.address, "a", spec=SPEC, answer=only_init).attending() as site:
        runner, task, manifest, arrays = await asked(served, "int8")

        def cancel(point: str) -> None:
            if point == "update-encoded":
                runner.post(CancelAsked(at=runner.now()))
                served.federation.store.delete(task.models[0])

        monkeypatch.setattr("hansa.common.process.faults.reach", cancel)
        with pytest.raises(Stale):
            await hand_in(site.attendance, task.id, manifest, pack(manifest.spec, arrays), FACTS)
        await ended(runner)
        assert runner.view().status == "cancelled", runner.view().reason
