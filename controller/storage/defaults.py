"""Where a controller keeps its state and its models by default."""

from pathlib import Path

DEFAULT_STATE = Path("~/.hansa/controller")


def places(state: Path | None, store: str | None = None) -> tuple[Path, str]:
    """Return the state directory and the URL of the store, as the options or the defaults name them."""
    folder = (state or DEFAULT_STATE).expanduser().absolute()
    return folder, store or f"disk:{folder / 'store'}"
