"""Loss, confusion matrix and label counts of a module, as sums that can be pooled over sites."""

import torch
from torch import nn

from hansa.common.app import App
from hansa.common.torch.data import Data, loss_of, outputs_of, scores_of
from hansa.common.values.results import Evaluation


@torch.no_grad()
def measure(app: App, module: nn.Module, data: Data) -> Evaluation:
    """Evaluate a module in evaluation mode; without data the report is empty and counts for nothing."""
    module.eval()
    classes = app.classes or 0
    confusion = torch.zeros(classes if app.task == "classification" else 0, classes, dtype=torch.int64)
    labels = torch.zeros(classes if app.task == "multilabel" else 0, 3, dtype=torch.int64)
    loss, targets = 0.0, 0
    for inputs, y, size in data.in_order():
        outputs = outputs_of(module, inputs)
        match app.task:
            case "classification":
                confusion += _confusion(scores_of(outputs), y, classes)
            case "multilabel":
                labels += _hits(scores_of(outputs), y)
        loss += float(loss_of(app, outputs, y)) * size
        targets += y.numel() if app.task == "classification" else size
    if not targets:
        return Evaluation(n=0, loss_sum=0.0)
    # Models with several targets per example (next characters, pixels) count targets, not rows.
    return Evaluation(
        n=targets, loss_sum=loss * (targets / len(data)), confusion=confusion.tolist(), labels=labels.tolist()
    )


def _confusion(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> torch.Tensor:
    """Count examples by true class (row) and predicted class (column)."""
    if outputs.shape[1] != classes:
        raise ValueError(f"the model gives {outputs.shape[1]} scores, but the app has classes={classes}")
    predicted = outputs.argmax(dim=1)
    counts = torch.bincount((y * classes + predicted).flatten().cpu(), minlength=classes * classes)
    return counts.reshape(classes, classes)


def _hits(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Count TP, FP and FN (columns) of each label (row); a label is predicted where its logit is above 0."""
    if outputs.shape != y.shape:
        raise ValueError(
            f"the model gives scores of shape {list(outputs.shape)} for labels of shape {list(y.shape)}"
        )
    predicted, true = outputs > 0, y > 0
    return torch.stack([predicted & true, predicted & ~true, ~predicted & true], dim=2).sum(dim=0).cpu()
