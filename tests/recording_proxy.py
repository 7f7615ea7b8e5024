"""Keeps what passes between sites and a controller: a gRPC proxy that passes every message on as it is."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from hansa.common.models.frames import Layout, views
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.rpc.channel import COMMON
from hansa.common.rpc.codec import facts_from_wire, manifest_from_wire
from hansa.common.rpc.methods import FACTORIES
from hansa.common.rpc.task_codec import task_from_wire
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task
from hansa.protos import fleet_pb2

Arrays = dict[str, np.ndarray]
THREADS = 64  # every open call takes one
METHODS = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].methods_by_name


@dataclass(frozen=True)
class Call:
    """A call of a site, message by message."""

    method: str
    up: list[bytes] = field(default_factory=list)
    down: list[bytes] = field(default_factory=list)


class RecordingProxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A proxy in front of a controller, with every call that went through it."""

    def __init__(self, controller: str) -> None:
        self._channel = grpc.insecure_channel(controller, options=COMMON)
        self.address = ""
        self.calls: list[Call] = []

    @contextmanager
    def listening(self) -> Iterator["RecordingProxy"]:
        """Listen on loopback until the block ends."""
        server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[self], options=COMMON)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield self
        finally:
            server.stop(grace=None).wait()
            self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return a handler that passes messages on, whichever of the four kinds the method is."""
        path = str(handler_call_details.method)
        method = METHODS[path.rpartition("/")[2]]
        kind, make = FACTORIES[method.client_streaming, method.server_streaming]
        forward = getattr(self._channel, kind)(path)

        def started(request: Any, context: grpc.ServicerContext) -> tuple[Call, Any]:
            record = Call(method.name)
            self.calls.append(record)
            messages = _kept(request if method.client_streaming else [request], record.up)
            start = forward if method.server_streaming else forward.future
            call = start(messages if method.client_streaming else next(messages))
            context.add_callback(call.cancel)
            return record, call

        def answer(request: Any, context: grpc.ServicerContext) -> bytes:
            record, call = started(request, context)
            with _status_of(call, context):
                record.down.append(call.result())
            return record.down[0]

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            record, call = started(request, context)
            with _status_of(call, context):
                yield from _kept(call, record.down)

        return make(stream if method.server_streaming else answer)


def _kept(messages: Iterable[bytes], record: list[bytes]) -> Iterator[bytes]:
    for message in messages:
        record.append(message)
        yield message


@contextmanager
def _status_of(call: Any, context: grpc.ServicerContext) -> Iterator[None]:
    """Answer with the controller's error, if it answers with one."""
    try:
        yield
    except grpc.RpcError:
        context.set_trailing_metadata(call.trailing_metadata() or ())
        context.abort(call.code(), call.details())


class Transcript:
    """What calls have carried: tasks and models to the sites, updates from them."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.tasks: dict[str, Task] = {}
        self.offers: dict[str, list[tuple[Manifest, UpdateFacts]]] = {}  # by task; repeated ones, too
        self.updates: dict[str, Arrays] = {}  # by task
        self.models: dict[str, Arrays] = {}  # by key; version 0 is the update of a task
        tensors: dict[bytes, np.ndarray] = {}  # by digest: what a site has is not sent to it again
        for call in list(calls):
            match call.method:
                case "Attend":
                    for message in map(fleet_pb2.ToSite.FromString, call.down):
                        if message.HasField("task"):
                            self.tasks[message.task.id] = task_from_wire(message.task)
                case "Offer":
                    offer = fleet_pb2.OfferRequest.FromString(call.up[0])
                    what = manifest_from_wire(offer.manifest), facts_from_wire(offer.facts)
                    self.offers.setdefault(offer.task, []).append(what)
                case "Upload":
                    header = fleet_pb2.UploadHeader.FromString(call.up[0])
                    manifest = self.offers[header.task][-1][0]
                    if header.start == 0 and len(call.up) == 1 + Layout(manifest.spec).frames:
                        self.updates[header.task] = _arrays(manifest.spec, call.up[1:])
                case "Fetch" if call.down:
                    self._enter_model(call, tensors)

    def _enter_model(self, call: Call, tensors: dict[bytes, np.ndarray]) -> None:
        header = fleet_pb2.FetchHeader.FromString(call.down[0])
        manifest = manifest_from_wire(header.manifest)
        sent = ModelSpec(tuple(manifest.spec.tensors[index] for index in header.sent))
        if len(call.down) != 1 + Layout(sent).frames:
            return  # the site was killed meanwhile
        digests = dict(zip(manifest.spec.names, manifest.digests, strict=True))
        tensors |= {digests[name]: array for name, array in _arrays(sent, call.down[1:]).items()}
        model = fleet_pb2.FetchRequest.FromString(call.up[0]).model
        self.models[model] = {
            info.name: tensors[digests[info.name]].reshape(info.shape) for info in manifest.spec.tensors
        }


def _arrays(spec: ModelSpec, frames: list[bytes]) -> Arrays:
    return views(Layout(spec), np.frombuffer(b"".join(frames), np.uint8))
