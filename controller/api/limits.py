"""Limits: how many jobs one operator may submit, and how large models may be."""

from collections import deque

from hansa.common.models.model import DTYPES, Manifest
from hansa.common.process.clock import Clock
from hansa.common.values.errors import TooLarge

SUBMISSIONS, WINDOW = 120, 60.0  # jobs that one operator may submit, in this many seconds
OPERATORS = 1000  # operators whose submissions are remembered
LARGEST_MODEL = 64 << 30


class SubmissionRate:
    """Limits how often each operator submits."""

    def __init__(self, clock: Clock, most: int = SUBMISSIONS) -> None:
        self._clock, self._most = clock, most
        self._recent: dict[str, deque[float]] = {}

    def take(self, operator: str) -> None:
        """Count a submission or raise TooLarge."""
        while operator not in self._recent and len(self._recent) >= OPERATORS:
            self._recent.pop(next(iter(self._recent)))
        recent, now = self._recent.setdefault(operator, deque()), self._clock.now()
        while recent and now - recent[0] >= WINDOW:
            recent.popleft()
        if len(recent) >= self._most:
            raise TooLarge(
                f"{operator or 'the operators'} submitted {self._most} jobs in {WINDOW:g} s: the limit"
            )
        recent.append(now)


def require_size(manifest: Manifest, largest: int) -> None:
    """Refuse a model that claims to be too large; `check_manifest` refuses invalid manifests."""
    total = 0
    for info in manifest.spec.tensors:
        if info.dtype in DTYPES and len(info.shape) <= 32:
            total += info.nbytes
    if total > largest:
        raise TooLarge(
            f"the model has {total} bytes; this controller accepts at most {largest} (--max-model)"
        )
