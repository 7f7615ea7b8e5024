"""`hansa evaluator start|stop|status|logs`."""

from typing import Any

from hansa.common.site.cli import site_group


def _daemon(*args: Any) -> Any:
    from hansa.evaluator.daemon import Evaluator

    return Evaluator(*args)


evaluator = site_group("evaluator", _daemon, split="validation")
