"""Which roles may call which RPC: one row for every RPC. An RPC without a row cannot be called.

A row also says how large messages may be, how long the caller may be silent, and which sender the first
message claims; the guard compares this claim with the caller's certificate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from hansa.common.models.frames import FRAME
from hansa.common.models.model import MAX_TENSORS
from hansa.common.pki.caller import Role
from hansa.common.rpc.channel import MESSAGE
from hansa.common.rpc.decoding import Decoder
from hansa.common.values.errors import InvalidInput, TooLarge
from hansa.protos import fleet_pb2 as fleet

SMALL = 64 << 10  # bytes of a message that holds a few names
SILENCE = 300.0  # seconds without a frame after which a transfer is given up


@dataclass(frozen=True)
class Claim:
    """The sender that a message names."""

    site: str
    role: Role | None = None


@dataclass(frozen=True)
class Access:
    """What one RPC allows."""

    roles: frozenset[Role]
    first: int = SMALL  # bytes of the only or first message
    further: int = 0  # bytes of each further message
    silence: float | None = SILENCE  # seconds between messages; None: the servicer watches over it
    claim: Callable[[Any], Claim | None] = lambda _: None
    counted: str = ""  # the noun for calls of this kind, if they have their own limit
    most: int | None = None  # such calls under way for one caller, if fewer than of other kinds


def _site(message: Any) -> Claim:
    return Claim(message.site)


def _enrolled(message: fleet.FromSite) -> Claim:
    if message.WhichOneof("kind") != "enrol":
        raise InvalidInput("the first message must enrol")
    roles: dict[int, Role] = {fleet.LEARNER: "learner", fleet.EVALUATOR: "evaluator"}
    if message.enrol.role not in roles:
        raise InvalidInput("a daemon enrols as learner or evaluator")
    return Claim(message.enrol.site, roles[message.enrol.role])


_UPLOAD_HEADER = Decoder(fleet.UploadHeader.DESCRIPTOR)


def _uploader(message: bytes) -> Claim:
    try:
        return Claim(_UPLOAD_HEADER(message).site)
    except DecodeError:
        raise InvalidInput("the stream does not begin with an UploadHeader") from None


EVERYBODY: frozenset[Role] = frozenset(("controller", "learner", "evaluator", "operator", "viewer"))
LEARNER: frozenset[Role] = frozenset(("learner",))
SITE: frozenset[Role] = frozenset(("learner", "evaluator"))
OPERATOR: frozenset[Role] = frozenset(("operator",))
READER: frozenset[Role] = frozenset(("operator", "viewer"))  # sees results and who did what, but no model

TABLE: Mapping[str, Access] = {
    "/hansa.v1.Fleet/Attend": Access(SITE, first=FRAME, further=SMALL, silence=None, claim=_enrolled),
    "/hansa.v1.Fleet/Fetch": Access(SITE, first=4 * FRAME, claim=_site, counted="downloads"),
    "/hansa.v1.Fleet/Offer": Access(LEARNER, first=MESSAGE, claim=_site, counted="offers", most=4),
    "/hansa.v1.Fleet/Upload": Access(LEARNER, further=FRAME, claim=_uploader, counted="uploads"),
    "/hansa.v1.Fleet/Report": Access(SITE, first=8 * FRAME, claim=_site, counted="reports"),
    "/hansa.v1.Operator/Submit": Access(OPERATOR, first=MESSAGE, further=FRAME, counted="submissions"),
    "/hansa.v1.Operator/Show": Access(READER),
    "/hansa.v1.Operator/List": Access(READER),
    "/hansa.v1.Operator/History": Access(READER, counted="histories"),
    "/hansa.v1.Operator/Watch": Access(READER, counted="watches"),
    "/hansa.v1.Operator/Events": Access(READER, counted="event streams"),
    "/hansa.v1.Operator/Cancel": Access(OPERATOR),
    "/hansa.v1.Operator/Delete": Access(OPERATOR),
    "/hansa.v1.Operator/Audit": Access(READER, counted="audit streams"),
    "/hansa.v1.Operator/Logs": Access(OPERATOR, counted="requests for logs"),
    "/hansa.v1.Operator/Model": Access(OPERATOR, counted="downloads"),
    "/hansa.v1.Operator/Sites": Access(READER),
    "/hansa.v1.Operator/Status": Access(READER),
    "/grpc.health.v1.Health/Check": Access(EVERYBODY),
    "/grpc.health.v1.Health/Watch": Access(EVERYBODY),
}


def require_uncrowded(message: bytes) -> None:
    """Refuse a message that decodes to far more than its own size, such as millions of empty tensors.

    Every tensor of a manifest contains at least one byte of this value; honest ones have two or three.
    """
    if len(message) > FRAME and message.count(b"\x0a") > 5 * MAX_TENSORS:
        raise TooLarge(f"the message holds more than the {MAX_TENSORS} tensors that are allowed")
