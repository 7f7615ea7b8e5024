"""Completes a community model: what travels, and the rest as the app builds it (personal-models §3)."""

import numpy as np

from hansa.common.app import load_app
from hansa.common.models.frames import Layout, pack, seal, views
from hansa.common.models.model import Manifest, difference
from hansa.common.torch import networks
from hansa.common.torch.resident import resident_of
from hansa.common.values.errors import InvalidApp, Refused
from hansa.common.values.resolved import ModelOrigin


def completed(
    manifest: Manifest, payload: np.ndarray, origin: ModelOrigin | None, ref: str | None
) -> tuple[Manifest, np.ndarray, ModelOrigin | None]:
    """Return the whole model. The backbone must be the job's; personal tensors are as the app begins."""
    if origin is None or origin.resolved is None:
        raise Refused("the controller does not say how the model was made, so it cannot be completed")
    if origin.travel.whole:
        return manifest, payload, origin
    job = origin.resolved.job
    app = load_app(ref or str(job["app"]))
    network = networks.build(app, int(str(job["seed"])), "cpu")
    resident = resident_of(network, origin.travel)
    if wrong := difference(manifest.spec, resident.spec.subset(resident.sets.travelling)):
        raise InvalidApp(f"--app {ref}: the app's model is not the job's: {wrong}")
    if resident.backbone != origin.backbone:
        raise Refused(
            f"--app {ref}: its tensors that do not travel have the digest {resident.backbone}, and those of"
            f" the job have {origin.backbone}: it is another app, or has other weights"
        )
    arrays = networks.arrays_of(network, resident.spec.names) | views(Layout(manifest.spec), payload)
    whole = pack(resident.spec, arrays)
    return seal(resident.spec, whole), whole, None  # an origin says what the controller has
