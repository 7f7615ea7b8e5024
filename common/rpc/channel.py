"""Connections: message sizes, keep-alive, addresses, certificates."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from hansa.common.models.frames import FRAME
from hansa.common.values.errors import InvalidInput

if TYPE_CHECKING:
    from hansa.common.rpc.tls import Credentials

DEFAULT_CONTROLLER = "127.0.0.1:7300"
MESSAGE = 16 * FRAME  # a manifest of MAX_TENSORS is larger than a frame
METADATA = 16 << 10  # bytes of headers
CONCURRENT = 20_000  # calls under way on the whole controller

COMMON = [
    ("grpc.max_receive_message_length", MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Windows of fixed size: probing costs a tenth of the speed, and memory per stream.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * FRAME),  # in flight in a stream: enough for 300 Mbit/s over 100 ms
]
SERVER = [
    *COMMON,
    ("grpc.so_reuseport", 0),  # a second controller on the port is an error, not a partner
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_metadata_size", METADATA),
    ("grpc.absolute_max_metadata_size", METADATA),
    ("grpc.max_concurrent_streams", 256),  # on one connection; further calls wait on the caller's side
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Time without a call; the other side connects again when it needs to.
    ("grpc.max_connection_idle_ms", 300_000),
]
CLIENT = [
    *COMMON,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # a restarted container may have another address
    ("grpc.enable_http_proxy", 0),  # a proxy set for web browsing is not meant for the federation
]
HURRY, PATIENCE = 5_000, 20_000  # milliseconds for making a connection
ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True)
class Endpoint:
    """A controller's address, and the folder with the certificate to present to it."""

    address: str
    tls: Path | None = None

    def __str__(self) -> str:
        return self.address


def parse_address(text: str) -> str:
    """Check that an address reads HOST:PORT."""
    match = ADDRESS.fullmatch(text)
    if not match or int(match[1]) > 65535:
        why = "is not an address" if not match else "is not an address: ports end at 65535"
        raise InvalidInput(f"{text!r} {why}; write HOST:PORT, for example 127.0.0.1:7300")
    return text


def is_loopback(address: str) -> bool:
    """Whether an address can only be reached from this machine."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def connect(
    address: str,
    largest: int = MESSAGE,
    credentials: "Credentials | None" = None,
    alone: bool = False,
    hurry: bool = False,
) -> grpc.aio.Channel:
    """Open a channel that accepts messages up to a size; nothing is sent until the first call.

    Channels of one process to one address share a connection, unless one is `alone`. With `hurry`, attempts
    to connect are given up early: the kernel retries ever more rarely, and a new attempt starts at once.
    """
    options = [
        *CLIENT,
        ("grpc.max_receive_message_length", largest),
        ("grpc.use_local_subchannel_pool", int(alone)),
        # Despite its name, this is the time limit of an attempt.
        ("grpc.min_reconnect_backoff_ms", HURRY if hurry else PATIENCE),
    ]
    if credentials is None:
        return grpc.aio.insecure_channel(parse_address(address), options=options)
    from hansa.common.rpc.tls import client_credentials

    return grpc.aio.secure_channel(parse_address(address), client_credentials(credentials), options=options)
