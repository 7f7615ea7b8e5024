"""Loss and confusion matrix of a module, as sums that can be pooled over sites."""

import torch
from torch import nn

from hansa.common.app import App
from hansa.common.tasks import Evaluation
from hansa.common.torch_data import Tensors, loss_of

BATCH = 1024


@torch.no_grad()
def measure(app: App, module: nn.Module, data: Tensors) -> Evaluation:
    """Evaluate in evaluation mode; n = 0 gives an empty report, which counts for nothing."""
    module.eval()
    classes = (app.classes or 0) if app.task == "classification" else 0
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    loss, targets = 0.0, 0
    for start in range(0, len(data), BATCH):
        x, y = data.x[start : start + BATCH], data.y[start : start + BATCH]
        outputs = module(x)
        loss += float(loss_of(app, outputs, y)) * len(y)
        if classes:
            if outputs.shape[1] != classes:
                raise ValueError(f"the model gives {outputs.shape[1]} scores, the app says classes={classes}")
            predicted = outputs.argmax(dim=1)
            counts += torch.bincount((y * classes + predicted).flatten().cpu(), minlength=classes * classes)
            targets += y.numel()
        else:
            targets += len(y)
    # Models with several targets per example (next characters, pixels) count targets, not rows.
    scale = targets / len(data) if len(data) else 1.0
    confusion = tuple(tuple(row) for row in counts.reshape(classes, classes).tolist())
    return Evaluation(n=targets, loss_sum=loss * scale, confusion=confusion if targets else ())
