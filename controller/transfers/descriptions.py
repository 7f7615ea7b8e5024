"""Descriptions: if version 0 came from a file, a site only describes the model it built, without numbers."""

from hansa.common.models.distance import misfit
from hansa.common.models.model import Manifest, ModelSpec, check_manifest
from hansa.common.values.errors import Rejected, Stale
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Init, Task
from hansa.controller.engine import events as ev
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.plugin.outline import outline_of
from hansa.controller.transfers.manifests import Manifests
from hansa.controller.transfers.quarantine import Quarantine


def is_description(runner: JobRunner, task: Task) -> bool:
    """Whether a task asks only for the description of a model."""
    return isinstance(task.work, Init) and runner.machine.state.current is not None


async def describe(
    runner: JobRunner,
    task: Task,
    manifest: Manifest,
    facts: UpdateFacts,
    manifests: Manifests,
    quarantine: Quarantine,
) -> Receipt:
    """Tell a job the outline of the model that a site built; quarantine it if it does not fit version 0."""
    current = runner.machine.state.current
    assert current is not None
    from_file = (await manifests.read(current)).spec
    try:
        check_manifest(manifest)
        require_same_model(manifest.spec, from_file)
    except Rejected as error:
        await quarantine.put(runner, task, str(error))
        raise
    event = ev.ModelDescribed(
        at=runner.now(),
        task=task.id,
        site=task.site,
        digest=manifest.digest.hex(),
        outline=outline_of(manifest.spec, facts.anatomy),
        backbone=facts.backbone,
    )
    try:
        await runner.post(event)
    except Stale:  # the same offer may have arrived twice
        if not runner.receipt(task.id, task.site):
            raise
    receipt = runner.receipt(task.id, task.site)
    assert receipt is not None, "a description that was accepted has a receipt"
    return receipt


def require_same_model(built: ModelSpec, from_file: ModelSpec) -> None:
    """Refuse a file with version 0 that does not fit the model that the app builds."""
    wrong = misfit(built, from_file, types=False)  # learners convert types
    if wrong:
        raise Rejected(f"init: the file does not fit the app's model: {wrong}")
