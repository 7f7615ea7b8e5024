"""What an actor on a Ray cluster does: blocks of tasks, with models from Ray's object store."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hansa.common.values.errors import Refused
from hansa.common.values.ids import ModelKey
from hansa.simulation.crew.alike import difference, other_data, software
from hansa.simulation.crew.base import Outcome, Update
from hansa.simulation.crew.blocks import Block, BlockModels, Fetched, received, sent
from hansa.simulation.sites.data import VirtualData
from hansa.simulation.sites.desk import Desk

NOTHING = np.empty(0, np.uint8)
Get = Callable[[Any], Any]  # from Ray's object store


@dataclass(frozen=True)
class Opening:
    """What an actor needs to begin, and what it must have in common with the driver."""

    ref: str
    data: VirtualData
    batched: bool
    folder: str
    software: dict[str, str]
    digests: tuple[bytes, ...]


class Performer:
    """Does blocks in the process of an actor."""

    def __init__(self, opening: bytes, get: Get) -> None:
        wanted: Opening = received(opening)
        with contextlib.suppress(OSError):  # it is needed only for paths that begin there
            os.chdir(wanted.folder)
        import torch

        torch.set_num_threads(1)
        problem = difference(wanted.software, software(wanted.ref)) or other_data(wanted.data, wanted.digests)
        if problem:
            raise Refused(problem)
        self._get, self._models = get, BlockModels()
        self._desk = Desk(wanted.ref, wanted.data, self._models, wanted.batched)

    def do(self, packed: bytes, models: Mapping[ModelKey, Any]) -> list[Any]:
        """Do a block; return its outcomes without the payloads of updates, and the payloads."""
        block: Block = received(packed)
        self._models.take(models, partial(self._fetch, models))
        for task in block.over:
            self._desk.forget(task)
        outcomes = self._desk.do_all(block.assignments)
        payloads = [each.result.payload for each in outcomes if isinstance(each.result, Update)]
        return [sent([_without_payload(each) for each in outcomes]), *payloads]

    def _fetch(self, models: Mapping[ModelKey, Any], key: ModelKey) -> Fetched:
        manifest, payload = self._get(models[key])
        return received(manifest), payload


def _without_payload(outcome: Outcome) -> Outcome:
    update = outcome.result
    if not isinstance(update, Update):
        return outcome
    return replace(outcome, result=replace(update, payload=NOTHING))


def reunited(answer: list[Any]) -> list[Outcome]:
    """Return the outcomes of a block with the payloads that came beside them."""
    outcomes: list[Outcome] = received(answer[0])
    payloads = iter(answer[1:])
    return [
        replace(outcome, result=replace(outcome.result, payload=next(payloads)))
        if isinstance(outcome.result, Update)
        else outcome
        for outcome in outcomes
    ]
