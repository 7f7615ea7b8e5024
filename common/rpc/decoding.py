"""Decodes messages. If a text is not UTF-8, the error names its field, which protobuf does not do."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from hansa.common.values.errors import InvalidInput


class Decoder:
    """Decodes messages of one kind; raises DecodeError, or InvalidInput if a text is not UTF-8."""

    def __init__(self, kind: Descriptor) -> None:
        self._kind = kind
        self._decode = GetMessageClass(kind).FromString

    def __call__(self, message: bytes) -> Any:
        """Return the decoded message."""
        try:
            return self._decode(message)
        except DecodeError:
            field = bad_text(message, self._kind)
            if field:
                raise InvalidInput(f"{field}: the text is not UTF-8") from None
            raise


def bad_text(message: bytes, kind: Descriptor) -> str:
    """Return the path of the first text in a message that is not UTF-8; "" if there is none."""
    try:
        for field, inner in _fields(message, kind):
            if field.type == FieldDescriptor.TYPE_STRING:
                try:
                    inner.decode()
                except UnicodeDecodeError:
                    return str(field.name)
            elif field.message_type and (path := bad_text(inner, field.message_type)):
                return f"{field.name}.{path}"
    except (IndexError, ValueError):
        pass  # the message is broken in another way, too
    return ""


def _fields(message: bytes, kind: Descriptor) -> Iterator[tuple[FieldDescriptor, bytes]]:
    """Yield the texts and inner messages of a message, as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:  # the wire type
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                size, at = _varint(message, at)
                field = kind.fields_by_number.get(tag >> 3)
                if field is not None:
                    yield field, message[at : at + size]
                at += size
            case _:
                raise ValueError("an obsolete wire type")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number that is stored seven bits to the byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")
