"""How a site reports an error of its work."""

from hansa.common.values.errors import Forbidden, InvalidApp, InvalidData, Unequipped, Unfit, reason
from hansa.common.values.results import Failure


def failure_of(error: BaseException) -> Failure:
    """Return what a site tells the controller about an error: an app or a plugin may raise anything."""
    if isinstance(error, Unfit):
        return Failure(reason=str(error), unfit=True)
    if isinstance(error, InvalidApp | InvalidData | Forbidden | Unequipped):
        return Failure(reason=str(error), final=True)
    return Failure(reason=reason(error))
