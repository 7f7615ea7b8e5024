"""A model that is being downloaded: a header and frames, over as many connections as it takes."""

from collections.abc import Callable

import numpy as np
from blake3 import blake3
from google.protobuf.message import DecodeError

from hansa.common.models.frames import FRAME, FrameCheck, allocate
from hansa.common.models.model import Manifest, ModelSpec, check_manifest
from hansa.common.rpc import codec
from hansa.common.values.errors import Rejected, Unreachable
from hansa.protos import fleet_pb2 as fleet

FUTILE = 20  # tries in a row in which the controller answers without a further frame
CHANGES = 8  # times that it may begin with another model than before


class Incoming:
    """The part of a model that has arrived. If the connection breaks, the next one continues from there.

    Tries without a further frame are counted, so that a controller that answers but sends nothing cannot hold
    us for ever.
    """

    def __init__(self, finite: bool, room: Callable[[int], np.ndarray] | None = None) -> None:
        self._finite, self._room = finite, room
        self._check: FrameCheck | None = None
        self._begun = 0  # frames that had arrived when the newest connection began
        self._futile = self._changes = 0
        self.header = b""  # digest of the header, which describes the frames
        self.origin = ""  # the model's origin, if the header has it
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
        """Bytes that are still missing; None before the header has arrived."""
        return self._check.sealer.layout.size - self.start * FRAME if self._check else None

    def begin(self, message: bytes) -> None:
        """Take the first message of a connection: empty if it continues what we have, otherwise a header."""
        self._futile = self._futile + 1 if self.start == self._begun else 1
        if self._futile > FUTILE:
            raise Rejected(
                f"{FUTILE} attempts in a row to download a model brought nothing after frame {self.start}"
            )
        if message or not self._check:
            self._changes += 1
            if self._changes > CHANGES:
                raise Rejected(f"the controller began {CHANGES} times with a different model")
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
        """Take the next frame, on any thread; raise Rejected if it is wrong."""
        assert self._check is not None
        at = self._check.next * FRAME
        self._check.feed(frame)
        self.payload[at : at + len(frame)] = np.frombuffer(frame, np.uint8)

    def finish(self) -> None:
        """Raise Unreachable if frames are missing, and Rejected if one was wrong."""
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
