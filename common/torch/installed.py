"""Whether PyTorch is installed: operators and controllers need not have it."""

from importlib.util import find_spec

from hansa.common.values.errors import Refused


def is_installed() -> bool:
    """Whether PyTorch is installed; it is not loaded for that."""
    return find_spec("torch") is not None


def require_torch(what: str) -> None:
    """Refuse to do `what` without PyTorch."""
    if not is_installed():
        raise Refused(f"{what} needs PyTorch, which is not installed here: pip install 'hansa[torch]'")
