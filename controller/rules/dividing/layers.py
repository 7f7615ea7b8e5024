"""The layers of a model: where it can be divided, and what is on either side."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from hansa.common.job.spec import Problem
from hansa.common.models.model import Role
from hansa.controller.plugin.outline import Outline


@dataclass(frozen=True)
class Layers:
    """The layers of a model. A split is how many of them come before the cut."""

    model: Outline
    order: tuple[str, ...] = ()  # the layers in forward order; none: as the model registers them
    blocks: bool = False  # divide only between blocks

    @property
    def names(self) -> tuple[str, ...]:
        """The layers in forward order."""
        return self.order or self.model.layers

    @property
    def ranks(self) -> dict[str, int]:
        """How many layers come before each tensor's layer."""
        place = {name: rank for rank, name in enumerate(self.names)}
        ranks = dict(enumerate(place[name] for name in self.model.layers))
        return {tensor.name: ranks.get(tensor.layer, 0) for tensor in self.model.tensors}

    def matrices(self) -> list[JsonValue]:
        """Return the weight matrices of each layer, without norms; a layer such as an LSTM has several."""
        return [self._matrices(self.model.layers.index(name)) for name in self.names]

    def _matrices(self, layer: int) -> list[JsonValue]:
        own = [t for t in self.model.tensors if t.layer == layer and t.role is Role.PARAM and not t.norm]
        return [t.name for t in own if len(t.shape) >= 2]

    def legal(self) -> list[int]:
        """Return after which layers the model may be divided."""
        names, anatomy = self.names, self.model.anatomy
        if not self.blocks or anatomy is None:
            return list(range(1, len(names)))
        block = [anatomy.blocks[self.model.layers.index(name)] for name in names]
        return [split for split in range(1, len(names)) if not set(block[:split]) & set(block[split:])]

    def free(self) -> list[int]:
        """Return the legal splits with parameters on both sides that the app has not frozen."""
        frozen = set(self.model.anatomy.frozen) if self.model.anatomy else ()
        ranks = self.ranks
        parameters = [t for t in self.model.tensors if t.role is Role.PARAM and t.layer not in frozen]
        trained = [ranks[t.name] for t in parameters]
        return [split for split in self.legal() if _between(trained, split)]

    def crossed(self, split: int) -> list[str]:
        """Name the tied parameters that are on both sides of a split."""
        ranks, ties = self.ranks, self.model.anatomy.ties if self.model.anatomy else ()
        crossing = [tie for tie in ties if _between([ranks[name] for name in tie if name in ranks], split)]
        return [f"tied parameter crosses the split: {' and '.join(tie)} are one" for tie in crossing]

    def faults(self, split: int) -> list[str]:
        """Return what is wrong with a split."""
        faults = [f"{crossed}; divide elsewhere" for crossed in self.crossed(split)]
        return faults if split in self.free() else [*faults, "one side of it has nothing to train"]

    def misfits(self, split: int | None) -> list[Problem]:
        """Return why the model cannot be divided, or not at this split; None: the pre-pass chooses one."""
        return self._model_misfits() or (self._undividable() if split is None else self._split_misfits(split))

    def _model_misfits(self) -> list[Problem]:
        """Return why the model cannot be divided at all."""
        count = len(self.model.layers)
        if not count:
            return [(("layers",), "no part of the model has a matrix of weights")]
        if count < 2:
            why = f"the model has one layer ({self.model.layers[0]}), and two are needed to divide it"
            return [(("layers",), why)]
        if self.order and sorted(self.order) != sorted(self.model.layers):
            odd = sorted(set(self.order) ^ set(self.model.layers)) or ["a layer twice"]
            why = f"name each of the model's {count} layers once; wrong: {', '.join(odd[:5])}"
            return [(("layers", "order"), why)]
        if self.blocks and (self.model.anatomy is None or len(self.model.anatomy.blocks) != count):
            return [(("layers", "blocks"), "the site that built the model did not describe its blocks")]
        if self.blocks and not self.legal():
            return [(("layers", "blocks"), "the whole model is one block: there is no place to divide it")]
        if not self.free():
            why = "the app has frozen layers: wherever the model is divided, one side has nothing to train"
            return [(("layers",), why)]
        return []

    def _undividable(self) -> list[Problem]:
        """Return a problem if a tied parameter crosses every split that could be chosen."""
        splits = self.free()
        if not all(self.crossed(split) for split in splits):
            return []
        return [(("layers",), f"wherever the model is divided, a {self.crossed(splits[0])[0]}")]

    def _split_misfits(self, split: int) -> list[Problem]:
        count, at = len(self.model.layers), ("layers", "split")
        if split >= count:
            possible = "only 1 is" if count == 2 else f"1 to {count - 1} are"
            return [(at, f"{split} is out of range: the model has {count} layers, so {possible} possible")]
        legal = self.legal()
        if split not in legal:
            near = ", ".join(map(str, legal))
            why = f"layer {split} ({self.names[split - 1]}) is inside a block; possible splits: {near}"
            return [(at, why)]
        return [(at, fault) for fault in self.faults(split)]


def _between(ranks: Sequence[int], split: int) -> bool:
    """Whether some layers come before a split and some after it."""
    return bool(ranks) and min(ranks) < split <= max(ranks)
