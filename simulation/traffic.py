"""The bytes that models would take on the wire: a site is sent only tensors that it does not have yet."""

from collections.abc import Collection

from hansa.common.models.auxiliary import accompanied
from hansa.common.models.frames import Layout
from hansa.common.models.model import Manifest, ModelSpec
from hansa.controller.engine.events import Role


class Downloads:
    """What each daemon holds: the tensors of the last model that it fetched."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, Role], frozenset[bytes]] = {}

    def fetch(
        self, site: int, role: Role, manifests: Collection[Manifest], auxiliary: Collection[str]
    ) -> int:
        """Let a daemon fetch a model, after its base if it is partial; return the bytes that are sent."""
        sent, held = 0, self._held.get((site, role), frozenset())
        below: frozenset[bytes] = frozenset()
        for manifest in manifests:
            wanted = accompanied(manifest, auxiliary if len(manifests) == 1 else ())
            missing = [
                info
                for info, digest in zip(wanted.spec.tensors, wanted.digests, strict=True)
                if digest not in held
            ]
            sent += Layout(ModelSpec(tuple(missing))).size
            held = frozenset(wanted.digests)
            below |= held
        self._held[site, role] = below
        return sent
