"""The layers of a model: where it can be divided, and what stands on either side."""

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
        """How many layers come before that of each tensor."""
        place = {name: rank for rank, name in enumerate(self.names)}
        ranks = dict(enumerate(place[name] for name in self.model.layers))
        return {tensor.name: ranks.get(tensor.layer, 0) for tensor in self.model.tensors}

    def matrices(self) -> list[JsonValue]:
        """Return the weight matrices of each layer, without those of norms: an LSTM has several."""
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
        """Return the legal splits that leave parameters on both sides which the app has not frozen."""
        frozen = set(self.model.anatomy.frozen) if self.model.anatomy else ()
        ranks = self.ranks
        parameters = [t for t in self.model.tensors if t.role is Role.PARAM and t.layer not in frozen]
        trained = [ranks[t.name] for t in parameters]
        return [split for split in self.legal() if _between(trained, split)]

    def crossed(self, split: int) -> list[str]:
        """Say which parameters belong to both sides of a split."""
        ranks, ties = self.ranks, self.model.anatomy.ties if self.model.anatomy else ()
        crossing = [tie for tie in ties if _between([ranks[name] for name in tie if name in ranks], split)]
        return [f"tied parameter crosses the split: {' and '.join(tie)} are one" for tie in crossing]

    def faults(self, split: int) -> list[str]:
        """Say what is wrong with a split."""
        found = [f"{crossed}; divide elsewhere" for crossed in self.crossed(split)]
        return found if split in self.free() else [*found, "one side of it has nothing to train"]

    def misfits(self, split: int | None) -> list[Problem]:
        """Return why the model cannot be divided, or not by this split; none: the pre-pass will choose one."""
        count, at = len(self.model.layers), ("layers", "split")
        if not count:
            return [(("layers",), "no part of the model has a matrix of weights")]
        if count < 2:
            return [
                (
                    ("layers",),
                    f"the model has one layer ({self.model.layers[0]}), and two are needed to divide it",
                )
            ]
        if self.order and sorted(self.order) != sorted(self.model.layers):
            odd = sorted(set(self.order) ^ set(self.model.layers)) or ["a layer twice"]
            return [
                (
                    ("layers", "order"),
                    f"name each of the model's {count} layers once; wrong: {', '.join(odd[:5])}",
                )
            ]
        if self.blocks and (self.model.anatomy is None or len(self.model.anatomy.blocks) != count):
            return [(("layers", "blocks"), "the site that built the model told nothing of its blocks")]
        legal = self.legal()
        if not legal and self.blocks:
            return [(("layers", "blocks"), "the whole model is one block: there is no place to divide it")]
        free = self.free()
        if not free:
            return [
                (("layers",), "the app has frozen layers: wherever it is divided, one side has none to train")
            ]
        if split is None:
            tied = self.crossed(free[0])
            everywhere = all(self.crossed(each) for each in free)
            return [(("layers",), f"wherever it is divided, a {tied[0]}")] if everywhere else []
        if split >= count:
            possible = "only 1 is" if count == 2 else f"1 to {count - 1} are"
            return [(at, f"{split} is out of range: the model has {count} layers, so {possible} possible")]
        if split not in legal:
            near = ", ".join(map(str, legal))
            return [
                (
                    at,
                    f"layer {split} ({self.names[split - 1]}) is inside a block; between: {near}",
                )
            ]
        return [(at, wrong) for wrong in self.faults(split)]


def _between(ranks: Sequence[int], split: int) -> bool:
    """Whether some layers come before a split and some behind it."""
    return bool(ranks) and min(ranks) < split <= max(ranks)
