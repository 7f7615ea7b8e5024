"""Handlers and stubs from service descriptors; messages of type Raw travel as plain bytes.

grpcio's generated code always encodes messages, which costs a copy of each frame. Here the descriptor's types
decide, and `hansa.v1.Raw` means "not encoded".
"""

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from hansa.common.rpc.decoding import Decoder

RAW = "hansa.v1.Raw"
FACTORIES = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def _encode(kind: Descriptor) -> Callable[[Any], bytes] | None:
    return None if kind.full_name == RAW else GetMessageClass(kind).SerializeToString


def _decode(kind: Descriptor) -> Callable[[bytes], Any] | None:
    return None if kind.full_name == RAW else GetMessageClass(kind).FromString


def _shape(method: MethodDescriptor) -> tuple[bool, bool]:
    return method.client_streaming, method.server_streaming


def handler(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """Return a handler that serves each method of a service by the servicer's method of the same name."""
    table = {
        method.name: FACTORIES[_shape(method)][1](
            getattr(servicer, method.name),
            request_deserializer=None if method.input_type.full_name == RAW else Decoder(method.input_type),
            response_serializer=_encode(method.output_type),
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, table)


class Stub:
    """The client's side of a service: one callable per method, under its name."""

    def __init__(self, channel: grpc.aio.Channel, service: ServiceDescriptor) -> None:
        self._calls = {}
        for method in service.methods:
            connect = getattr(channel, FACTORIES[_shape(method)][0])
            self._calls[method.name] = connect(
                f"/{service.full_name}/{method.name}",
                request_serializer=_encode(method.input_type),
                response_deserializer=_decode(method.output_type),
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return self._calls[name]
        except KeyError:
            raise AttributeError(name) from None
