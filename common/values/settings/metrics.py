"""Metrics: whether more or less of them is better."""

import re
from difflib import get_close_matches
from typing import Literal

Mode = Literal["max", "min"]
USUAL = ("accuracy", "loss")  # what versions are compared by unless a job says otherwise: the first they have
HANSAS = (*USUAL, "weighted_f1", "micro_f1")  # which Hansa computes itself
# Words in the names of metrics; `val_loss`, `top5_accuracy` and `weighted_f1_by_site` have one of them.
_MAX = {"accuracy", "acc", "f1", "fbeta", "mcc", "kappa", "gmean", "precision", "recall", "sensitivity"}
_MAX |= {"specificity", "auc", "auroc", "auprc", "map", "ap", "r2", "dice", "iou", "jaccard", "bleu", "rouge"}
_MAX |= {"psnr", "ssim", "ndcg", "concordance", "likelihood", "correlation"}
_MIN = {"loss", "error", "mae", "mse", "rmse", "mape", "rmsle", "perplexity", "ppl", "nll", "brier", "ece"}
_MIN |= {"wer", "cer", "entropy", "crossentropy", "divergence", "hinge", "hausdorff", "fid", "eer"}

_NEITHER = {"inverse", "negative", "neg", "std", "stdev", "variance", "var", "gap", "drop", "spread"}


def mode_of(metric: str) -> Mode | None:
    """Return whether more (max) or less (min) of a metric is better; None if its name does not say."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    if words & _NEITHER or bool(words & _MAX) == bool(words & _MIN):
        return None
    return "max" if words & _MAX else "min"


def require_mode(metric: str | None, mode: Mode | None) -> None:
    """Refuse a metric of which nobody can say whether more or less of it is better."""
    if metric is None:
        if mode is not None:
            raise ValueError(
                f"mode: {mode} needs a metric; without one, versions are compared by accuracy or loss"
            )
        return
    known = mode_of(metric)
    if known is None and mode is None:
        near = get_close_matches(metric.lower(), HANSAS, n=1, cutoff=0.8)
        meant = f"; or did you mean {near[0]}?" if near else ""
        raise ValueError(f"{metric}: is more of it better, or less? Add mode: max or mode: min{meant}")
    if metric in USUAL and mode not in (None, known):
        raise ValueError(f"{metric} is always better the {'larger' if known == 'max' else 'smaller'} it is")
