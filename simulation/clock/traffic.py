"""The bytes that models would take on the wire: a site is sent only tensors that it does not have yet."""

from collections import OrderedDict
from collections.abc import Collection, Sequence

from hansa.common.models.auxiliary import accompanied
from hansa.common.models.frames import Layout
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.tasks import Train
from hansa.controller.engine.events import Role
from hansa.controller.transfers.downloads import header_of
from hansa.controller.transfers.wanted import wanted_update

RECENT = 1024  # downloads whose bytes are remembered; the sites of a round are sent the same
Tensors = frozenset[bytes]  # by their digests


class Downloads:
    """What each daemon holds: the tensors of the last model that it fetched."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, Role], Tensors] = {}
        self._recent: OrderedDict[tuple[Tensors, bytes, tuple[str, ...]], tuple[int, Tensors]] = OrderedDict()

    def fetch(self, site: int, role: Role, manifests: Sequence[Manifest], auxiliary: Collection[str]) -> int:
        """Let a daemon fetch a model, after its base if it is partial; return the bytes that are sent."""
        if not manifests:
            return 0
        sent, held = 0, self._held.get((site, role), frozenset())
        known: list[Tensors] = []
        for manifest in manifests:
            beside = tuple(auxiliary) if len(manifests) == 1 else ()
            bytes_, held = self._sent(manifest, beside, held)
            sent += bytes_
            known.append(held)
        self._held[site, role] = held if len(known) == 1 else frozenset().union(*known)
        return sent

    def __getstate__(self) -> dict[str, object]:
        """Return what is saved of it."""
        return {"_held": self._held, "_recent": OrderedDict()}

    def forget(self, site: int) -> None:
        """Let both daemons of a site begin anew."""
        for role in ("learner", "evaluator"):
            self._held.pop((site, role), None)

    def _sent(self, manifest: Manifest, beside: tuple[str, ...], held: Tensors) -> tuple[int, Tensors]:
        """Return the bytes of a download, with its header, and what the daemon has then."""
        which = (held, manifest.digest, beside)
        if which in self._recent:
            self._recent.move_to_end(which)
            return self._recent[which]
        wanted = accompanied(manifest, beside)
        missing = [i for i, digest in enumerate(wanted.digests) if digest not in held]
        frames = Layout(ModelSpec(tuple(wanted.spec.tensors[i] for i in missing))).size
        self._recent[which] = len(header_of(wanted, missing)) + frames, frozenset(wanted.digests)
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        return self._recent[which]


class UpdateSizes:
    """The bytes of updates."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[object, ...], int] = {}

    def of(self, work: Train, base: ModelSpec) -> int | None:
        """Return the bytes of a task's update; None if that depends on its encoding."""
        if work.encoding is not None:
            return None
        kind = (work.tensors, work.auxiliary, base)
        if kind not in self._sizes:
            self._sizes[kind] = Layout(wanted_update(work, base)[0]).size
        return self._sizes[kind]
