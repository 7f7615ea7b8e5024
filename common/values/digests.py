"""Digests of a community model with tensors beside it."""

from blake3 import blake3


def joined(model: str, auxiliary: str) -> str:
    """Return one digest for a model and the auxiliary tensors beside it, if there are any; all in hex.

    The model keeps a digest of its own, so that an exported model can be compared with the job's receipts,
    and models of rules with and without auxiliary tensors with each other.
    """
    return blake3(bytes.fromhex(model) + bytes.fromhex(auxiliary)).hexdigest() if auxiliary else model
