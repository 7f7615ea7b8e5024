"""How connections are made: sizes, keep-alive, addresses."""

import re

import grpc

from hansa.common.errors import InvalidInput
from hansa.common.frames import FRAME

MESSAGE = 16 * FRAME  # a manifest of MAX_TENSORS is larger than a frame

COMMON = [
    ("grpc.max_receive_message_length", MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),  # windows of fixed size: probing costs a tenth of the speed, and memory per stream
]
SERVER = [
    *COMMON,
    ("grpc.so_reuseport", 0),  # a second controller on the port is an error, not a lottery
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.lookahead_bytes", FRAME),  # a connection keeps two or three times that, used or not
    ("grpc.experimental.tcp_max_read_chunk_size", 256 << 10),
]
CLIENT = [
    *COMMON,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.http2.lookahead_bytes", 4 * FRAME),
    ("grpc.enable_http_proxy", 0),  # a proxy set for web browsing is not meant for the federation
]
ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


def parse_address(text: str) -> str:
    """Check that an address reads HOST:PORT."""
    match = ADDRESS.fullmatch(text)
    if not match or int(match[1]) > 65535:
        raise InvalidInput(f"{text!r} is no address: write HOST:PORT, for example 127.0.0.1:7300")
    return text


def is_loopback(address: str) -> bool:
    """Whether an address can only be reached from this machine."""
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def connect(address: str, largest: int = MESSAGE) -> grpc.aio.Channel:
    """Open a channel that takes messages up to a size; nothing is sent until the first call."""
    options = [*CLIENT, ("grpc.max_receive_message_length", largest)]
    return grpc.aio.insecure_channel(parse_address(address), options=options)
