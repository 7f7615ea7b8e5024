"""The device that PyTorch computes on, and whether it can compute in bfloat16 (`train.precision`)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hansa.common.values.errors import InvalidInput, Unequipped


def require_device(device: str) -> None:
    """Refuse a device that PyTorch does not have here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInput(f"--device {device}: {str(error).splitlines()[0]}") from None


def supports_bf16(device: str) -> bool:
    """Whether a device computes in bfloat16 itself; PyTorch would imitate it elsewhere, many times slower."""
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return True


def computing_in(precision: str, device: str) -> AbstractContextManager[Any]:
    """Return a context, to be entered for every batch, in which networks compute in a precision."""
    if precision == "float32":
        return nullcontext()
    if not supports_bf16(device):
        raise Unequipped(
            f"train.precision: this site trains on {device}, which cannot compute in bfloat16; leave"
            " precision out of the job, or leave the site out"
        )
    return torch.autocast(torch.device(device).type, torch.bfloat16)
