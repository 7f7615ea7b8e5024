"""How a task goes to a site: with the terms of its job, within what the wire carries."""

from pydantic import ValidationError

from hansa.common.job.check import described
from hansa.common.rpc import task_codec
from hansa.common.rpc.channel import MESSAGE
from hansa.common.values.errors import InvalidInput, TooLarge, one_line
from hansa.common.values.tasks import Task, Terms
from hansa.controller.engine.machine import Machine
from hansa.protos import fleet_pb2 as fleet

LARGEST = MESSAGE - (64 << 10)  # bytes; a site refuses a longer message, and its session ends with it


def task_message(task: Task, machine: Machine) -> fleet.ToSite:
    """Encode a task; raise InvalidInput or TooLarge, naming the field, if it does not fit the wire."""
    terms = Terms(
        operator=machine.spec.operator,
        sites=machine.spec.sites.min,
        together=machine.spec.sites.together,
        redistributes=machine.rule.redistributes,
    )
    whole = task.model_copy(update={"terms": terms})
    try:
        message = fleet.ToSite(task=task_codec.task_to_wire(whole))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(_fault(whole) or one_line(error)) from error
    if message.ByteSize() > LARGEST:
        raise TooLarge(f"it has {message.ByteSize()} bytes; at most {LARGEST} are allowed")
    return message


def _fault(task: Task) -> str:
    """Return which field of a task is out of its bounds: protobuf does not say it."""
    try:
        Task.model_validate(task.model_dump(warnings=False))
    except ValidationError as error:
        return described(error)
    return ""
