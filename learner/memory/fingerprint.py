"""What makes two tasks the same one: all that the task asks for, and the model that it starts from.

Ids alone do not: a controller that was restored from an older backup gives them out again, and one that lies
may ask for something else under the same id.
"""

import hashlib
import json

from hansa.common.models.model import Manifest
from hansa.common.values.tasks import Task


def fingerprint(task: Task, base: Manifest) -> str:
    """Return a digest that is the same if and only if a task is done again."""
    # Terms are added whenever the task is sent. Fields at their defaults may be unknown to an older Hansa.
    asked = task.model_dump(mode="json", exclude={"terms"}, exclude_defaults=True)
    text = json.dumps([asked, base.digest.hex()], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
