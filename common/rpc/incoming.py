"""A model on its way to us: a header and frames, put together over as many connections as it takes."""

from collections.abc import Callable

import numpy as np
from blake3 import blake3
from google.protobuf.message import DecodeError

from hansa.common.models.frames import FRAME, FrameCheck, allocate
from hansa.common.models.model import Manifest, ModelSpec, check_manifest
from hansa.common.rpc import codec
from hansa.common.values.errors import Rejected, Unreachable
from hansa.protos import fleet_pb2 as fleet

VAIN = 20  # tries in a row that the controller answers without a further frame
CHANGES = 8  # times that it begins with another model than it began with


class Incoming:
    """What has come of a model. It stays when a connection breaks, and the next one goes on from there.

    A controller that answers and brings nothing cannot keep us for ever: tries without a further frame are
    counted.
    """

    def __init__(self, finite: bool, room: Callable[[int], np.ndarray] | None = None) -> None:
        self._finite, self._room = finite, room
        self._check: FrameCheck | None = None
        self._begun = 0  # how much was here when the newest connection began
        self._vain = self._changes = 0
        self.header = b""  # digest of the header, which says what the frames are of
        self.origin = ""  # what the header says of the model besides
        self.manifest = Manifest(ModelSpec(()), ())
        self.payload = np.empty(0, np.uint8)

    @property
    def start(self) -> int:
        """The first frame that is missing."""
        return self._check.next if self._check else 0

    @property
    def part(self) -> ModelSpec:
        """The tensors that travel, in the payload's order."""
        assert self._check is not None
        return self._check.manifest.spec

    @property
    def missing(self) -> int | None:
        """Bytes that are still to come; None before the header is here."""
        return self._check.sealer.layout.size - self.start * FRAME if self._check else None

    def begin(self, message: bytes) -> None:
        """Take the first message of a connection: nothing if it goes on with what we have, or else a header."""
        self._vain = self._vain + 1 if self.start == self._begun else 1
        if self._vain > VAIN:
            raise Rejected(
                f"{VAIN} tries in a row to download a model brought nothing after frame {self.start}"
            )
        if message or not self._check:
            self._changes += 1
            if self._changes > CHANGES:
                raise Rejected(f"the controller began {CHANGES} times with another model than before")
            self._take(message)
        self._begun = self.start

    def _take(self, message: bytes) -> None:
        try:
            header = fleet.FetchHeader.FromString(message)
        except DecodeError:
            raise Rejected("the download does not begin with a header") from None
        manifest = codec.manifest_from_wire(header.manifest)
        check_manifest(manifest)
        part = _part(manifest, list(header.sent))
        self._check = FrameCheck(part, self._finite)
        layout = self._check.sealer.layout
        self.payload = allocate(layout, self._room(layout.size) if self._room else None)
        self.manifest, self.header, self.origin = manifest, blake3(message).digest(), header.origin_json

    def feed(self, frame: bytes) -> None:
        """Take the next frame, on any thread; raise Rejected if it cannot be right."""
        assert self._check is not None
        at = self._check.next * FRAME
        self._check.feed(frame)
        self.payload[at : at + len(frame)] = np.frombuffer(frame, np.uint8)

    def finish(self) -> None:
        """Raise Unreachable if frames are missing still, and Rejected if one was wrong, which a cut may have hidden."""
        if not (self._check and self._check.complete):
            raise Unreachable("the download ended early")
        self._check.finish()


def _part(manifest: Manifest, sent: list[int]) -> Manifest:
    tensors = manifest.spec.tensors
    if any(b <= a for a, b in zip([-1, *sent], [*sent, len(tensors)], strict=True)):
        raise Rejected(
            "the header of the download names tensors that its manifest does not have, or in another order"
        )
    return Manifest(
        ModelSpec(tuple(tensors[i] for i in sent), manifest.spec.layers),
        tuple(manifest.digests[i] for i in sent),
    )
