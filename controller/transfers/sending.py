"""A task as it is sent to a site: with the terms of its job, and within the limits of a message."""

from pydantic import ValidationError

from hansa.common.job.check import described
from hansa.common.rpc import task_codec
from hansa.common.rpc.channel import MESSAGE
from hansa.common.values.errors import InvalidInput, TooLarge, one_line
from hansa.common.values.tasks import Task, Terms
from hansa.controller.engine.machine import Machine
from hansa.protos import fleet_pb2 as fleet

LARGEST = MESSAGE - (64 << 10)  # bytes; a site refuses a longer message, which would end its session


def task_message(task: Task, machine: Machine) -> fleet.ToSite:
    """Encode a task; raise InvalidInput or TooLarge, naming the field, if it does not fit into a message."""
    terms = Terms(
        operator=machine.spec.operator,
        sites=machine.spec.sites.min,
        together=machine.spec.sites.together,
        redistributes=machine.rule.redistributes,
    )
    complete = task.model_copy(update={"terms": terms})
    try:
        message = fleet.ToSite(task=task_codec.task_to_wire(complete))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(_fault(complete) or one_line(error)) from error
    if message.ByteSize() > LARGEST:
        raise TooLarge(f"it has {message.ByteSize()} bytes; at most {LARGEST} are allowed")
    return message


def _fault(task: Task) -> str:
    """Return which field of a task is out of bounds: protobuf does not say which."""
    try:
        Task.model_validate(task.model_dump(warnings=False))
    except ValidationError as error:
        return described(error)
    return ""
