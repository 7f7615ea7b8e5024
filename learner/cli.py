"""`hansa learner start|stop|status`."""

from typing import Any

from hansa.common.site.cli import site_group


def _daemon(*arguments: Any) -> Any:
    from hansa.learner.daemon import Learner

    return Learner(*arguments)


learner = site_group("learner", _daemon)
