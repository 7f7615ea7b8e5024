"""The site's policy: what its owner lets jobs ask of it. The site itself enforces it.

apps = ["/srv/hansa/app.py:app"]    # the apps that jobs may use (default: all that --app names)
operators = ["alice"]               # whose jobs may run here (default: anybody's)
max_epochs = 10                     # the most epochs of one task
min_sites = 3                       # the fewest sites whose updates may make up a community model
redistribute = false                # whether other sites may receive this site's own model, not only the mean
memory = "4GiB"                     # the most that a job's plugins may keep here in arrays
logs = 200                          # how many of the last lines of the log operators may read (default: none)
"""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from hansa.common.job.check import describe
from hansa.common.methods.ditto import DITTO
from hansa.common.values.bounds import Value
from hansa.common.values.errors import Forbidden, HansaError, InvalidInput
from hansa.common.values.tasks import Task, Train
from hansa.common.values.wording.sizes import parse_size, size_text

Size = Annotated[int, BeforeValidator(lambda size: parse_size(size) if isinstance(size, str) else size)]


class Policy(Value):
    """What jobs may ask of a site; everything else is allowed, except showing its model to other sites."""

    apps: tuple[str, ...] | None = None
    operators: tuple[str, ...] | None = None
    max_epochs: float | None = Field(None, gt=0)
    min_sites: int | None = Field(None, ge=1)
    redistribute: bool = False
    memory: Size = Field(4 << 30, ge=0, strict=True)
    logs: int = Field(0, ge=0, le=1000, strict=True)

    def require(self, task: Task, examples: int) -> None:
        """Refuse a task that asks for more than the owner allows."""
        objection = self._objection(task, examples)
        if objection:
            raise _refusal(task, objection)

    def require_room(self, task: Task, size: int) -> None:
        """Refuse to keep more bytes of a job's arrays than the owner allows."""
        if size > self.memory:
            raise _refusal(
                task,
                f"its plugins want to keep arrays of {size_text(size)} at the site, and at most"
                f" {size_text(self.memory)} are allowed (`memory` in the file of --policy)",
            )

    def require_readable(self, operator: str) -> None:
        """Refuse to show the log to an operator."""
        if not self.logs:
            raise Forbidden("the site does not show its logs (`logs` in the file of --policy)")
        if self.operators is not None and operator not in self.operators:
            raise Forbidden(f"the site does not show its logs to operator {operator or 'unknown'}")

    def _objection(self, task: Task, examples: int) -> str | None:
        terms = task.terms
        if self.apps is not None and task.app not in self.apps:
            return f"app {task.app!r} may not be used"
        if self.operators is not None and terms.operator not in self.operators:
            return f"jobs of operator {terms.operator or 'unknown'} may not run here"
        if self.min_sites is not None and terms.together < self.min_sites:
            fewest = "one site" if terms.together == 1 else f"{terms.together} sites"
            return f"it may make a model of {fewest} (sites.together); at least {self.min_sites} are required"
        if terms.redistributes and not self.redistribute:
            return "its rule would show this site's own model to other sites"
        if self.max_epochs is not None and isinstance(task.work, Train):
            asked = _epochs(task.work, examples) + _epochs_on_own_model(task.work)
            if asked > self.max_epochs:
                return f"it asks for {asked:g} epochs, and at most {self.max_epochs:g} are allowed"
        return None


def _refusal(task: Task, objection: str) -> Forbidden:
    return Forbidden(f"the policy of site {task.site} refuses this job: {objection}")


def _epochs(work: Train, examples: int) -> float:
    if not (work.steps or work.batches):
        return work.personal_epochs + work.epochs
    epochs = (work.steps or work.batches) / max(1, -(-examples // work.batch_size))
    return epochs if work.steps else min(epochs, 1.0)  # a window ends with the pass at the latest


def _epochs_on_own_model(work: Train) -> int:
    epochs = [plugin.args.get("epochs") for plugin in work.plugins if plugin.name == DITTO]
    return sum(each for each in epochs if isinstance(each, int))  # the plugin refuses anything else


FREE = Policy(redistribute=True)  # the policy of a site without a policy file


class PolicyFile:
    """A policy in a file, read again when the file changes. A file that cannot be read allows nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._policy = read_policy(path) if path else FREE
        self._stamp = self._look()

    def current(self) -> Policy:
        """Return the file's current policy; raise Forbidden if it cannot be read."""
        seen = self._look()
        if self._path and seen != self._stamp:
            try:
                self._policy = read_policy(self._path)
            except HansaError as error:
                raise Forbidden(f"the site's policy cannot be read, so nothing is allowed: {error}") from None
            self._stamp = seen
        return self._policy

    def _look(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat() if self._path else None
        except OSError:
            return None
        return (stat.st_mtime_ns, stat.st_size) if stat else None


def read_policy(path: Path) -> Policy:
    """Read a policy file or raise InvalidInput naming every wrong key."""
    try:
        with path.open("rb") as file:
            return Policy.model_validate(tomllib.load(file))
    except OSError as error:
        raise InvalidInput(f"--policy {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--policy {path}: {error}") from None
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, f['loc']))}: {describe(f, Policy, f['loc'])}" for f in error.errors()]
        raise InvalidInput(f"--policy {path}: {'; '.join(faults)}") from None
