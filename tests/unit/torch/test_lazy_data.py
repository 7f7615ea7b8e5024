"""Batches of Datasets: their forms, their seeds, and what is said about those that cannot be used."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.data.lazy import LazyExamples
from hansa.common.site.rehearsal import rehearse
from hansa.common.torch.data import Batch, outputs_of, scores_of
from hansa.common.torch.lazy import LazyData
from hansa.common.torch.metrics import measure
from hansa.common.values.errors import InvalidData, Refused

HERE = Path("site.h5")
FEATURES = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
LABELS = [0, 1, 1, 0, 1, 0]
ORDER = [torch.tensor([4, 1]), torch.tensor([0, 2, 5])]


class Two(nn.Module):
    """A network that takes two inputs, and returns its scores with something else."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> Any:
        scores = self.one(left) + self.two(right)
        return {"logits": scores, "hidden": scores * 2} if self.training else (scores, scores * 2)


def of(rows: list[Any], **more: Any) -> tuple[App, LazyData]:
    """Return an app whose data are these examples, and the data."""
    fields: dict[str, Any] = {
        "model": lambda: nn.Linear(3, 2),
        "classes": 2,
        "data": lambda _path, _split: rows,
    }
    app = App(**fields | more)
    examples = app.load(HERE, "train")
    assert isinstance(examples, LazyExamples)
    return app, LazyData(app, examples, "cpu")


def pairs() -> list[Any]:
    return list(zip(FEATURES, LABELS, strict=True))


def batches(data: LazyData, seed: int = 5, augment: bool = True) -> list[Batch]:
    return list(data.batches(iter(ORDER), seed, augment))


def test_batches_have_the_rows_that_are_asked_for() -> None:
    _, data = of(pairs())
    found = batches(data)
    assert [torch.equal(each.inputs, FEATURES[rows]) for each, rows in zip(found, ORDER, strict=True)]
    assert [each.targets.tolist() for each in found] == [[1, 1], [0, 1, 0]]
    assert [each.size for each in found] == [2, 3]
    whole = list(data.in_order())
    assert torch.equal(whole[0].inputs, FEATURES)


@pytest.mark.parametrize("form", ["tuple", "dictionary"])
def test_networks_take_several_inputs_and_return_several_outputs(form: str) -> None:
    rows: list[Any] = (
        [(x, -x, y) for x, y in pairs()]
        if form == "tuple"
        else [{"right": -x, "left": x, "labels": y} for x, y in pairs()]
    )
    app, data = of(rows, model=Two)
    network = Two()
    batch = next(data.in_order())
    scores = network(FEATURES, -FEATURES)["logits"]
    assert torch.equal(scores_of(outputs_of(network, batch.inputs)), scores)
    assert measure(app, network, data).n == 6
    rehearse(app, app.load(HERE, "train"), HERE, "cpu")


def _drawn(example: Any) -> Any:
    drawn = torch.rand(()), torch.tensor(np.random.rand()), torch.tensor(random.random())
    return torch.stack(drawn), example[1]


def test_what_is_random_follows_from_the_seed_and_the_batch_alone() -> None:
    _, data = of(pairs(), augment=_drawn)
    first, again, other = batches(data), batches(data), batches(data, seed=6)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a.inputs, b.inputs) for a, b in zip(first, other, strict=True))
    assert torch.equal(batches(data, augment=False)[0].inputs, FEATURES[ORDER[0]])
    drawn = [float(torch.rand(())) for _ in data.batches(iter(ORDER), 5, True)]
    plain = [float(torch.rand(())) for _ in data.batches(iter(ORDER), 5, False)]
    assert drawn == plain, "what a step draws does not depend on what was drawn to read its batch"
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("rows", "collate", "message"),
    [
        (pairs(), lambda _: None, "a batch must have inputs with tensors.*but is NoneType"),
        (pairs(), lambda _: [torch.zeros(2)], r"but is \(float32 \[2\]\)"),
        (pairs(), lambda _: {"x": torch.zeros(2, 3)}, r"but is \{x: float32 \[2, 3\]\}.*`labels`"),
        (pairs(), lambda _: 1 / 0, r"collate= failed \(2 examples\): ZeroDivisionError"),
        ([(torch.zeros(3), 0), (torch.zeros(4), 1)], None, "do not make up a batch; give the app collate="),
        ([("a word", 0), ("another", 1)], None, r"inputs with tensors"),
    ],
)
def test_a_collate_that_returns_nonsense_is_named(
    rows: list[Any], collate: Callable[[Any], Any] | None, message: str
) -> None:
    app, _ = of(rows, collate=collate)
    with pytest.raises(InvalidData, match=rf"site\.h5: .*{message}"):
        rehearse(app, app.load(HERE, "train"), HERE, "cpu")


def test_the_rehearsal_shows_a_batch_that_does_not_fit_the_network() -> None:
    app, _ = of([(torch.zeros(4), 0), (torch.ones(4), 1)])
    with pytest.raises(
        InvalidData, match=r"inputs float32 \[2, 4\] and the targets int64 \[2\]; the network"
    ):
        rehearse(app, app.load(HERE, "train"), HERE, "cpu")


def test_errors_of_datasets_and_of_augment_name_the_example(caplog: pytest.LogCaptureFixture) -> None:
    class Holey(list[Any]):
        def __getitem__(self, row: Any) -> Any:
            if row == 5:
                raise OSError("truncated file")
            return super().__getitem__(row)

    _, data = of(Holey(pairs()))
    with pytest.raises(Refused, match="failed at example 5 of 6: OSError: truncated file; repair"):
        batches(data)
    assert "Traceback" in caplog.text
    _, data = of(pairs(), augment=lambda example: example[7])
    with pytest.raises(InvalidData, match="augment= failed at example 4: IndexError"):
        batches(data)


def test_rows_are_read_together_if_a_dataset_can_do_that() -> None:
    asked: list[list[int]] = []

    class Together(list[Any]):
        def __getitems__(self, rows: list[int]) -> list[Any]:
            asked.append(rows)
            return [self[row] for row in rows]

    _, data = of(Together(pairs()))
    batches(data)
    assert asked == [[4, 1], [0, 2, 5]]
