"""Decodes callers' messages into values, and refuses an invalid message with one line."""

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from pydantic import ValidationError

from hansa.common.job.check import located, problems
from hansa.common.rpc.decoding import Decoder
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import plain

T = TypeVar("T")
SHOWN = 3  # faults of an invalid message that are named


def header_of(kind: Any, message: bytes) -> Any:
    """Decode the first message of a stream of raw frames."""
    try:
        return Decoder(kind.DESCRIPTOR)(message)
    except DecodeError:
        raise InvalidInput(f"the stream does not begin with a {kind.DESCRIPTOR.name}") from None


def parsed(parse: Callable[[Any], T], wire: Any, what: str = "") -> T:
    """Turn a message into a value, or say in one line what is wrong with it."""
    try:
        return parse(wire)
    except ValueError as error:
        shown = problems(error)[:SHOWN] if isinstance(error, ValidationError) else []
        faults = "; ".join(located(problem, {}) for problem in shown)
        raise InvalidInput(what + plain(faults or str(error))) from None
