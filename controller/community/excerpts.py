"""Parts of stored models: the model itself, or tensors beside it, each read as if it were a model."""

from collections.abc import Sequence

from hansa.common.models.auxiliary import auxiliary_infos
from hansa.common.models.frames import select
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import StoredModel


class Excerpt(StoredModel):
    """Some tensors of a stored model."""

    def __init__(self, model: StoredModel, names: Sequence[str]) -> None:
        manifest = model.manifest.part(names)
        self._model = model
        self._places = [model.manifest.spec.index[name] for name in manifest.spec.names]
        super().__init__(model.key, manifest, [model.peaks[place] for place in self._places])

    def read(self, index: int) -> bytes:
        """Return frame `index` of these tensors."""
        return next(select(self._model.layout, self._model.read, self._places, index))

    def close(self) -> None:
        """Close the stored model."""
        self._model.close()


class Zeros(StoredModel):
    """A model of zeros."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(ModelKey(""), Manifest(spec, (b"",) * len(spec.tensors)), [0.0] * len(spec.tensors))

    def read(self, index: int) -> bytes:
        """Return a frame of zeros."""
        return bytes(self.layout.frame_size(index))

    def close(self) -> None:
        """Do nothing: nothing is open."""


def own_part(model: StoredModel) -> StoredModel:
    """Return the model itself, without auxiliary tensors."""
    spec = model.manifest.spec
    return model if spec.own is spec else Excerpt(model, spec.own.names)


def auxiliary_part(model: StoredModel, name: str) -> StoredModel:
    """Return the auxiliary tensors of a name."""
    spec = model.manifest.spec
    return Excerpt(model, [info.name for info in auxiliary_infos(spec, name) if info.name in spec.index])
